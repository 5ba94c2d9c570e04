"""Send one request and say what became of it, within a deadline.

HTTP by the standard library's client and not by the official exporter: that one
takes every answer from 200 to 399 for success, does not read partial success,
and decides by itself when to give up (facts 6.4), so it cannot tell what
arrived. gRPC by the official stubs.
"""

import gzip
import http.client
import json
import math
import ssl
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast
from urllib.parse import urlsplit

from spanfold.deliver._destination import Destination
from spanfold.deliver._encode import otlp_json

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Result = Literal["accepted", "retry", "refused", "too_large"]
RETRYABLE_HTTP: Final = frozenset({429, 502, 503, 504})
NOT_ITS_FAULT_HTTP: Final = frozenset({401, 403, 404, 405, 407, 415})
"""Answers about the address or the credentials, and not about the records: these wait until somebody has mended that."""
NOT_ITS_FAULT_GRPC: Final = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED"})
RETRYABLE_GRPC: Final = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
MAX_ANSWER: Final = 4 * 1024 * 1024
"""Bytes read of an answer (OTLP: responses are at most 4 MiB)."""


class Answer(NamedTuple):
    """What became of a request."""

    result: Result
    reason: str = ""
    """Never contains a value of a record."""
    retry_after_s: float | None = None
    """Seconds to wait at least; infinite when another try is useless until somebody asks for it."""
    rejected: int = 0
    """Spans a partial success rejected; they must not be sent again."""


def send(destination: Destination, request: "ExportTraceServiceRequest", deadline: float) -> Answer:
    """Send a request; every failure is an answer, none is an exception.

    Args:
        destination: Where to.
        request: What.
        deadline: Monotonic seconds after which this must have returned.
    """
    timeout_s = min(destination.timeout_s, deadline - time.monotonic())
    if timeout_s <= 0:
        return Answer("retry", "no time left")
    if destination.protocol == "grpc":
        return _grpc(destination, request, timeout_s)
    return _http(destination, request, time.monotonic() + timeout_s)


def _http(destination: Destination, request: "ExportTraceServiceRequest", deadline: float) -> Answer:
    is_json = destination.protocol == "http/json"
    body = otlp_json(request) if is_json else request.SerializeToString()
    headers = {**destination.headers, "content-type": "application/json" if is_json else "application/x-protobuf"}
    if destination.gzip:
        body, headers["content-encoding"] = gzip.compress(body, 1), "gzip"
    parts = urlsplit(destination.url)
    connection = None
    try:
        connection = _connection(destination, deadline - time.monotonic())
        connection.request("POST", parts.path + (f"?{parts.query}" if parts.query else ""), body, headers)
        response = connection.getresponse()
        content = _read(connection, response, deadline)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer("retry", f"no answer: {type(error).__name__}")
    finally:
        if connection is not None:
            connection.close()
    return _judge(response, content)


def _connection(destination: Destination, timeout_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(destination.url)
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    context = ssl.create_default_context(cafile=destination.certificate or None)
    if destination.client_certificate:
        context.load_cert_chain(destination.client_certificate, destination.client_key or None)
    return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout_s, context=context)


def _read(connection: http.client.HTTPConnection, response: http.client.HTTPResponse, deadline: float) -> bytes:
    """Read an answer that may drip: the socket's own time-out starts again with every byte, the deadline does not."""
    content = b""
    while len(content) < MAX_ANSWER:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(left)
        block = response.read1(65_536)
        if not block:
            break
        content += block
    announced = response.headers.get("content-length", "")
    # An answer that broke off before its first byte would look like an empty one, which means that all was accepted.
    if announced.isdigit() and len(content) < min(int(announced), MAX_ANSWER):
        raise http.client.IncompleteRead(content)
    return content


def _judge(response: http.client.HTTPResponse, content: bytes) -> Answer:
    status = response.status
    if status == 200 or status == 202:
        return _judge_success(response.headers.get_content_type(), content)
    reason = f"HTTP {status}"
    if status in RETRYABLE_HTTP:
        return Answer("retry", reason, _retry_after(response.headers.get("retry-after", "")))
    if status < 400 or status >= 500 or status in NOT_ITS_FAULT_HTTP:
        return Answer("retry", reason, math.inf)
    return Answer("too_large" if status == 413 else "refused", reason)


def _judge_success(content_type: str, content: bytes) -> Answer:
    """Read the body of a 200: a partial success rejects spans, and an answer that is no OTLP proves nothing.

    Langfuse answers with JSON of its own, and an empty body is an empty message.
    """
    if not content:
        return Answer("accepted")
    if content_type == "application/json":
        try:
            tree: Any = json.loads(content)
        except ValueError:
            return Answer("retry", "HTTP 200 with a body that is not JSON")
        return _judge_json(tree)
    if content_type == "application/x-protobuf":
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        try:
            decoded = ExportTraceServiceResponse.FromString(content).partial_success
        except DecodeError:
            return Answer("retry", "HTTP 200 with a body that is not an OTLP response")
        return _partial(decoded.rejected_spans, decoded.error_message)
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
    return _partial(rejected, str(told.get("errorMessage") or ""))


def _partial(rejected: int, message: str) -> Answer:
    rejected = max(0, rejected)
    reason = f"partial success: {rejected} rejected, {len(message)} characters of reason" if rejected else ""
    return Answer("accepted", reason, rejected=rejected)


def _retry_after(text: str) -> float | None:
    if text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _grpc(destination: Destination, request: "ExportTraceServiceRequest", timeout_s: float) -> Answer:
    try:
        import grpc
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
    except ImportError:
        return Answer("retry", "the package grpcio is not installed", math.inf)
    parts = urlsplit(destination.url)
    target = f"{parts.hostname}:{parts.port or 4317}"
    compression = grpc.Compression.Gzip if destination.gzip else grpc.Compression.NoCompression
    if destination.insecure:
        channel: Any = grpc.insecure_channel(target, compression=compression)
    else:
        channel = grpc.secure_channel(target, _credentials(destination), compression=compression)
    try:
        stub: Any = TraceServiceStub(channel)  # type: ignore[no-untyped-call]  # generated code
        answer: Any = stub.Export(request, timeout=timeout_s, metadata=tuple(destination.headers.items()))
    except grpc.RpcError as error:
        code = error.code().name if hasattr(error, "code") else "UNKNOWN"
        if code == "RESOURCE_EXHAUSTED":
            # Without RetryInfo it is not retryable; a message over the peer's limit says it this way.
            return Answer("too_large", "gRPC RESOURCE_EXHAUSTED")
        if code in NOT_ITS_FAULT_GRPC:
            return Answer("retry", f"gRPC {code}", math.inf)
        return Answer("retry" if code in RETRYABLE_GRPC else "refused", f"gRPC {code}")
    finally:
        channel.close()
    return _partial(answer.partial_success.rejected_spans, answer.partial_success.error_message)


def _credentials(destination: Destination) -> Any:
    import grpc

    def content(path: str) -> bytes | None:
        if not path:
            return None
        with open(path, "rb") as file:
            return file.read()

    return grpc.ssl_channel_credentials(
        content(destination.certificate), content(destination.client_key), content(destination.client_certificate)
    )
