"""`spanfold run tail`: a run as it happens."""

import argparse
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from spanfold.cli._console import Console
from spanfold.cli._exits import Exit
from spanfold.cli._loop import loop_rows
from spanfold.cli._places import find_run
from spanfold.cli._table import Style
from spanfold.cli._text import count, cut, cycle, shown
from spanfold.cli.run_recover import how_to_finish
from spanfold.fold import Moment, tail_run
from spanfold.names import EVENT_EXCEPTION
from spanfold.timings import format_duration

SCHEMA: Final = "spanfold.run_tail/1"

_LOUD: Final = frozenset({"run", "stage", "agent", "cell", "pass", "batch", "closeout", "tick", "step"})
"""Kinds whose start is worth a line."""
_CALLS: Final = frozenset({"model_call", "tool"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_FIELDS: Final = 200


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Tail a run."""
    run_dir = find_run(arguments.run)
    moments = tail_run(
        run_dir,
        stop=lambda: bool(arguments.no_follow),
        last=None if arguments.from_start else arguments.lines,
        wanted=_is_anything if arguments.all else _is_wanted,
    )
    for moment in moments:
        if console.as_json:
            console.item(SCHEMA, _as_dict(moment))
        else:
            for text, style in _lines(moment):
                safe = shown(text)
                console.line(console.paint(safe if console.width is None else cut(safe, console.width), style))
            console.flush()
        if moment.type == "interrupted":
            console.say(how_to_finish(run_dir))
    return Exit.DONE


def _is_anything(moment: Moment) -> bool:
    return True


def _is_wanted(moment: Moment) -> bool:
    if moment.type == "started":
        return moment.kind in _LOUD
    if moment.type == "ended":
        return moment.kind in _LOUD or moment.kind in _CALLS or moment.failed
    # An exception that leaves a span is told when that ends.
    return moment.name != EVENT_EXCEPTION


def _as_dict(moment: Moment) -> dict[str, Any]:
    found = {name: getattr(moment, name) for name in moment.__dataclass_fields__ if name != "time_ns"}
    # As text: a double, which is what many JSON readers have, does not hold so many nanoseconds.
    return {"time": _when(moment).isoformat(timespec="microseconds").replace("+00:00", "Z"), **found}


def _when(moment: Moment) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=moment.time_ns // 1000)
    except OverflowError:  # another instrumentor may claim any time
        return datetime.max.replace(tzinfo=UTC)


# --- for people --------------------------------------------------------------------------------------------------


def _lines(moment: Moment) -> list[tuple[str, Style]]:
    told = loop_rows(moment)
    return [_line(moment, ("◆", row, "")) for row in told] or [_line(moment, _what(moment))]


def _line(moment: Moment, what: tuple[str, str, Style]) -> tuple[str, Style]:
    mark, text, style = what
    # The run stands at the left, what it does directly one step in, and so on.
    steps = 0 if moment.kind == "run" else 1 + min(moment.depth, 8) if moment.kind else 2 if moment.stage else 1
    return f"{_when(moment):%H:%M:%S}.{moment.time_ns // 1_000_000 % 1000:03d}  {'  ' * steps}{mark} {text}", style


def _what(moment: Moment) -> tuple[str, str, Style]:
    facts = moment.facts or {}
    if moment.type == "started":
        return "▶", _label(moment), ""
    if moment.type == "ended":
        return _ended(moment, facts)
    if moment.type == "score":
        value = facts.get("value", facts.get("label"))
        shown_value = f"{value:.6g}" if isinstance(value, float) else str(value)
        return "◆", f"score {moment.name} = {shown_value}{_comment(facts)}", ""
    if moment.type == "artifact":
        kept = _table(facts.get("fields"))
        return "◆", f"artifact {moment.name}  {kept.get('path') or kept.get('reason') or ''}", ""
    return _other(moment, facts)


def _ended(moment: Moment, facts: dict[str, Any]) -> tuple[str, str, Style]:
    parts = [_label(moment), format_duration(moment.seconds)]
    usage = _table(facts.get("usage"))
    if "input_tokens" in usage or "output_tokens" in usage:
        parts.append(f"{usage.get('input_tokens', '–')} + {usage.get('output_tokens', '–')} tokens")
    if moment.failed:
        parts.append(": ".join(dict.fromkeys(text for text in (moment.error_type, moment.message) if text)) or "failed")
        return "✗", "  ".join(parts), "red"
    if facts.get("outcome"):
        parts.append(str(facts["outcome"]))
    return "■", "  ".join(parts), "green" if moment.kind == "run" else ""


def _other(moment: Moment, facts: dict[str, Any]) -> tuple[str, str, Style]:
    fields = _table(facts.get("fields"))
    if moment.type == "lost":
        return "!", f"{count(int(fields.get('count') or 1), 'record')} could not be written", "red"
    if moment.type == "recovered":
        return "!", "its process died; the run was finished by `spanfold run recover`", "yellow"
    if moment.type == "sealed":
        return "■", "sealed: the run is over", "dim"
    if moment.type == "interrupted":
        return "!", "interrupted: no process of this run is alive", "yellow"
    if moment.error_type or moment.message:
        return "✗", f"{moment.name} {moment.error_type or ''}: {moment.message}".rstrip(": "), "red"
    told = ", ".join(f"{key} = {value}" for key, value in fields.items())
    return "◆", f"event {moment.name}  {told[:_MAX_FIELDS]}".rstrip(), ""


def _label(moment: Moment) -> str:
    facts = moment.facts or {}
    if moment.kind == "stage":
        number = cycle(moment.cycle)
        return f"{moment.name}, cycle {number}" if number else moment.name
    who = facts.get({"model_call": "model", "agent": "agent", "tool": "tool"}.get(moment.kind, ""))
    return f"{moment.kind.replace('_', ' ') or 'span'} {who or moment.name}"


def _table(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _comment(facts: dict[str, Any]) -> str:
    return f"  {facts['comment']}" if facts.get("comment") else ""
