"""Look at settings, packages, destinations and runs for `doctor`. Nothing is changed, and nothing is sent anywhere."""

import contextlib
import importlib.util
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from spanfold.cli._places import is_writable, nearest
from spanfold.cli._text import count
from spanfold.deliver import Destination, backlogs, destinations
from spanfold.errors import SettingsError
from spanfold.fold import ListedRun, list_runs
from spanfold.instrument import IS_NATIVE, version
from spanfold.settings import FALSE, TRUE, Settings, resolve

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "langfuse": ("langfuse",),
    "figures": ("numpy", "matplotlib"),
    "fast": ("hyperscan",),
    "demo": ("numpy", "matplotlib", "scikit-learn", "threadpoolctl"),
}
"""Extra -> its distributions, as in pyproject.toml."""
UNUSED_EXTRAS: Final = frozenset({"timings", "clickhouse"})
"""Extras that have no code yet: without them nothing is missing."""

LOW_BYTES: Final = 100_000_000
"""With less free space than this something is wrong."""
RECENT: Final = 20
"""Of so many runs, the newest ones, it is looked at what destinations have of them: their journals are read for that."""

VARIABLES: Final[Mapping[str, str]] = {
    "run_dir": "SPANFOLD_RUN_DIR",
    "otlp": "SPANFOLD_OTLP",
    "langfuse": "SPANFOLD_LANGFUSE",
    "redact": "SPANFOLD_REDACT",
    "durability": "SPANFOLD_DURABILITY",
    "content": "SPANFOLD_CONTENT",
    "provider": "SPANFOLD_PROVIDER",
    "deliver_earlier": "SPANFOLD_DELIVER_EARLIER",
    "signals": "SPANFOLD_SIGNALS",
    "enabled": "SPANFOLD_DISABLED",
}
"""Field of `Settings` -> its environment variable."""


@dataclass(frozen=True, slots=True)
class Core:
    """What the hot path of a recorded span is run by; both write the same bytes."""

    language: Literal["C", "Python"]
    told: str
    """The same in words; of Python also why, and how to have C."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a program that gives no arguments to `configure()`."""

    name: str
    value: str
    source: str
    """The variable, or `default`."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Extra:
    """One extra of the package."""

    name: str
    installed: Mapping[str, str]
    """Distribution -> version."""
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reach:
    """One destination."""

    label: str
    """Name and address, without credentials."""
    state: Literal["off", "not configured", "unusable", "reachable", "unreachable"]
    told: str
    """The state in words."""
    milliseconds: float | None = None
    """How long it took to connect."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A run that has ended, and that a destination which was sent records of it has not got whole."""

    run_dir: Path
    destination: str
    """Its name."""
    label: str
    """Name and address."""
    refused: int
    """Records refused for good."""
    waiting: int
    """Records neither acknowledged nor refused."""
    reason: str
    """Of the last refusal."""
    key: str
    """Of the destination: what its files begin with, in the journal's folder `.deliver`."""
    is_configured: bool
    """Whether the settings in force still send there."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Where run directories go, and what is there."""

    path: Path
    exists: bool
    writable: bool
    free_bytes: int | None
    n_runs: int
    n_interrupted: int
    """Runs whose process died and that nobody recovered."""
    lost_records: int
    """Records of these runs that could not be written."""
    undelivered: tuple[Undelivered, ...]
    """Among the newest runs."""


@dataclass(frozen=True, slots=True)
class Examination:
    """What `examine` found."""

    spanfold_version: str
    opentelemetry_version: str
    core: Core
    settings: tuple[Setting, ...]
    provider: str
    """What becomes of the program's OpenTelemetry provider."""
    extras: tuple[Extra, ...]
    destinations: tuple[Reach, ...]
    folder: Folder
    notes: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def examine(environ: Mapping[str, str], folder: Path, *, timeout_s: float) -> Examination:
    """Look at everything.

    Args:
        environ: The environment a program would be started with.
        folder: Where run directories go.
        timeout_s: How long to wait for each destination.
    """
    settings = _settings(environ)
    problems = [setting.problem for setting in settings if setting.problem]
    if wrong := _wrong_switch(environ):
        problems.append(wrong)
    resolved = _resolved(environ)
    reached = _destinations(resolved, environ, timeout_s)
    problems += [f"{reach.label}: {reach.told}" for reach in reached if reach.state in ("unreachable", "unusable")]
    runs = list_runs(folder) if folder.is_dir() else []
    place = _folder(folder, runs, _configured(resolved, environ))
    notes, more = _judge_folder(place, runs, next_sends=resolved.deliver_earlier)
    if not resolved.enabled:
        notes.insert(0, "Recording is switched off (SPANFOLD_DISABLED or OTEL_SDK_DISABLED).")
    return Examination(
        spanfold_version=version(),
        opentelemetry_version=_version("opentelemetry-api") or "(unknown)",
        core=_core(environ),
        settings=settings,
        provider=_provider(resolved, environ),
        extras=tuple(_extra(name, packages) for name, packages in EXTRAS.items()),
        destinations=reached,
        folder=place,
        notes=tuple(notes),
        problems=(*problems, *more),
    )


