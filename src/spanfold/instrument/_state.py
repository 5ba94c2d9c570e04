"""The one process-wide state: settings, the gate, the open runs, and who else must be told.

`configure()` fills it; nothing here reads the environment at import. What is
process-wide is so because the OpenTelemetry context, signals and forks are.
"""

import os
import threading
import uuid
from collections.abc import Mapping
from typing import Any, Protocol

from spanfold import names
from spanfold.instrument._guard import not_usable, tell_unused
from spanfold.redact import Gate, default_redactor
from spanfold.settings import Settings, resolve, unknown_variables


class Recording(Protocol):
    """An open run, as far as this module needs to know it."""

    @property
    def trace_hex(self) -> bytes:
        """Trace id, 32 hex digits."""
        ...


class RunHooks(Protocol):
    """What the rooms to the right (fold, deliver) do for one run. Never raises."""

    def recorded(self, kind: str) -> None:
        """A record of this kind is in the journal."""
        ...

    def flush(self, timeout_s: float) -> None:
        """Bring documents up to date."""
        ...

    def close(self) -> None:
        """The run has ended and is sealed."""
        ...


class Connector(Protocol):
    """Wires the rooms to the right into the recorder; see `spanfold._connect`."""

    def configure(self, settings: Settings, gate: Gate, *, strict: bool) -> None:
        """Check what settings demand of destinations.

        Args:
            settings: What was decided.
            gate: The gate in force.
            strict: Whether a wrong setting raises, or is reported and switches its destination off.

        Raises:
            SettingsError: Something required is missing.
        """
        ...

    def open(self, run: Any) -> RunHooks | None:
        """Start the work of the other rooms for a run."""
        ...

    def flush(self, timeout_s: float) -> Mapping[str, Any]:
        """Deliver what waits, within the time; returns sent, refused and waiting counts."""
        ...

    def shutdown(self, timeout_s: float) -> Mapping[str, Any]:
        """Flush, then stop threads and connections."""
        ...


class State:
    """Everything process-wide of the recorder."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.settings: Settings | None = None
        self.redactor = default_redactor
        self.gate: Gate | None = None
        self.connector: Connector | None = None
        self._unused: frozenset[str] = frozenset()
        """Variables that were told to mean nothing."""
        self._claimed: set[bytes] = set()
        self.runs: dict[bytes, Any] = {}
        """Trace id -> open run of this process."""
        self.sole: Any = None
        """The open run, when there is exactly one: parent of work in threads that have no context."""
        self.joined: Any = None
        """The run of a parent process this one joined through the environment."""
        self.instance: tuple[int, str] = (0, "")
        """Process id, and the id of this process among all."""

    def ready(self) -> Settings:
        """Return the settings; from environment and defaults when nobody configured.

        A bad variable is reported once and the most careful value is used:
        `run(...)` without `configure()` is recording already and must not raise.
        """
        if self.settings is None:
            with self.lock:
                if self.settings is None:
                    self.apply(resolve(refused=not_usable), strict=False)
        assert self.settings is not None
        return self.settings

    def apply(self, settings: Settings, *, strict: bool = True) -> None:
        """Take settings into force for runs opened from now on.

        Raises:
            SettingsError: With `strict`, a destination is required and cannot be used.
        """
        with self.lock:
            self.redactor.register_environment(os.environ)
            gate = Gate(self.redactor, settings.redact)
            if self.connector is not None:
                self.connector.configure(settings, gate, strict=strict)
            self.gate, self.settings = gate, settings
        if settings.enabled and names.ENV_RUN_DIR not in os.environ:  # else the parent process has told of them
            self._unused = tell_unused(unknown_variables(os.environ), self._unused)

    def claim(self, trace_hex: bytes) -> bool:
        """Take a trace id from outside for one run; False when another open run has it."""
        with self.lock:
            if trace_hex in self.runs or trace_hex in self._claimed:
                return False
            self._claimed.add(trace_hex)
            return True

    def add(self, run: Any) -> None:
        """Note an open run."""
        with self.lock:
            self._claimed.discard(run.trace_hex)
            self.runs[run.trace_hex] = run
            self.sole = next(iter(self.runs.values())) if len(self.runs) == 1 else None

    def remove(self, run: Any) -> None:
        """Note that a run has ended."""
        with self.lock:
            trace_id = run.trace_hex
            if self.runs.get(trace_id) is run:
                del self.runs[trace_id]
            self.sole = next(iter(self.runs.values())) if len(self.runs) == 1 else None

    def forked(self) -> None:
        """Make the state usable in a forked child."""
        self.lock = threading.RLock()


state = State()


_version: list[str] = []


def version() -> str:
    """Return the installed version of spanfold."""
    if not _version:
        from importlib import metadata  # as much as a tenth of the import time

        try:
            _version.append(metadata.version("spanfold"))
        except metadata.PackageNotFoundError:
            _version.append("0+unknown")
    return _version[0]


def process_resource() -> dict[str, Any]:
    """Return the resource attributes of this process (general conventions; `OTEL_*` as elsewhere).

    Few, because every line carries them: versions and host stand on the root span.
    """
    # By process, not by a hook: those of other modules that write in a forked child may run first.
    if state.instance[0] != os.getpid():
        state.instance = (os.getpid(), str(uuid.uuid4()))
    given = _otel_resource_attributes()
    return {
        "service.name": os.environ.get("OTEL_SERVICE_NAME") or given.pop("service.name", names.SCOPE),
        "service.instance.id": state.instance[1],
        "process.pid": os.getpid(),
        **given,
    }


def _otel_resource_attributes() -> dict[str, str]:
    from urllib.parse import unquote

    pairs = (item.partition("=") for item in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","))
    return {key.strip(): unquote(value.strip()) for key, found, value in pairs if found and key.strip()}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=state.forked)
