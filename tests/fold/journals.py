"""Journals written by hand, so that the fold is tested without the recorder."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from spanfold import names
from spanfold.journal import Encoder, JsonText, encode_messages, field_key, store

TRACE = "0af7651916cd43dd8448eb211c80319c"
START_NS = 1_769_850_307_000_123_456
"""2026-01-31T09:05:07.000123456Z."""
SECOND = 1_000_000_000
ROOT = "00000000000000aa"


def span_id(number: int) -> str:
    return f"{number:016x}"


class JournalFile:
    """One writer's file. Times are given in seconds after `START_NS`."""

    def __init__(self, folder: Path, writer: str = "20260131T090507Z-1-00000000") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{writer}.otlp.jsonl"
        self._encoder = Encoder(lambda key: False)
        self._seq = 0
        self._head = hashlib.sha256(f"{names.JOURNAL_FORMAT} {writer}".encode()).hexdigest()

    def line(self, signal: str, body: bytes, scope: str = names.SCOPE) -> bytes:
        group, scoped, items = (
            ("resourceSpans", "scopeSpans", "spans")
            if signal == "span"
            else ("resourceLogs", "scopeLogs", "logRecords")
        )
        self._seq += 1
        chain = f'{{"key":"{names.LINE_SEQ}","value":{{"intValue":"{self._seq}"}}}},{{"key":"{names.LINE_PREV}","value":{{"stringValue":"{self._head}"}}}}'
        line = (
            (
                f'{{"{group}":[{{"resource":{{"attributes":[]}},"{scoped}":[{{"scope":{{"name":{orjson.dumps(scope).decode()},'
                f'"version":"1","attributes":[{chain}]}},"{items}":['
            ).encode()
            + body
            + b'],"schemaUrl":"https://example.org"}]}]}\n'
        )
        self._head = hashlib.sha256(line).hexdigest()
        return line

    def put(self, line: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(line)

    def span(
        self,
        kind: str | None,
        name: str,
        number: int | str,
        *,
        start: float = 0,
        end: float = 1,
        parent: int | str = ROOT,
        attributes: Mapping[str, Any] | None = None,
        scope: str = names.SCOPE,
        write: bool = True,
        trace: str = TRACE,
        **rest: Any,
    ) -> bytes:
        given: dict[str, Any] = {} if kind is None else {names.KIND: kind}
        body, _ = self._encoder.span(
            trace_id=trace.encode(),
            span_id=_hex(number),
            parent_span_id=_hex(parent),
            name=name,
            otel_kind=1,
            start_ns=_at(start),
            end_ns=_at(end),
            attributes={**given, **(attributes or {})},
            **rest,
        )
        line = self.line("span", body, scope)
        if write:
            self.put(line)
        return line

    def event(
        self,
        name: str,
        *,
        at: float = 0,
        span: int | str = ROOT,
        attributes: Mapping[str, Any] | None = None,
        write: bool = True,
        trace: str = TRACE,
        severity: int = 9,
    ) -> bytes:
        body, _ = self._encoder.event(
            trace_id=trace.encode(),
            span_id=_hex(span),
            name=name,
            time_ns=_at(at),
            attributes=dict(attributes or {}),
            severity=severity,
        )
        line = self.line("event", body)
        if write:
            self.put(line)
        return line

    # -- what the recorder writes

    def run_started(self, name: str = "digits", at: float = 0, **fields: Any) -> None:
        facts = {"python_version": "3.11.9", "host": "h1", "pid": 41, **fields}
        self.event(
            names.EVENT_STARTED,
            at=at,
            span=ROOT,
            attributes={
                names.SPAN_NAME: name,
                names.KIND: "run",
                names.DEPTH: 0,
                names.RUN_ID: name,
                **set_fields(facts),
            },
        )

    def run_ended(self, name: str = "digits", end: float = 100, status_code: int = 0, **fields: Any) -> None:
        self.span(
            "run",
            name,
            ROOT,
            parent="",
            end=end,
            attributes={names.DEPTH: 0, names.SELF_NS: 5 * SECOND, names.RUN_ID: name, **set_fields(fields)},
            status_code=status_code,
        )

    def started(
        self, kind: str, name: str, number: int, *, at: float = 0, stage: str | None = None, **fields: Any
    ) -> None:
        attributes: dict[str, Any] = {names.SPAN_NAME: name, names.KIND: kind, names.SPAN_PARENT: ROOT}
        if stage is not None:
            attributes[names.STAGE] = stage
        self.event(names.EVENT_STARTED, at=at, span=number, attributes={**attributes, **set_fields(fields)})

    def model_call(
        self, number: int, *, stage: str | None = "M2", prompt: Any = "Hi", answer: Any = "Hello", **rest: Any
    ) -> bytes:
        attributes: dict[str, Any] = {} if stage is None else {names.STAGE: stage}
        attributes |= {
            names.GENAI_OPERATION: "chat",
            names.GENAI_PROVIDER: "openai",
            names.GENAI_MODEL: "some-model",
            **content(names.GENAI_INPUT, names.INPUT_FORM, prompt, "user"),
            **content(names.GENAI_OUTPUT, names.OUTPUT_FORM, answer, "assistant"),
            names.GENAI_INPUT_TOKENS: 12,
            names.GENAI_OUTPUT_TOKENS: 3,
        }
        attributes |= rest.pop("attributes", {})
        return self.span("model_call", "chat some-model", number, attributes=attributes, **rest)

    def stage(self, name: str, number: int, cycle: int | None = None, **rest: Any) -> bytes:
        attributes: dict[str, Any] = {names.STAGE: name}
        if cycle is not None:
            attributes[names.CYCLE] = cycle
        return self.span("stage", name, number, attributes={**attributes, **rest.pop("attributes", {})}, **rest)


def set_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {field_key(name): store(value)[0] for name, value in fields.items()}


def content(key: str, form: str, value: Any, role: str) -> dict[str, Any]:
    encoded = encode_messages(value, role)
    assert encoded is not None
    return {key: encoded[0], form: encoded[1]}


def json_text(value: Any) -> JsonText:
    return JsonText(orjson.dumps(value).decode())


def documents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder that is neither journal nor the fold's own."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] not in ("journal", ".fold")
    }


def _at(seconds: float) -> int:
    return START_NS + round(seconds * SECOND)


def _hex(number: int | str) -> bytes:
    return (span_id(number) if isinstance(number, int) else number).encode()
