"""Tell a person at a terminal what a diagnose loop does, one row for each stage (DL 12).

    M3  diagnose    ······ cycle 0 · 2 falsifiable hypotheses proposed (4.1s)

Only the stream that was given is written to, each row with one call. A row
says nothing that is not in the record, passes the redaction gate, and stays one
row whatever the record holds. A stream that is closed or broken stops neither
the loop nor the rows after it; `failures` counts the rows that were lost.
"""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO, cast

from spanfold.instrument import state

Row = Mapping[str, Any]

LABELS: Final[Mapping[str, str]] = {
    "M1": "probe",
    "M2": "explore",
    "M3": "diagnose",
    "M4": "verify",
    "M5": "intervene",
    "RUN": "loop",
}
FORCE_COLOR: Final = "EVALRX_FORCE_COLOR"
_LONGEST_HYPOTHESIS: Final = 70
_OK, _BAD = "✓", "✗"
_RESET: Final = "\x1b[0m"
_BADGE, _DIM, _GREEN, _RED = "\x1b[1m\x1b[36m", "\x1b[2m", "\x1b[32m", "\x1b[31m"
# What would start another row, move the cursor or colour the screen, made visible.
_UNPRINTABLE: Final = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))},
    **{ord(char): " " for char in "\t\n\r\x0b\x0c\x85\u2028\u2029"},
}


class LoopNarrator:
    """Writes rows about the events of a loop."""

    failures: int
    """Rows that could not be written."""

    def __init__(
        self,
        *,
        stream: TextIO | None = None,
        color: bool | None = None,
        scrub: Callable[[str], str] | None = None,
    ) -> None:
        """Narrate onto a stream.

        Args:
            stream: Where rows go; default the standard output of this moment.
            color: Whether rows are coloured. Default: not when `NO_COLOR` is set, else when
                `EVALRX_FORCE_COLOR` is not empty, else when the stream is a terminal.
            scrub: Takes the secrets out of a text; default the redaction gate of the process.
        """
        self.failures = 0
        self._stream = sys.stdout if stream is None else stream
        self._is_coloured = _wants_color(self._stream) if color is None else color
        self._scrub = scrub

    def on_run_start(self, entry: Row) -> None:
        """Tell that a run begins.

        Args:
            entry: The `run_start` record.
        """
        self._guarded("RUN", lambda: [_run_start(entry)])

    def on_run_event(self, key: str, record: Row) -> None:
        """Tell of an event of the run; only its end has a row.

        Args:
            key: Bucket of the record in `run.json`.
            record: The record.
        """
        if key == "loop_end":
            self._guarded("RUN", lambda: [_loop_end(record)])

    def on_event(self, stage: str, key: str, record: Row) -> None:
        """Tell of an event of a stage; buckets without a row are passed over.

        Args:
            stage: `M1` ... `M5`.
            key: Bucket of the record in the stage's document.
            record: The record.
        """
        if stage == "RUN" or stage not in LABELS:
            return
        if key == "fix":
            self._guarded(stage, lambda: _fix(record))
        elif key in _DETAILS:
            self._guarded(stage, lambda: [_DETAILS[key](stage, record)])

    def _guarded(self, stage: str, details: "Callable[[], list[_Detail]]") -> None:
        try:
            for detail in details():
                self._write(stage, detail)
        except Exception:  # a closed stream, or a record of another shape: a row lost, and nothing else
            self.failures += 1

    def _write(self, stage: str, detail: "_Detail") -> None:
        label = LABELS[stage]
        dots = "·" * max(4, 14 - len(label))
        shown = "".join(self._painted(self._clean(text), code) for text, code in detail)
        row = f"{self._painted(f'{stage:<3}', _BADGE)} {label:<12}{self._painted(dots, _DIM)} {shown}\n"
        try:
            self._stream.write(row)
        except UnicodeEncodeError:
            encoding = getattr(self._stream, "encoding", None) or "ascii"
            self._stream.write(row.encode(encoding, "replace").decode(encoding))
        self._stream.flush()

    def _painted(self, text: str, code: str) -> str:
        return f"{code}{text}{_RESET}" if text and code and self._is_coloured else text

    def _clean(self, text: str) -> str:
        return self._scrubbed(text).translate(_UNPRINTABLE)

    def _scrubbed(self, text: str) -> str:
        if self._scrub is not None:
            return self._scrub(text)
        state.ready()
        assert state.gate is not None
        return state.gate.scrub_text(text)


_Detail = list[tuple[str, str]]
"""Parts of a row with their colours."""


