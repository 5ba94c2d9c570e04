"""What every test of the diagnose room needs."""

from collections.abc import Iterator

import pytest

from spanfold.instrument import losses


@pytest.fixture(autouse=True)
def own_losses() -> Iterator[None]:
    """Take back what a test counts as lost: the count is of the process, and other tests print it."""
    before = losses.copy()
    yield
    losses.clear()
    losses.update(before)