# --- settings ----------------------------------------------------------------------------------------------------


def _settings(environ: Mapping[str, str]) -> tuple[Setting, ...]:
    return tuple(_setting(name, variable, environ) for name, variable in VARIABLES.items())


def _setting(name: str, variable: str, environ: Mapping[str, str]) -> Setting:
    given = {variable: environ[variable]} if environ.get(variable) else {}
    source = variable if given else "default"
    if name == "enabled" and environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        given["OTEL_SDK_DISABLED"], source = "true", "OTEL_SDK_DISABLED"
    try:
        value: Any = getattr(resolve(given), name)
    except SettingsError as error:
        advice = "Until it is mended, programs that do not call configure() record and send less than it can ask for."
        return Setting(name, "cannot be used", source, f"{error} {advice}")
    if name == "run_dir" and value is None:
        return Setting(name, "runs", source)
    return Setting(name, {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value), source)


def _resolved(environ: Mapping[str, str]) -> Settings:
    """Return the settings that are in force in a program that does not call configure()."""
    return resolve(environ, refused=lambda _error, _instead: None)


def _provider(settings: Settings, environ: Mapping[str, str]) -> str:
    choice = settings.provider
    told = {
        "auto": "a program's OpenTelemetry SDK provider is joined when it has one; otherwise spanfold records by itself",
        "own": "a program's OpenTelemetry provider is ignored",
        "global": "installed for other instrumentors in programs that have none of their own",
    }.get(choice, f"{choice}")
    configured = environ.get("OTEL_PYTHON_TRACER_PROVIDER")
    return f"{told} (OTEL_PYTHON_TRACER_PROVIDER names one)" if configured else told


# --- the core ----------------------------------------------------------------------------------------------------

_SWITCH: Final = "SPANFOLD_NATIVE"


def _wrong_switch(environ: Mapping[str, str]) -> str:
    """Say that the variable for the core cannot be used; empty when it can."""
    found = environ.get(_SWITCH, "").strip().lower()
    if not found or found in FALSE | TRUE:
        return ""
    return f"{_SWITCH}: expected true or false, found text of {len(found)} characters. It is ignored."


def _core(environ: Mapping[str, str]) -> Core:
    if IS_NATIVE:
        return Core("C", "built when spanfold was installed")
    slower = "a recorded span takes about twice the time it takes with the C core"
    switch = environ.get(_SWITCH, "").strip().lower()
    if switch in FALSE:
        return Core("Python", f"{slower}, which SPANFOLD_NATIVE={switch} leaves out")
    again = f"install spanfold again where a C compiler and Python's headers are, without {_SWITCH}=0"
    if any(importlib.util.find_spec(f"spanfold.{room}._native") is None for room in ("journal", "instrument")):
        return Core("Python", f"{slower}, which was not built; to have it, {again}")
    return Core("Python", f"{slower}, which was built but cannot be loaded here; {again}")


# --- packages ----------------------------------------------------------------------------------------------------


