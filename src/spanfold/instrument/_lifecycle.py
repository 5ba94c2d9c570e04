"""Recording in this process as a whole: how it is done, how far it has come, and its end."""

import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

from spanfold.errors import SettingsError
from spanfold.instrument import _signals
from spanfold.instrument._bridge import bridge
from spanfold.instrument._guard import losing_only, losses, lost
from spanfold.instrument._state import state
from spanfold.instrument._unfinished import finish_unfinished
from spanfold.settings import Content, Destination, Durability, RedactCallback, resolve


def configure(
    run_dir: str | Path | None = None,
    otlp: Destination | None = None,
    langfuse: Destination | None = None,
    redact: bool | RedactCallback | None = None,
    durability: Durability | None = None,
    content: Content | None = None,
    provider: Any = None,
) -> None:
    """Decide how this process records. Optional: without it environment and defaults decide.

    Args:
        run_dir: Folder that holds run directories made without an explicit `dir`. Default `runs`.
        otlp: `"auto"` (default) sends to the collector that `OTEL_EXPORTER_OTLP_*` names, and says so
            once; True requires one; False never sends.
        langfuse: The same for Langfuse and its keys.
        redact: True (default) applies all rules, False only registered secrets and sensitive names,
            a callable is applied to every string after the rules.
        durability: `"process"` (default): a killed process loses no ended span. `"machine"`: after
            `flush()` or a control record a power cut loses nothing before it.
        content: Message content is recorded and sent (`"all"`, default), recorded only (`"local"`),
            or not recorded (`"none"`).
        provider: `"auto"` (default) joins the host's OpenTelemetry provider, `"own"` ignores it,
            `"global"` installs ours where the host has none, or a provider object to join.

    Raises:
        SettingsError: A setting cannot be used; it names the argument or environment variable.
            Nothing was changed then.
    """
    settings = resolve(
        run_dir=run_dir,
        otlp=otlp,
        langfuse=langfuse,
        redact=redact,
        durability=durability,
        content=content,
        provider=provider,
    )
    if not isinstance(settings.provider, str) and not hasattr(settings.provider, "add_span_processor"):
        kind = cast("type[object]", type(settings.provider))
        lost(f"the provider {kind.__module__}.{kind.__qualname__}, which takes no span processors; ours is used alone")
    state.apply(settings)
    bridge.join()


class FlushResult(NamedTuple):
    """What became of the records so far."""

    written: int
    """Records of open runs in journals of this process."""
    held: int
    """Records in memory because the disk refuses them."""
    lost: int
    """Records and parts of records that could not be kept."""
    sent: int
    """Records every destination acknowledged."""
    refused: int
    """Records a destination refused for good; the journal names them."""
    waiting: int
    """Records a destination has not acknowledged yet; the journal keeps them."""
    reasons: Mapping[str, int] = MappingProxyType({})
    """Destination and why records were refused there, or wait -> how many; empty when all have arrived."""


FLUSH_S: Final = 5.0
"""How long a flush waits for destinations by default."""


def flush(timeout_s: float = FLUSH_S) -> FlushResult:
    """Bring journals, documents and destinations up to date, within a time limit.

    Args:
        timeout_s: Seconds for destinations; local files are always brought up to date.

    Returns:
        Counts of what this process recorded; `waiting` and `held` are zero when everything of that is where it
        belongs. What is sent of earlier runs is not among them.
    """
    return _flush(timeout_s, last=False)


def shutdown(timeout_s: float = FLUSH_S) -> FlushResult:
    """Flush, then stop threads and connections of ours, within a time limit.

    Open runs stay open: what is recorded later is still in their journal, and
    they are sealed when they end. Recording again starts everything again.
    Harmless when repeated.

    Args:
        timeout_s: Seconds for destinations.
    """
    result = _flush(timeout_s, last=True)
    _signals.uninstall()
    bridge.forget()
    return result


def _seconds(given: Any) -> float:
    """Return a time limit as a number, the usual one in place of what is none: whoever flushes must not fail by it."""
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError):
        lost(
            "a time limit",
            SettingsError("timeout_s", "seconds as a number", f"an object of type {type(given).__name__}"),
        )
        return FLUSH_S


def _flush(timeout_s: float, *, last: bool) -> FlushResult:
    deadline = time.monotonic() + _seconds(timeout_s)
    written = held = dropped = 0
    for recording in (*state.runs.values(), state.joined, *finish_unfinished()):
        if recording is None:
            continue
        with losing_only("a flush"):
            recording.journal.sync()
            stats = recording.stats
            written, held, dropped = written + recording.journal.written, held + stats.held, dropped + stats.lost
            if recording.hooks is not None:
                recording.hooks.flush(max(0.0, deadline - time.monotonic()))
    delivery: Mapping[str, Any] = {}
    if state.connector is not None:
        with losing_only("a delivery flush"):
            act = state.connector.shutdown if last else state.connector.flush
            delivery = act(max(0.0, deadline - time.monotonic()))
    return FlushResult(
        written,
        held,
        dropped + sum(losses.values()),
        int(delivery.get("sent", 0)),
        int(delivery.get("refused", 0)),
        int(delivery.get("waiting", 0)),
        dict(delivery.get("reasons", {})),
    )