def _wants_color(stream: TextIO) -> bool:
    if "NO_COLOR" in os.environ:
        return False
    if os.environ.get(FORCE_COLOR):
        return True
    try:
        return stream.isatty()
    except (AttributeError, ValueError, OSError):  # no terminal has none, or is closed
        return False


# -- details of rows, pure


def _run_start(record: Row) -> _Detail:
    text = f"starting · model={record.get('model') or 'target model'}"
    n_cases = record.get("n_cases")
    return [(text if n_cases is None else f"{text} · n_cases={n_cases}", "")]


def _loop_end(record: Row) -> _Detail:
    parts = [f"done · {record.get('cycles', '?')} cycle(s)"]
    parts += [f"{key}={record[key]}" for key in ("resolved", "stopped_by") if key in record]
    n_hypotheses = record.get("n_hypotheses")
    if n_hypotheses is not None:
        parts.append(f"{n_hypotheses} {'hypothesis' if n_hypotheses == 1 else 'hypotheses'}")
    return [(" · ".join(parts), "")]


def _probe(_: str, record: Row) -> _Detail:
    count = len(record.get("analyzers") or ())
    return _timed(record, f"{count} {'analyzer' if count == 1 else 'analyzers'} run")


def _analysis(_: str, record: Row) -> _Detail:
    text = f"{record.get('n_findings', 0)} finding(s)"
    if record.get("severity"):
        text += f" · severity={record['severity']}"
    if record.get("figures"):
        text += f" · {len(record['figures'])} figure(s)"
    return _timed(record, text)


def _explore(_: str, record: Row) -> _Detail:
    return _timed(record, "explore report ready")


def _diagnosis(_: str, record: Row) -> _Detail:
    count = record.get("n_hypotheses", 0)
    return _timed(record, f"{count} falsifiable {'hypothesis' if count == 1 else 'hypotheses'} proposed")


def _surgery(stage: str, record: Row) -> _Detail:
    is_ok = record.get("status") == "supported" if stage == "M4" else bool(record.get("fixed"))
    text = str(record.get("hypothesis") or "")
    if len(text) > _LONGEST_HYPOTHESIS:
        text = f"{text[: _LONGEST_HYPOTHESIS - 3]}..."
    return [(_cycle(record), ""), _mark(is_ok), (f" {text} — {record.get('status') or '?'}", ""), _seconds(record)]


def _experiment(_: str, record: Row) -> _Detail:
    outcome = record.get("verdict") or record.get("status") or "?"
    return [(_cycle(record), ""), _mark(bool(record.get("fixed"))), (f" repair experiment — {outcome}", "")]


_DETAILS: Final[Mapping[str, Callable[[str, Row], _Detail]]] = {
    "probe": _probe,
    "analysis": _analysis,
    "explore": _explore,
    "diagnosis": _diagnosis,
    "surgery": _surgery,
    "experiment": _experiment,
}


def _fix(record: Row) -> list[_Detail]:
    attempted = [cast("Row", row) for row in record.get("attempted") or () if isinstance(row, Mapping)]
    rows = [_attempt(row) for row in attempted]
    best: Any = record.get("best")
    found: Row = cast("Row", best) if isinstance(best, Mapping) else {"name": best}
    if not found.get("name"):
        return [*rows, [(f"{len(attempted)} candidate(s) tried — none selected", "")]]
    effect = found.get("effect")
    gain = f" Δ={effect:+.3f}" if isinstance(effect, int | float) else ""
    return [*rows, [(f"best: {found['name']}{gain} {_counts(found)}", "")]]


def _attempt(row: Row) -> _Detail:
    effect = row.get("effect")
    shown = f"{effect:+.3f}" if isinstance(effect, int | float) else "?"
    tier = row.get("tier", "?")
    return [
        (str(tier), _DIM if tier else ""),
        (f" {row.get('name', '?')}  ", ""),
        _mark(bool(row.get("fixed"))),
        (f" {shown} {_counts(row)}", ""),
    ]


def _counts(row: Row) -> str:
    fixed, broken = ("n/a" if row.get(key) is None else row[key] for key in ("n_fixed", "n_broken"))
    return f"(n_fixed={fixed}, n_broken={broken})"


def _mark(is_ok: bool) -> tuple[str, str]:
    return (_OK, _GREEN) if is_ok else (_BAD, _RED)


def _cycle(record: Row) -> str:
    cycle = record.get("cycle")
    return "" if cycle is None or cycle == -1 else f"cycle {cycle} · "


def _seconds(record: Row) -> tuple[str, str]:
    seconds = record.get("duration_sec")
    return (f" ({seconds:.1f}s)" if isinstance(seconds, int | float) else "", _DIM)


def _timed(record: Row, text: str) -> _Detail:
    return [(_cycle(record) + text, ""), _seconds(record)]
