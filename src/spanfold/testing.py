"""Stand-ins for tests of programs that use spanfold: small, real, and owned by us.

    from spanfold.testing import LoopbackOtlpReceiver

    with LoopbackOtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        ...
        assert [span.name for span in receiver.spans] == ["M1"]

The receiver is a real HTTP server on the loopback interface that checks every
request strictly and can fail on demand.
"""

import gzip
import json
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self

from spanfold.deliver import otlp_json
from spanfold.journal import decode_line
from spanfold.model import Span

Behaviour = Literal["accept", "hang", "drip", "close", "html", "partial"]


@dataclass(slots=True)
class Reply:
    """How the receiver answers."""

    status: int = 200
    behaviour: Behaviour = "accept"
    """`hang` never answers, `drip` sends a byte at a time, `close` drops the connection, `html` answers 200 with a
    page, `partial` accepts and says that `rejected` spans were not taken."""
    retry_after: str = ""
    rejected: int = 0
    stores: bool = True
    """Whether the spans of the request are kept, also when the answer is a failure (a peer that times out after storing)."""


@dataclass(slots=True)
class Request:
    """One request as it came in."""

    path: str
    headers: dict[str, str]
    size_bytes: int
    """Of the body, after decompression."""
    body: bytes = field(repr=False)
    problem: str = ""
    """What was wrong with it, empty when it is a valid OTLP request."""


class LoopbackOtlpReceiver:
    """An OTLP/HTTP receiver on 127.0.0.1: strict, recording, and failing on demand.

    Attributes:
        spans: Spans received, in order, also those received twice.
        requests: Every request, also refused ones.
        reply: The answer to give from now on.
        limit_bytes: Larger bodies are answered with 413.
        refuse_names: Spans of these names make their request fail with 400.
    """

    def __init__(self, *, limit_bytes: int = 20 * 1024 * 1024, path: str = "/v1/traces") -> None:
        self.spans: list[Span] = []
        self.requests: list[Request] = []
        self.reply = Reply()
        self.limit_bytes = limit_bytes
        self.refuse_names: frozenset[str] = frozenset()
        self._path = path
        self._released = threading.Event()
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    @property
    def endpoint(self) -> str:
        """Base address, for `OTEL_EXPORTER_OTLP_ENDPOINT`."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Begin to listen; on the same port again after a `stop`."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver._handle(self)

            def log_message(self, format: str, *args: object) -> None:
                """Stay quiet."""

        self._released.clear()
        self._server = _Server(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def stop(self) -> None:
        """Stop listening, as a peer that went away."""
        self._released.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @contextmanager
    def answering(self, **reply: Any) -> Generator[None]:
        """Answer in this way inside the block; arguments are fields of `Reply`. Requests that hang are let go at its end."""
        before, self.reply = self.reply, Reply(**reply)
        try:
            yield
        finally:
            self.reply = before
            released, self._released = self._released, threading.Event()
            released.set()

    def payloads(self) -> bytes:
        """Return everything received, as one text to search in."""
        return b"\n".join(request.body for request in self.requests)

    # -- one request

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        raw = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        headers = {k.lower(): v for k, v in handler.headers.items()}
        reply = self.reply
        body, spans, problem = _decode(headers, raw)
        if handler.path != self._path:
            problem = problem or f"path {handler.path}"
        with self._lock:
            self.requests.append(Request(handler.path, headers, len(body), body, problem))
        status = reply.status
        if len(body) > self.limit_bytes:
            status = 413
        elif problem or any(span.name in self.refuse_names for span in spans):
            status = 400
        if reply.stores and status not in (400, 413) and (status < 300 or reply.behaviour in ("hang", "close")):
            with self._lock:
                self.spans += spans
        self._answer(handler, status, reply, headers.get("content-type", ""))

    def _answer(self, handler: BaseHTTPRequestHandler, status: int, reply: Reply, content_type: str) -> None:
        if reply.behaviour == "hang":
            self._released.wait(60)
            return
        if reply.behaviour == "close":
            handler.connection.close()
            return
        content = b"<html><body>It works</body></html>" if reply.behaviour == "html" else b""
        if reply.behaviour == "partial" and status < 300:
            content = _partial(content_type, reply.rejected)
        handler.send_response(status)
        if reply.retry_after:
            handler.send_header("retry-after", reply.retry_after)
        handler.send_header("content-type", "text/html" if reply.behaviour == "html" else content_type)
        handler.send_header("content-length", str(len(content) + (1000 if reply.behaviour == "drip" else 0)))
        handler.end_headers()
        if reply.behaviour == "drip":
            for _ in range(1000):
                if self._released.wait(0.05):
                    return
                try:
                    handler.wfile.write(b" ")
                    handler.wfile.flush()
                except OSError:
                    return
        handler.wfile.write(content)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay quiet: a peer that gives up is part of the tests."""


def _partial(content_type: str, rejected: int) -> bytes:
    if content_type == "application/json":
        return json.dumps({"partialSuccess": {"rejectedSpans": str(rejected), "errorMessage": "no"}}).encode()
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = rejected
    answer.partial_success.error_message = "no"
    body: bytes = answer.SerializeToString()
    return body


def _decode(headers: dict[str, str], raw: bytes) -> tuple[bytes, list[Span], str]:
    """Return the body, its spans, and what is wrong with the request."""
    body = raw
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(raw)
    elif headers.get("content-encoding", "identity") != "identity":
        return raw, [], f"content-encoding {headers['content-encoding']}"
    try:
        if headers.get("content-type") == "application/x-protobuf":
            return body, _spans_of(_to_json(body)), ""
        if headers.get("content-type") == "application/json":
            return body, _spans_of(body), ""
    except Exception as error:
        return body, [], f"not an OTLP request ({type(error).__name__})"
    return body, [], f"content-type {headers.get('content-type')}"


def _spans_of(line: bytes) -> list[Span]:
    return [record for record in decode_line(line) if isinstance(record, Span)]


def _to_json(body: bytes) -> bytes:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    return otlp_json(ExportTraceServiceRequest.FromString(body))


def wait_until(condition: Any, timeout_s: float = 10.0) -> bool:
    """Return whether a condition came true in time, looking every 10 ms."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())
