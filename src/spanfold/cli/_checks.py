"""Look at settings, packages, destinations and runs for `doctor`. Nothing is changed, and nothing is sent anywhere."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

from spanfold.cli._check_destinations import Reach, check_destinations, configured_keys
from spanfold.cli._check_runs import Folder, check_runs
from spanfold.errors import SettingsError
from spanfold.instrument import IS_NATIVE, version
from spanfold.settings import FALSE, TRUE, Settings, described, resolve, unknown_variables

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "langfuse": ("langfuse",),
    "figures": ("numpy", "matplotlib"),
    "fast": ("hyperscan",),
    "demo": ("numpy", "matplotlib", "scikit-learn", "threadpoolctl"),
}
"""Extra -> its distributions, as in pyproject.toml."""
UNUSED_EXTRAS: Final = frozenset({"timings", "clickhouse"})
"""Extras that have no code yet: without them nothing is missing."""

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
    reached = check_destinations(resolved, environ, timeout_s)
    problems += [f"{reach.label}: {reach.told}" for reach in reached if reach.state in ("unreachable", "unusable")]
    runs = check_runs(folder, configured_keys(resolved, environ), next_sends=resolved.deliver_earlier)
    notes = runs.notes
    if not resolved.enabled:
        notes = ["Recording is switched off (SPANFOLD_DISABLED or OTEL_SDK_DISABLED).", *notes]
    for name, meant in unknown_variables(environ).items():
        # With no name like it, it may well be of another program.
        told = f"{name} is no variable of spanfold and changes nothing"
        (problems if meant else notes).append(f"{told}; did you mean {meant}?" if meant else f"{told}.")
    return Examination(
        spanfold_version=version(),
        opentelemetry_version=_version("opentelemetry-api") or "(unknown)",
        core=_core(environ),
        settings=settings,
        provider=_provider(resolved, environ),
        extras=tuple(_extra(name, packages) for name, packages in EXTRAS.items()),
        destinations=reached,
        folder=runs.folder,
        notes=tuple(notes),
        problems=(*problems, *runs.problems),
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
    return f"{_SWITCH}: expected true or false, found {described(found)}. It is ignored."


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
