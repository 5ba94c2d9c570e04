"""Settings: argument, then environment, then default; built once, frozen.

Nothing reads the environment at import. A value that cannot be used is an
error that names the argument or variable it came from. The standard `OTEL_*`
and `LANGFUSE_*` variables are read by the destinations that define them, with
their standard meaning (docs/settings.md).
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from spanfold import names
from spanfold.errors import SettingsError

Destination = bool | Literal["auto"]
Durability = Literal["process", "machine"]
Content = Literal["none", "local", "all"]
RedactCallback = Callable[[str], str]
ProviderChoice = Literal["auto", "own", "global"]

TRUE: Final = frozenset({"1", "true", "yes", "on"})
"""What stands for true in a variable, in lower case."""
FALSE: Final = frozenset({"0", "false", "no", "off"})
"""What stands for false in a variable, in lower case."""

PREFIX: Final = "SPANFOLD_"
KNOWN_VARIABLES: Final = frozenset(
    {
        # Settings, below.
        *("SPANFOLD_RUN_DIR", "SPANFOLD_OTLP", "SPANFOLD_LANGFUSE", "SPANFOLD_REDACT", "SPANFOLD_DURABILITY"),
        *("SPANFOLD_CONTENT", "SPANFOLD_PROVIDER", "SPANFOLD_DELIVER_EARLIER", "SPANFOLD_SIGNALS", "SPANFOLD_DISABLED"),
        # What tells a child process of the run it belongs to.
        *(names.ENV_RUN_DIR, names.ENV_RUN_NAME, names.ENV_STAGE, names.ENV_CYCLE, names.ENV_DEPTH, names.ENV_TOKEN),
        # Of single rooms: journal, diagnose, demo, cli.
        *("SPANFOLD_NATIVE", "SPANFOLD_STATE_DIR"),
        *("SPANFOLD_MEDIA_BYTES", "SPANFOLD_MEDIA_ROOTS", "SPANFOLD_CODE_DIR"),
        *("SPANFOLD_DEMO_MODEL", "SPANFOLD_TRACEBACK"),
        # Beside the package: docker-compose.yml, and its own tests.
        *("SPANFOLD_COLLECTOR", "SPANFOLD_CI"),
    }
)
"""Every variable of ours, whichever room reads it: another one with our prefix is a slip, or belongs to somebody else."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What `configure()` decided. One per process."""

    run_dir: Path | None = None
    """Folder that holds run directories made without an explicit `dir`. Default `runs`. `SPANFOLD_RUN_DIR`."""
    otlp: Destination = "auto"
    """Send to an OTLP collector: `auto` when `OTEL_EXPORTER_OTLP_*` names one, True required, False never. `SPANFOLD_OTLP`."""
    langfuse: Destination = "auto"
    """Send to Langfuse: `auto` when its keys and host are set, True or `live` required, False or `offline` never.
    `SPANFOLD_LANGFUSE`."""
    redact: bool | RedactCallback = True
    """Rules on (True), only registered secrets and sensitive names (False), or a further callback. `SPANFOLD_REDACT`."""
    durability: Durability = "process"
    """`process`: survives a kill of the process. `machine`: survives a power cut, by fsync. `SPANFOLD_DURABILITY`."""
    content: Content = "all"
    """Message content: recorded and sent (`all`), recorded only (`local`), not recorded (`none`). `SPANFOLD_CONTENT`."""
    provider: Any = "auto"
    """`auto` joins the host's OpenTelemetry provider, `own` ignores it, `global` installs ours for other instrumentors
    when the host has none, or a provider object to join. `SPANFOLD_PROVIDER`."""
    deliver_earlier: bool = True
    """Whether what waits of earlier runs beside a new one is sent too. `SPANFOLD_DELIVER_EARLIER`."""
    signals: bool = True
    """End open spans as `terminated` on SIGTERM, where nobody else handles it. `SPANFOLD_SIGNALS`."""
    enabled: bool = True
    """False records nothing. `SPANFOLD_DISABLED=true`, and `OTEL_SDK_DISABLED=true` as elsewhere."""


