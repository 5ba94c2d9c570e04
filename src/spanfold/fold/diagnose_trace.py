"""`langfuse_trace.json` of a diagnose loop: spans, generations and scores as its contract names them (DL 7, 10.2, 10.4).

Each event of the loop that has a trace record says everything that record
needs, so the trace is made from the same spans as the documents. Times are the
true ones; ids are those of OpenTelemetry.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from spanfold import names
from spanfold.fold._encoding import encode, item
from spanfold.fold.composing import joined_list, joined_object
from spanfold.fold.diagnose import adopted_records
from spanfold.fold.diagnose_shown import EVENTS, Generation, Score, Shown
from spanfold.fold.entry import Entry
from spanfold.fold.family import Composition, Output, Urgency
from spanfold.fold.run_state import RunState
from spanfold.fold.trace_bundle import DOCUMENT, GENERATIONS, SCORES, SPANS
from spanfold.model import Span
from spanfold.moments import epoch_seconds

CALLS_SHOWN: Final = 50
"""Generations shown of one analyzer of one probe (DL 7.9); its span tells the true number."""
_ANALYZERS: Final = 1_024
"""Analyzers whose model calls are counted at a time."""
_NO_RESULT: Final = "model calls of an analyzer that has no result"

_Row = dict[str, Any]


class DiagnoseTraceFamily:
    """Keeps spans, generations and scores of a diagnose loop ready; the document itself is one for the end."""

    name = "diagnose_trace"

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._start: _Row = {}
        self._calls: dict[str, int] = {}
        """Span id of an analyzer -> its model calls so far, of those that were called last.

        Not until its end: where that is the time of its last call, either may come first.
        """

    def begin(self, out: Output) -> None:
        """Do nothing: the document appears at the end."""

    def fold(self, entry: Entry, out: Output) -> None:
        """Add what the trace shows of an event."""
        event = entry.attributes.get(names.DL_EVENT)
        if type(event) is not str:
            return
        if event == "run_start":
            self._start = _trace_metadata(entry)
        elif event == "model_call":
            self._call(entry, out)
        elif event == "adopted":
            for adopted in adopted_records(entry):
                self._adopt(adopted)
        elif entry.span is not None:
            self._event(event, entry, entry.span, out)

    def finish(self, out: Output) -> None:
        """Do nothing: the trace bundle has the document written."""

    def _adopt(self, adopted: Mapping[str, Any]) -> None:
        """Take over what the trace of another logger is about; its spans, generations and scores are items already."""
        value = adopted.get("record")
        if adopted.get("document") == DOCUMENT and adopted.get("bucket") == "trace" and isinstance(value, dict):
            metadata = cast("_Row", value).get("metadata")
            self._start = dict(cast("_Row", metadata)) if isinstance(metadata, dict) else {}

    def _call(self, entry: Entry, out: Output) -> None:
        span = entry.span
        if span is None or "analyzer" not in entry.fields:
            return
        above = span.parent_span_id
        count = self._calls.pop(above, 0) + 1
        self._calls[above] = count
        if len(self._calls) > _ANALYZERS:
            del self._calls[next(iter(self._calls))]
        if count > CALLS_SHOWN:
            return
        fields = entry.fields
        error = fields.get("error")
        shown = Generation(
            f"{fields.get('analyzer')} · {fields.get('method')} #{fields.get('call_index')}",
            "target_model",
            entry.input,
            entry.output if error is None else error,
            {"duration_sec": fields.get("duration_sec"), "error": error},
        )
        self._generate(shown, entry, above, span.span_id, out)

    def _event(self, event: str, entry: Entry, span: Span, out: Output) -> None:
        if event == "analyzer":
            shown = self._analyzer(entry, span)
        elif event == "stage":
            shown = Shown(f"{entry.stage}: without a result", str(entry.stage))
        else:
            show = EVENTS.get(event)
            if show is None:
                return
            record = dict(entry.fields)
            # What the loop measured, not rounded; a stage it did not time has no duration.
            record["duration_sec"] = entry.seconds if "duration_sec" in record else None
            shown = show(record, str(self._start.get("judge") or "diagnosis_judge"))
        row = {
            "id": span.span_id,
            "trace_id": self._run.document_trace_id,
            "parent_id": self._parent(span),
            "name": shown.name,
            "stage": shown.stage,
            "start_time": epoch_seconds(span.start_ns),
            "input": shown.input,
            "metadata": shown.metadata,
            "status": "failed" if span.status_code == 2 else shown.status,
            "end_time": epoch_seconds(span.end_ns),
            "duration_sec": entry.seconds,
            "output": shown.output,
        }
        out.append(DOCUMENT, SPANS, item(row), Urgency.LAST)
        for number, generation in enumerate(shown.generations):
            digest = hashlib.sha256(f"{span.span_id}:{number}".encode()).hexdigest()
            self._generate(generation, entry, span.span_id, digest[:16], out)
        for score in shown.scores:
            self._score(score, entry, span.span_id, out)

    def _parent(self, span: Span) -> str | None:
        """Return the parent of a span; stages stand right under the trace."""
        return span.parent_span_id if span.parent_span_id and span.parent_span_id != self._run.root_id else None

    def _analyzer(self, entry: Entry, span: Span) -> Shown:
        fields = entry.fields
        name = fields.get("diagnose.analyzer")
        calls = self._calls.get(span.span_id, 0)
        is_failed = span.status_code == 2
        stage, given = f"M1_{name}", {"probe": name}
        if "diagnose.findings" not in fields:
            title = f"Probe: {name}{' (failed)' if is_failed else ''}"
            return Shown(title, stage, given, {"note": _NO_RESULT}, {"n_model_calls": calls})
        output = {"findings": fields["diagnose.findings"], "n_model_calls": calls}
        return Shown(f"Probe: {name}", stage, given, {"n_scored": fields.get("diagnose.n_scored")}, output)

    def _generate(self, shown: Generation, entry: Entry, span_id: str, digest: str, out: Output) -> None:
        row = {
            "id": f"gen_{digest}",
            "trace_id": self._run.document_trace_id,
            "span_id": span_id,
            "name": shown.name,
            "model": shown.model,
            "prompt": shown.prompt,
            "completion": shown.completion,
            "usage": entry.usage if shown.model == "target_model" else {},
            "metadata": shown.metadata,
            "timestamp": epoch_seconds(entry.record.time_ns),
        }
        out.append(DOCUMENT, GENERATIONS, item(row), Urgency.LAST)

    def _score(self, shown: Score, entry: Entry, span_id: str, out: Output) -> None:
        value = _number(shown.value)
        if value is None:
            return
        row = {
            "name": shown.name,
            "value": value,
            "comment": shown.comment,
            "span_id": span_id,
            "timestamp": epoch_seconds(entry.record.time_ns),
        }
        out.append(DOCUMENT, SCORES, item(row), Urgency.LAST)

    # -- the document

    def compose(self, document: str, buckets: Sequence[str]) -> Composition | None:
        """Return the trace."""
        if document != DOCUMENT or not self._run.is_diagnose:
            return None
        return joined_object(self._keys(buckets))

    def _keys(self, buckets: Sequence[str]) -> Iterator[tuple[str, Composition]]:
        model = self._start.get("model")
        trace = {
            "id": self._run.document_trace_id,
            "name": f"EvalRX: {model or 'Model'}",
            "metadata": self._start,
            "duration_sec": self._run.seconds,
        }
        yield "trace", (encode(trace, 1),)
        for bucket in (SPANS, GENERATIONS, SCORES, "events"):
            yield bucket, joined_list(bucket, buckets)

    def state(self) -> Mapping[str, Any]:
        """Return what the family remembers, as JSON data."""
        return {"start": self._start, "calls": self._calls}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._start, self._calls = dict(state["start"]), dict(state["calls"])


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def _trace_metadata(entry: Entry) -> _Row:
    """Return the metadata of the trace: what it is about, then the run-start record (DL 7.1)."""
    record = {key: value for key, value in entry.fields.items() if key not in names.DL_OWN}
    protocol = record.get("protocol")
    if isinstance(protocol, dict):
        protocol = cast("_Row", protocol).get("description")
    n_cases = _number(record.get("n_cases"))
    return {
        "model": str(record.get("model") or "Target Model"),
        "benchmark": str(record.get("benchmark_name") or protocol or "Benchmark"),
        "n_cases": int(n_cases) if n_cases is not None else 0,
        "created_at": epoch_seconds(entry.record.time_ns),
        "ts": record.pop("ts", entry.ts),
        **record,
    }
