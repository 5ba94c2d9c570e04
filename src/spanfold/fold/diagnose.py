"""Documents of the diagnose-loop recorder: `run.json` and `M1/log.json` to `M5/log.json`, field for field (DL 3, 4, 7).

A record of the journal that stands for an event of the loop names it
(`names.DL_EVENT`) and carries its payload as fields, in the order of the
contract. Here it gets what only the whole run knows: the sequence number, the
label, and the counters of model calls. `spanfold.json` holds what spanfold itself
knows of such a run, since `run.json` has only what the contract says.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from spanfold import names
from spanfold.fold._encoding import encode, item
from spanfold.fold.composing import joined_list, joined_object
from spanfold.fold.entry import Entry, loaded
from spanfold.fold.family import Composition, Output, Urgency
from spanfold.fold.run_state import RunState
from spanfold.fold.trace_bundle import DOCUMENT as TRACE
from spanfold.routing import RUN_DOCUMENT, RUN_FACTS, RUN_LABEL, STAGES

EVENTS_TO_BUCKETS: Final[Mapping[str, str]] = {
    "case_record": "cases",
    "model_call": "model_calls",
    "diagnose_report": "diagnose_reports",
    "agent_decision": "agent_decisions",
    "agent_tool": "agent_tool_calls",
}
"""Event name -> bucket, where they differ (DL 4.1)."""
BUCKETS_TO_EVENTS: Final = {bucket: event for event, bucket in EVENTS_TO_BUCKETS.items()}
RUN_BUCKETS: Final = ("cases", "report_published", "diagnose_reports")
LATER_RUN_BUCKETS: Final = ("loop_end", "agent_decisions", "agent_tool_calls", "unrouted")
_STARTS: Final = "run_starts"
_VALUES: Final = frozenset({"manifest", "runtime_snapshot"})
"""What is no event: a value of run.json, replaced each time (DL 7.5, 7.6)."""
NOT_IN_DOCUMENTS: Final = frozenset({"analyzer", "stage", "artifact"})
"""Spans that only the trace shows: an analyzer of a probe, a stage whose result was never told. And the hashes of files."""
LATER_EVENTS: Final = frozenset({"model_call", "case_record"})
"""Events that may be in their document up to a second later (DL 17, A-01)."""

_SPAN_IDS: Final[Mapping[str, Callable[[str, str, dict[str, Any]], str]]] = {
    "run_start": lambda cycle, stage, record: "run_start",
    "probe": lambda cycle, stage, record: f"c{cycle}.m1",
    "analysis": lambda cycle, stage, record: f"c{cycle}.m2",
    "diagnosis": lambda cycle, stage, record: f"c{cycle}.m3",
    "explore": lambda cycle, stage, record: f"c{cycle}.explore",
    "surgery": lambda cycle, stage, record: f"c{cycle}.{stage}",
    "fix": lambda cycle, stage, record: "fix",
    "agent_decision": lambda cycle, stage, record: f"s{record.get('step')}.decision",
    "agent_tool": lambda cycle, stage, record: f"s{record.get('step')}.tool",
    "stage_skipped": lambda cycle, stage, record: f"{stage}.skipped",
}
"""Event -> its label (DL 4.2); every other event has `<stage>.<event>.<event_seq>`."""


class DiagnoseFamily:
    """Folds the events of a diagnose loop."""

    name = "diagnose"

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._seq = 0
        self._model_calls = 0
        self._since_probe = 0
        """Model calls since the last probe (DL 7.9)."""
        self._run_start: bytes | None = None
        self._starts = 0
        self._values: dict[str, bytes] = {}

    def begin(self, out: Output) -> None:
        """Do nothing: run.json exists from the start anyway."""

    def fold(self, entry: Entry, out: Output) -> None:
        """Add an event of the loop to its document."""
        event = entry.attributes.get(names.DL_EVENT)
        if type(event) is not str or event in NOT_IN_DOCUMENTS:
            return
        if event in _VALUES:
            self._values[event] = encode(entry.fields.get("diagnose.value"), 1)
            out.touch(RUN_DOCUMENT, Urgency.NOW)
            return
        if event == "adopted":
            for adopted in adopted_records(entry):
                self._adopt(adopted, out)
            return
        stage = entry.stage if entry.stage in STAGES else RUN_LABEL
        record = self._stamped(entry, event, stage)
        if event == "run_start":
            self._started(record, out)
            return
        document = RUN_DOCUMENT if stage == RUN_LABEL else f"{stage}/log.json"
        urgency = Urgency.LATER if event in LATER_EVENTS else Urgency.NOW
        out.append(document, EVENTS_TO_BUCKETS.get(event, event), item(record), urgency)

    def finish(self, out: Output) -> None:
        """Have every document of the layout, and what spanfold knows of the run."""
        if self._run.is_diagnose:
            for stage in STAGES:
                out.touch(f"{stage}/log.json", Urgency.NOW)
            out.touch(RUN_FACTS, Urgency.NOW)

    def _started(self, record: dict[str, Any], out: Output) -> None:
        self._starts += 1
        self._run_start = encode(record, 1)
        out.append(RUN_DOCUMENT, _STARTS, item(record), Urgency.NOW)

    def _adopt(self, adopted: Mapping[str, Any], out: Output) -> None:
        """Take over a value of a document that another logger wrote, as it is."""
        document, bucket = adopted.get("document"), adopted.get("bucket")
        value = adopted.get("record")
        if type(document) is not str or type(bucket) is not str:
            return
        record = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if type(seq := record.get("event_seq")) is int:
            self._seq = max(self._seq, seq)
        if adopted.get("is_item"):
            urgency = Urgency.LAST if document == TRACE else Urgency.NOW
            out.append(document, bucket, b",\n    " + encode(value, 2), urgency)
        elif document == RUN_DOCUMENT and bucket == "run_start" and record:
            self._started(record, out)
        elif document == RUN_DOCUMENT and bucket in _VALUES:
            self._values[bucket] = encode(value, 1)
            out.touch(RUN_DOCUMENT, Urgency.NOW)

    # -- records

    def _stamped(self, entry: Entry, event: str, stage: str) -> dict[str, Any]:
        """Return the record of an event with its envelope (DL 4.4)."""
        self._seq += 1
        record = self._payload(entry, event)
        label = _SPAN_IDS.get(event)
        cycle = record.get("cycle")
        record["event"] = event
        record["schema_version"] = names.DL_SCHEMA_VERSION
        record["trace_id"] = self._run.document_trace_id
        record["event_seq"] = self._seq
        record["stage"] = stage
        record["span_id"] = (
            label(str(-1 if cycle is None else cycle), stage.lower(), record)
            if label
            else f"{stage.lower()}.{event}.{self._seq}"
        )
        if event == "unrouted":
            record["original_event"] = BUCKETS_TO_EVENTS.get(record["key"], record["key"])
        record["otel_span_id"] = entry.record.span_id or None
        if entry.span is not None:
            record["otel_parent_span_id"] = entry.span.parent_span_id or None
        notes: dict[str, Any] = entry.fields.get("diagnose.notes") or {}
        if names.NOTES in entry.attributes:
            notes = {**notes, **loaded(entry.attributes[names.NOTES])}
        if notes:
            record["notes"] = notes
        return record

    def _payload(self, entry: Entry, event: str) -> dict[str, Any]:
        if event == "model_call":
            return self._model_call(entry, entry.fields)
        fields = {k: v for k, v in entry.fields.items() if k not in names.DL_OWN}
        ts = fields.pop("ts", entry.ts)
        if event == "unrouted":
            found = {"key": fields.pop("key", None), "tag": fields.pop("tag", None), "ts": ts}
            if "stage" in fields:
                found["stage"] = fields.pop("stage")
            return {**found, **fields}
        if event == "stage_skipped":
            return {"ts": ts, "stage": None, **fields}
        if event == "run_start":
            return {"ts": ts, "trace_id": None, **fields}
        if event == "probe":
            fields["n_model_calls"], self._since_probe = self._since_probe, 0
        return {"ts": ts, **fields}

    def _model_call(self, entry: Entry, fields: Mapping[str, Any]) -> dict[str, Any]:
        record: dict[str, Any] = {"ts": entry.ts, "cycle": fields.get("cycle")}
        if "role" in fields:
            record["role"], record["operation"] = fields["role"], fields.get("operation")
            record["inputs"], record["output"] = entry.input, entry.output
            record["error"], record["metadata"] = fields.get("error"), fields.get("metadata", {})
            if "duration_sec" in fields:
                record["duration_sec"] = fields["duration_sec"]
            return record
        self._model_calls += 1
        self._since_probe += 1
        batch: Any = fields.get("batch_case_ids", [])
        record["analyzer"], record["call_index"] = fields.get("analyzer"), fields.get("call_index")
        record["method"], record["case_id"] = fields.get("method"), fields.get("case_id")
        record["batch_case_ids"] = batch
        record["n_batch_cases"] = fields.get("n_batch_cases", sum(1 for _ in batch))
        record["inputs"], record["kwargs"], record["output"] = entry.input, fields.get("kwargs", {}), entry.output
        record["duration_sec"] = fields.get("duration_sec")
        if "error" in fields:
            record["error"] = fields["error"]
        record["seq"] = self._model_calls
        return record

    # -- documents

    def compose(self, document: str, buckets: Sequence[str]) -> Composition | None:
        """Return run.json, the document of a stage, or what spanfold knows of the run."""
        if not self._run.is_diagnose:
            return None
        if document == RUN_DOCUMENT:
            return joined_object(self._run_keys(buckets))
        if document == RUN_FACTS:
            return joined_object(self._fact_keys())
        if document.partition("/")[0] in STAGES:
            return joined_object((bucket, joined_list(bucket, buckets)) for bucket in buckets)
        return None

    def _run_keys(self, buckets: Sequence[str]) -> Iterator[tuple[str, Composition]]:
        yield "trace_id", (encode(self._run.document_trace_id),)
        yield "run_start", (self._run_start or b"null",)
        for bucket in RUN_BUCKETS:
            yield bucket, joined_list(bucket, buckets)
        yield "manifest", (self._values.get("manifest", b"null"),)
        for bucket in LATER_RUN_BUCKETS:
            yield bucket, joined_list(bucket, buckets)
        if "runtime_snapshot" in self._values:
            yield "runtime_snapshot", (self._values["runtime_snapshot"],)
        if self._starts > 1:
            yield _STARTS, joined_list(_STARTS, buckets)

    def _fact_keys(self) -> Iterator[tuple[str, Composition]]:
        run = self._run
        yield "run", joined_object(((key, (value,)) for key, value in run.shown().items()), 1)
        yield "open", joined_object(((key, (value,)) for key, value in run.open.items()), 1)

    # -- checkpoint

    def state(self) -> Mapping[str, Any]:
        """Return what the family remembers, as JSON data."""
        return {
            "counts": [self._seq, self._model_calls, self._since_probe, self._starts],
            "run_start": self._run_start and self._run_start.decode(),
            "values": {key: value.decode() for key, value in self._values.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._seq, self._model_calls, self._since_probe, self._starts = state["counts"]
        self._run_start = state["run_start"] and state["run_start"].encode()
        self._values = {key: value.encode() for key, value in state["values"].items()}


def adopted_records(entry: Entry) -> list[dict[str, Any]]:
    """Return what a record takes over from another logger: document, bucket and record of each, and whether it is an item."""
    found: Any = entry.fields.get("diagnose.records")
    if not isinstance(found, list):
        return []
    return [cast("dict[str, Any]", adopted) for adopted in cast("list[Any]", found) if isinstance(adopted, dict)]