def resolve(
    environ: Mapping[str, str] | None = None,
    *,
    refused: Callable[[SettingsError, str], None] | None = None,
    **given: Any,
) -> Settings:
    """Build the settings from arguments over environment over defaults.

    Args:
        environ: Variables to read; the process environment by default.
        refused: Told of each variable that cannot be used, and of what is in force in its place: never a value with
            which more is recorded or sent than any that may have been meant. By default it is an error.
        given: Fields of `Settings`; None means "not given".

    Raises:
        SettingsError: A value cannot be used; the message names the argument or variable.
    """
    env = os.environ if environ is None else environ

    def pick(field: str, variable: str, parse: Callable[[str, Any], Any], default: Any, instead: Any) -> Any:
        if given.get(field) is not None:
            return parse(field, given[field])
        if not env.get(variable):
            return default
        try:
            return parse(variable, env[variable])
        except SettingsError as error:
            if refused is None:
                raise
            refused(error, str(instead).lower())
            return instead

    disabled = pick("", "SPANFOLD_DISABLED", _boolean, False, True) or (
        env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    )
    return Settings(
        run_dir=pick("run_dir", "SPANFOLD_RUN_DIR", _folder, None, None),
        otlp=pick("otlp", "SPANFOLD_OTLP", _destination, "auto", False),
        langfuse=pick("langfuse", "SPANFOLD_LANGFUSE", _destination, "auto", False),
        redact=pick("redact", "SPANFOLD_REDACT", _redact, True, True),
        durability=pick("durability", "SPANFOLD_DURABILITY", _one_of(Durability), "process", "process"),
        content=pick("content", "SPANFOLD_CONTENT", _one_of(Content), "all", "none"),
        provider=pick("provider", "SPANFOLD_PROVIDER", _provider, "auto", "own"),
        deliver_earlier=pick("deliver_earlier", "SPANFOLD_DELIVER_EARLIER", _boolean, True, False),
        signals=pick("signals", "SPANFOLD_SIGNALS", _boolean, True, False),
        enabled=not disabled,
    )


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with our prefix that nothing of ours reads, each with the closest one that exists, or "".

    Never an error: other programs and later versions may have such variables.
    """
    # Whatever else stands in a name is nobody's slip, and would not be fit to print.
    unknown = sorted(
        name for name in environ.keys() - KNOWN_VARIABLES if re.fullmatch(rf"{PREFIX}[A-Z0-9_]{{1,60}}", name)
    )
    if not unknown:
        return {}
    import difflib  # of use to few programs

    known = {name.removeprefix(PREFIX): name for name in sorted(KNOWN_VARIABLES)}
    closest = {name: difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1) for name in unknown}
    return {name: known[found[0]] if found else "" for name, found in closest.items()}


def described(value: object) -> str:
    """Describe a bad value without quoting it: it may be a secret pasted into the wrong place."""
    if isinstance(value, str):
        return f"text of {len(value)} character{'' if len(value) == 1 else 's'}"
    kind = type(value).__name__
    return f"a{'n' * (kind[0] in 'aeiou')} {kind}"


def as_path(setting: str, value: Any) -> Path:
    """Return a path that a program gave, with `~` as the user's home.

    Args:
        setting: The argument or variable it was given as.
        value: Text, bytes or an `os.PathLike`.

    Raises:
        SettingsError: It is none of them.
    """
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise SettingsError(setting, "a path (str or os.PathLike)", described(value))
    return Path(os.path.expanduser(os.fsdecode(cast("os.PathLike[str]", value))))


def _folder(setting: str, value: Any) -> Path:
    return Path(os.path.abspath(as_path(setting, value)))


def _boolean(setting: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else None
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise SettingsError(setting, "true or false", described(value))


def _destination(setting: str, value: Any) -> Destination:
    word = value.strip().lower() if isinstance(value, str) else None
    if word == "auto":
        return "auto"
    if word in ("live", "offline"):  # the words of the diagnose loop's tracer (DL 10.1)
        return word == "live"
    try:
        return _boolean(setting, value)
    except SettingsError:
        raise SettingsError(setting, "auto, true (live) or false (offline)", described(value)) from None


def _redact(setting: str, value: Any) -> bool | RedactCallback:
    if callable(value):
        return cast("RedactCallback", value)
    return _boolean(setting, value)


def _provider(setting: str, value: Any) -> Any:
    if isinstance(value, str):
        return _one_of(ProviderChoice)(setting, value)
    if not hasattr(value, "get_tracer"):
        raise SettingsError(setting, "auto, own, global or an OpenTelemetry TracerProvider", described(value))
    return value


def _one_of(choices: Any) -> Callable[[str, Any], Any]:
    allowed: tuple[str, ...] = get_args(choices)

    def parse(setting: str, value: Any) -> str:
        word = value.strip().lower() if isinstance(value, str) else None
        if word not in allowed:
            raise SettingsError(setting, f"{', '.join(allowed[:-1])} or {allowed[-1]}", described(value))
        return word

    return parse
