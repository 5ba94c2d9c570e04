"""The constant part of journal lines: resource, scope and schema, encoded once.

A line is `head`, sequence number, `MIDDLE`, hash of the line before,
`opening`, the record, `tail`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from spanfold import names
from spanfold.journal._core import Encoder
from spanfold.journal._scrub import Gate, scrub_attributes, scrub_name

_END: Final = {"span": b'"}}]},"spans":[', "event": b'"}}]},"logRecords":['}
_MAX_FRAMES: Final = 256


class Frame(NamedTuple):
    """The constant bytes of a line: before its sequence number, between chain and record, after the record."""

    head: bytes
    opening: bytes
    tail: bytes


class Frames:
    """Makes the frames of one journal in one process, and remembers them.

    Args:
        encoder: Encodes the resource attributes.
        gate: Every string of a frame passes it.
        resource: Returns the resource attributes of this process.
        version: Version on our instrumentation scope.
    """

    def __init__(self, encoder: Encoder, gate: Gate, resource: Callable[[], Mapping[str, Any]], version: str) -> None:
        self._encoder = encoder
        self._gate = gate
        self._resource = resource
        self._version = version
        self._known: dict[Any, Frame] = {}
        self._resources: list[Any] = []

    def of(
        self,
        signal: str,
        *,
        scope_name: str,
        scope_version: str | None,
        resource: Mapping[str, Any] | None,
        schema_url: str,
    ) -> Frame:
        """Return a frame; arguments as of `Journal.frame`."""
        version = self._version if scope_version is None else scope_version
        key = (signal, scope_name, version, None if resource is None else id(resource), schema_url)
        if (known := self._known.get(key)) is not None:
            return known
        gate = self._gate
        found = self._resource() if resource is None else resource
        pairs = scrub_attributes(orjson.loads(b"[%b]" % self._encoder.attributes(found)), gate)
        group, scoped = ("resourceSpans", "scopeSpans") if signal == "span" else ("resourceLogs", "scopeLogs")
        clean = version if scope_version is None else gate.scrub_text(version)
        head = (
            f'{{"{group}":[{{"resource":{{"attributes":{_json(pairs)}}},"{scoped}":[{{"scope":{{'
            f'"name":{_json(scrub_name(scope_name, gate))},"version":{_json(clean)},'
            f'"attributes":[{{"key":"{names.LINE_SEQ}","value":{{"intValue":"'
        )
        schema = f',"schemaUrl":{_json(scrub_name(schema_url, gate))}' if schema_url else ""
        frame = Frame(head.encode(), _END[signal], f"]{schema}}}]}}]}}\n".encode())
        if len(self._known) < _MAX_FRAMES:
            self._known[key] = frame
            self._resources.append(resource)  # an id is only a key while its object lives
        return frame


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
