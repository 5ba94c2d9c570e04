"""What became of a request, and what answers mean: the one place that reads status codes.

OTLP says which answers may be tried again (429, 502, 503, 504 and some gRPC
codes). All others are either about the records (these are refused for good),
about the address or the credentials (the records wait until somebody has
mended that), or a fault of the server, which only a comparison can tell from a
record that breaks it.
"""

import json
import math
import re
import time
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, NamedTuple, cast

Result = Literal["accepted", "retry", "refused", "too_large", "broken"]
"""`broken`: the peer failed, for no reason that it would name; the same request is not sent again by itself."""

RETRYABLE_HTTP: Final = frozenset({429, 502, 503, 504})
NOT_ITS_FAULT_HTTP: Final = frozenset({401, 403, 404, 405, 407, 415})
"""Answers about the address or the credentials, and not about the records: these wait until somebody has mended that."""
NOT_ITS_FAULT_GRPC: Final = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED", "NOT_FOUND"})
RETRYABLE_GRPC: Final = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
BROKEN_GRPC: Final = frozenset({"INTERNAL", "UNKNOWN"})
_SIZE_GRPC: Final = frozenset({"RESOURCE_EXHAUSTED", "OUT_OF_RANGE"})
"""Codes by which gRPC servers say that a message is over their limit; only the text tells it from a quota."""
_SAYS_SIZE: Final = re.compile(r"larger than|too large|exceeds? (the )?max|message size", re.IGNORECASE)


class Answer(NamedTuple):
    """What became of a request."""

    result: Result
    reason: str = ""
    """Never contains a value of a record."""
    retry_after_s: float | None = None
    """Seconds to wait at least; infinite when another try is useless until somebody asks for it."""
    rejected: int = 0
    """Records a partial success rejected; they must not be sent again."""
    may_be_too_much: bool = False
    """Whether the request may have been too large for its line, or for a peer that does not say so."""


def no_answer(error: Exception, advice: str = "") -> Answer:
    """Return the answer for a request that got none, with what to do about it where that can be guessed."""
    told = f"no answer: {type(error).__name__}"
    may_be_too_much = type(error) in (TimeoutError, ConnectionResetError, BrokenPipeError)
    return Answer("retry", f"{told}; {advice}" if advice else told, may_be_too_much=may_be_too_much)


def judge_http(status: int, content_type: str, retry_after: str, content: bytes) -> Answer:
    """Return what an answer of OTLP/HTTP means (OTLP 1.x, section "OTLP/HTTP Response")."""
    if status in (200, 202):
        return _judge_success(content_type, content)
    return judge_status(status, retry_after)


def judge_status(status: int, retry_after: str) -> Answer:
    """Return what a status other than success means."""
    reason = f"HTTP {status}"
    if status in RETRYABLE_HTTP:
        return Answer("retry", reason, _seconds(retry_after))
    if status >= 500:
        return Answer("broken", reason)
    if status < 400 or status in NOT_ITS_FAULT_HTTP:
        return Answer("retry", reason, math.inf)
    return Answer("too_large" if status == 413 else "refused", reason)


def judge_grpc(code: str, details: str, retry_delay_s: float | None) -> Answer:
    """Return what a gRPC status other than OK means.

    Args:
        code: Its name.
        details: What the server says of it; only looked at, never passed on.
        retry_delay_s: From the `RetryInfo` of the status, when there is one.
    """
    reason = f"gRPC {code}"
    if code in _SIZE_GRPC and _SAYS_SIZE.search(details):
        return Answer("too_large", reason)
    may_be_too_much = code == "DEADLINE_EXCEEDED"
    if retry_delay_s is not None and (code in RETRYABLE_GRPC or code == "RESOURCE_EXHAUSTED"):
        return Answer("retry", reason, retry_delay_s, may_be_too_much=may_be_too_much)
    if code == "RESOURCE_EXHAUSTED" or code in NOT_ITS_FAULT_GRPC:
        # A quota without RetryInfo is not retryable for OTLP, and no fault of the records.
        return Answer("retry", reason, math.inf)
    if code in RETRYABLE_GRPC:
        return Answer("retry", reason, may_be_too_much=may_be_too_much)
    return Answer("broken" if code in BROKEN_GRPC else "refused", reason)


def partial_success(rejected: int, message: str) -> Answer:
    """Return the answer for a success that may have rejected some of the spans."""
    rejected = max(0, rejected)
    reason = f"partial success: {rejected} rejected, {len(message)} characters of reason" if rejected else ""
    return Answer("accepted", reason, rejected=rejected)


def _judge_success(content_type: str, content: bytes) -> Answer:
    """Read the body of a 200: a partial success rejects spans, and an answer that is no OTLP proves nothing.

    Langfuse answers with JSON of its own, and an empty body is an empty message.
    """
    if not content:
        return Answer("accepted")
    if content_type == "application/json":
        try:
            tree: Any = json.loads(content)
        except (ValueError, RecursionError):
            return Answer("retry", "HTTP 200 with a body that is not JSON")
        return _judge_json(tree)
    if content_type == "application/x-protobuf":
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        try:
            decoded = ExportTraceServiceResponse.FromString(content).partial_success
        except DecodeError:
            return Answer("retry", "HTTP 200 with a body that is not an OTLP response")
        return partial_success(decoded.rejected_spans, decoded.error_message)
    return Answer("retry", f"HTTP 200 with a body of type {content_type[:60]}, not an OTLP response")


def _judge_json(tree: object) -> Answer:
    partial = cast("dict[str, object]", tree).get("partialSuccess") if isinstance(tree, dict) else None
    if not isinstance(partial, dict):
        return Answer("accepted")
    told = cast("dict[str, object]", partial)
    try:
        # An int64 in protobuf's JSON: a text, and a number from peers that know no better.
        rejected = int(str(told.get("rejectedSpans") or 0))
    except ValueError:
        return Answer("retry", "HTTP 200 with a partial success that cannot be read")
    return partial_success(rejected, str(told.get("errorMessage") or ""))


def _seconds(text: str) -> float | None:
    """Read a Retry-After: seconds or a date."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MAX_RETRY_AFTER_S)
    try:
        return min(max(0.0, parsedate_to_datetime(text).timestamp() - time.time()), MAX_RETRY_AFTER_S)
    except (TypeError, ValueError, OverflowError):
        return None


MAX_RETRY_AFTER_S: Final = 24 * 3600.0
"""A peer that asks for a longer wait is asked again after a day."""