def _extra(name: str, packages: tuple[str, ...]) -> Extra:
    versions = {package: _version(package) for package in packages}
    return Extra(
        name,
        {package: found for package, found in versions.items() if found},
        tuple(package for package, found in versions.items() if not found),
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


# --- destinations ------------------------------------------------------------------------------------------------


def _destinations(settings: Settings, environ: Mapping[str, str], timeout_s: float) -> tuple[Reach, ...]:
    return tuple(_reach(name, settings, environ, timeout_s) for name in ("otlp", "langfuse"))


def _reach(
    name: Literal["otlp", "langfuse"], settings: Settings, environ: Mapping[str, str], timeout_s: float
) -> Reach:
    wanted = settings.otlp if name == "otlp" else settings.langfuse
    if wanted is False:
        return Reach(name, "off", f"off ({VARIABLES[name]})")
    alone = Settings(otlp=wanted if name == "otlp" else False, langfuse=wanted if name == "langfuse" else False)
    try:
        found = destinations(alone, environ)
    except SettingsError as error:
        return Reach(name, "unusable", str(error))
    if not found:
        missing = _missing(environ) if name == "langfuse" else ""
        return Reach(name, "not configured", f"not configured ({missing or _NAMED_BY[name]})")
    return _connect(found[0], timeout_s)


def _configured(settings: Settings, environ: Mapping[str, str]) -> frozenset[str]:
    """Return the keys of the destinations that can be sent to."""
    keys: set[str] = set()
    for alone in (Settings(otlp=settings.otlp, langfuse=False), Settings(otlp=False, langfuse=settings.langfuse)):
        with contextlib.suppress(SettingsError):  # told of as a destination
            keys.update(destination.key for destination in destinations(alone, environ))
    return frozenset(keys)


def _missing(environ: Mapping[str, str]) -> str:
    """Say what Langfuse needs, to whom has given a part of it; empty when that is none or all."""
    has_host = bool(environ.get("LANGFUSE_BASE_URL") or environ.get("LANGFUSE_HOST"))
    missing = [key for key in ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY") if not environ.get(key)]
    missing += [] if has_host else ["LANGFUSE_BASE_URL"]
    return f"{' and '.join(missing)} missing, so nothing is sent" if 0 < len(missing) < 3 else ""


_NAMED_BY: Final = {
    "otlp": "OTEL_EXPORTER_OTLP_ENDPOINT names a collector",
    "langfuse": "LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY and LANGFUSE_BASE_URL name a server",
}


def _connect(destination: Destination, timeout_s: float) -> Reach:
    """Open a TCP connection and close it; not a byte is sent."""
    parts = urlsplit(destination.url)
    port = parts.port or (4317 if destination.protocol == "grpc" else 443 if parts.scheme == "https" else 80)
    outcome: list[str | float] = []

    def attempt() -> None:
        begun = time.monotonic()
        try:
            socket.create_connection((parts.hostname or "", port), timeout=timeout_s).close()
        except OSError as error:
            outcome.append(error.strerror or type(error).__name__)
        else:
            outcome.append(round((time.monotonic() - begun) * 1000, 1))

    # In a thread: a name server that does not answer keeps no timeout.
    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(timeout_s + 0.5)
    found = outcome[0] if outcome else f"no answer in {timeout_s:g} s"
    if isinstance(found, float):
        return Reach(destination.label, "reachable", f"reachable, port {port} in {found:g} ms", found)
    waits = "What is recorded meanwhile waits in the journal."
    return Reach(destination.label, "unreachable", f"unreachable, port {port}: {found}. {waits}")


# --- runs --------------------------------------------------------------------------------------------------------


def _folder(path: Path, runs: list[ListedRun], configured: frozenset[str]) -> Folder:
    try:
        stats = os.statvfs(nearest(path))
        free: int | None = stats.f_bavail * stats.f_frsize
    except OSError:
        free = None
    return Folder(
        path=path,
        exists=path.is_dir(),
        writable=is_writable(path),
        free_bytes=free,
        n_runs=len(runs),
        n_interrupted=len(_left_over(runs)),
        lost_records=sum(run.lost_records for run in runs),
        undelivered=tuple(_undelivered(runs[:RECENT], configured)),
    )


def _undelivered(runs: list[ListedRun], configured: frozenset[str]) -> Iterator[Undelivered]:
    for run in runs:
        if run.status in ("running", "unreadable"):
            continue  # the process that records it sends; or its problem is told already
        for backlog in backlogs(run.run_dir):
            if backlog.refused or backlog.waiting:
                yield Undelivered(
                    run.run_dir,
                    backlog.destination,
                    backlog.label,
                    backlog.refused,
                    backlog.waiting,
                    backlog.reason,
                    backlog.key,
                    backlog.key in configured,
                )


def _left_over(runs: list[ListedRun]) -> list[ListedRun]:
    return [run for run in runs if run.status == "interrupted" and not run.is_sealed]


def _judge_folder(folder: Folder, runs: list[ListedRun], *, next_sends: bool) -> tuple[list[str], list[str]]:
    """Return what is worth knowing about the runs, and what is wrong."""
    notes: list[str] = []
    problems: list[str] = []
    if not folder.writable:
        problems.append(
            f"{folder.path}: expected a folder that can be written to, found none; runs would stay in memory."
        )
    if folder.free_bytes is not None and folder.free_bytes < LOW_BYTES:
        problems.append(f"{folder.path}: expected at least 100 MB of free space, found {folder.free_bytes:,} bytes.")
    problems += [
        f"{run.run_dir}: lost {run.lost_records:,} records that could not be written."
        for run in runs
        if run.lost_records
    ]
    problems += [
        f"{run.run_dir}: lost {what} ({count(n, 'time')}) while it was recorded."
        for run in runs
        for what, n in run.losses.items()
    ]
    problems += [_told(found, next_sends=next_sends) for found in folder.undelivered]
    problems += [run.problem for run in runs if run.problem]
    notes += [
        f"{run.run_dir} was interrupted; `spanfold run recover {run.run_dir}` finishes it." for run in _left_over(runs)
    ]
    return notes, problems


def _told(found: Undelivered, *, next_sends: bool) -> str:
    where = f"{found.run_dir}: {found.label}"
    parts = (
        [f"{where} has refused {count(found.refused, 'record')} for good ({found.reason})."] if found.refused else []
    )
    if found.waiting:
        waits = f"{'' if parts else f'{where}: '}{count(found.waiting, 'record')} {'waits' if found.waiting == 1 else 'wait'}"
        deliver = f"`spanfold run deliver {found.run_dir}` sends what waits"
        if found.is_configured:
            by_itself = ", and so does the next run beside it" if next_sends else ""
            parts.append(f"{waits}; {deliver}{by_itself}.")
        else:
            parts.append(
                f"{waits}, and it is not configured now. {_name_again(found.destination)}, and {deliver}; or remove "
                f"{found.run_dir / 'journal' / '.deliver' / found.key}.* to give up on it."
            )
    return " ".join(parts)


def _name_again(destination: str) -> str:
    if destination.startswith("langfuse"):
        return "Set LANGFUSE_BASE_URL to that server again, and its keys"
    return "Set OTEL_EXPORTER_OTLP_TRACES_ENDPOINT to that address again"  # which is taken as it is
