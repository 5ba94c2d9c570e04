"""`langfuse_trace.json`: the whole run as one trace (DL 10.4), written when a run is folded to its end."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from spanfold import names
from spanfold.fold._encoding import encode, item
from spanfold.fold.composing import joined_list, joined_object
from spanfold.fold.entry import SCORE, Entry
from spanfold.fold.family import Composition, Output, Urgency
from spanfold.fold.run_state import RunState, ending
from spanfold.model import Span
from spanfold.moments import epoch_seconds
from spanfold.routing import place

DOCUMENT: Final = "langfuse_trace.json"
SPANS: Final = "spans"
GENERATIONS: Final = "generations"
SCORES: Final = "scores"


class TraceBundleFamily:
    """Keeps spans, generations and scores ready; the document itself is one for the end."""

    name = "trace_bundle"

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._metadata: bytes | None = None
        self._labels: dict[str | None, str] = {}

    def begin(self, out: Output) -> None:
        """Do nothing: the document appears at the end."""

    def fold(self, entry: Entry, out: Output) -> None:
        """Add the span, generation or score a record stands for."""
        if names.DL_EVENT in entry.attributes:
            return  # `diagnose_trace` knows how its contract shows it
        if self._metadata is None and self._run.is_root(entry):
            start_ns = self._run.start_ns
            self._metadata = encode({**entry.fields, "created_at": epoch_seconds(start_ns)}, 2)
        if entry.kind == SCORE:
            out.append(DOCUMENT, SCORES, item(_score(entry)), Urgency.LAST)
        elif entry.span is not None and entry.kind not in ("", "run"):
            if entry.kind == "model_call":
                out.append(DOCUMENT, GENERATIONS, item(self._generation(entry, entry.span)), Urgency.LAST)
            else:
                out.append(DOCUMENT, SPANS, item(self._span(entry, entry.span)), Urgency.LAST)

    def finish(self, out: Output) -> None:
        """Have the document written."""
        out.touch(DOCUMENT, Urgency.NOW)

    def compose(self, document: str, buckets: Sequence[str]) -> Composition | None:
        """Return the trace."""
        return joined_object(self._keys(buckets)) if document == DOCUMENT else None

    def _keys(self, buckets: Sequence[str]) -> Iterator[tuple[str, Composition]]:
        run = self._run
        trace = {
            "id": encode(run.trace_id),
            "name": encode(run.name),
            "metadata": self._metadata or b"{}",
            "duration_sec": encode(run.seconds),
        }
        yield "trace", joined_object(((key, (value,)) for key, value in trace.items()), 1)
        for bucket in (SPANS, GENERATIONS, SCORES, "events"):
            yield bucket, joined_list(bucket, buckets)

    def state(self) -> Mapping[str, Any]:
        """Return what the family remembers, as JSON data."""
        return {"metadata": self._metadata and self._metadata.decode()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._metadata = state["metadata"] and state["metadata"].encode()

    # -- records (DL 10.2)

    def _label(self, stage: str | None) -> str:
        label = self._labels.get(stage)
        if label is None:
            if len(self._labels) >= 1024:
                self._labels.clear()
            label = self._labels[stage] = place(stage).label
        return label

    def _span(self, entry: Entry, span: Span) -> dict[str, Any]:
        given, result = _input(entry), _output(entry)
        return {
            "id": span.span_id,
            "trace_id": span.trace_id,
            "parent_id": span.parent_span_id or None,
            "name": span.name,
            "stage": self._label(entry.stage),
            "start_time": epoch_seconds(span.start_ns),
            "input": given,
            "metadata": {"kind": entry.kind, **entry.fields},
            "status": "failed" if span.status_code == 2 else "completed",
            "end_time": epoch_seconds(span.end_ns),
            "duration_sec": entry.seconds,
            "output": result,
            **ending(entry, span),
        }

    def _generation(self, entry: Entry, span: Span) -> dict[str, Any]:
        return {
            "id": span.span_id,
            "trace_id": span.trace_id,
            "span_id": span.parent_span_id or None,
            "name": span.name,
            "model": entry.value(names.GENAI_MODEL),
            "prompt": entry.input,
            "completion": entry.output,
            "usage": entry.usage,
            "metadata": {
                "stage": self._label(entry.stage),
                **entry.fields,
                **({"wrapped": True} if entry.wrapped else {}),
            },
            "timestamp": epoch_seconds(span.end_ns),
            "start_time": epoch_seconds(span.start_ns),
            "duration_sec": entry.seconds,
            "status": "failed" if span.status_code == 2 else "completed",
            **ending(entry, span),
        }


def _score(entry: Entry) -> dict[str, Any]:
    comment = entry.value(names.SCORE_COMMENT)
    return {
        "name": entry.value(names.SCORE_NAME),
        "value": entry.value(names.SCORE_VALUE),
        "comment": "" if comment is None else comment,
        "span_id": entry.record.span_id or None,
        "timestamp": epoch_seconds(entry.record.time_ns),
    }


def _input(entry: Entry) -> Any:
    if names.GENAI_TOOL_ARGUMENTS in entry.attributes:
        return entry.parsed(names.GENAI_TOOL_ARGUMENTS)
    return entry.input


def _output(entry: Entry) -> Any:
    if names.GENAI_TOOL_RESULT in entry.attributes:
        return entry.parsed(names.GENAI_TOOL_RESULT)
    return entry.output
