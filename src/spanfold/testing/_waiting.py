"""Wait for what another thread or process does."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], timeout_s: float = 10.0) -> bool:
    """Return whether a condition came true in time, looking every 10 ms."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())
