"""Real HTTP servers on 127.0.0.1: strict, recording, and failing on demand."""

import gzip
import json
import ssl
import threading
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self

from spanfold.deliver import otlp_json
from spanfold.journal import decode_line
from spanfold.model import Span

Behaviour = Literal["accept", "hang", "drip", "drip_head", "close", "html", "partial"]


@dataclass(slots=True)
class Reply:
    """How a server answers."""

    status: int = 200
    behaviour: Behaviour = "accept"
    """`hang` never answers, `drip` sends a byte of the body at a time, `drip_head` one of the first line, `close` drops
    the connection, `html` answers 200 with a page, `partial` accepts and says that `rejected` spans were not taken."""
    retry_after: str = ""
    rejected: int = 0
    stores: bool = True
    """Whether what a request brought is kept, also when the answer is a failure (a peer that times out after storing)."""
    times: int | None = None
    """For how many requests; the ones after that are accepted. None for all."""


@dataclass(slots=True)
class Request:
    """One request as it came in."""

    path: str
    headers: dict[str, str]
    size_bytes: int
    """Of the body, after decompression."""
    body: bytes = field(repr=False)
    problem: str = ""
    """What was wrong with it, empty when it is a valid one."""
    method: str = "POST"


@dataclass(slots=True)
class Answer:
    """What a server sends back."""

    status: int
    content: bytes = b""
    content_type: str = "application/json"


class LoopbackServer:
    """A server on 127.0.0.1 that keeps every request.

    Attributes:
        requests: Every request, also refused ones.
        reply: How to answer from now on.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.reply = Reply()
        self._tls = tls
        self._released = threading.Event()
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._port = 0

    @property
    def endpoint(self) -> str:
        """Base address."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Begin to listen; on the same port again after a `stop`."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                receiver._handle(self)

            do_POST = do_PUT = do_PATCH = do_GET = handle_any  # noqa: N815 - what the base class looks for

            def log_message(self, format: str, *args: object) -> None:
                """Stay quiet."""

        self._released.clear()
        self._server = _Server(("127.0.0.1", self._port), Handler)
        self._server.tls = self._tls
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def stop(self) -> None:
        """Stop listening, as a peer that went away."""
        self._released.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.drop()
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

    @property
    def problems(self) -> list[str]:
        """What was wrong with requests, in order."""
        return [request.problem for request in self.requests if request.problem]

    @property
    def connections(self) -> int:
        """How many connections were made so far since the last `start`."""
        return self._server.connections if self._server is not None else 0

    def answer(self, request: Request, reply: Reply) -> Answer:
        """Check a request, keep what it brings, and return what is said when nothing fails on demand."""
        raise NotImplementedError

    # -- one request

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        raw = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        headers = {k.lower(): v for k, v in handler.headers.items()}
        body, problem = _decompressed(headers, raw)
        request = Request(handler.path, headers, len(body), body, problem, handler.command)
        with self._lock:
            self.requests.append(request)
            reply = self._reply()
            answer = self.answer(request, reply)
        self._send(handler, answer, reply)

    def _reply(self) -> Reply:
        reply = self.reply
        if reply.times is not None:
            if reply.times <= 0:
                return Reply()
            reply.times -= 1
        return reply

    def _send(self, handler: BaseHTTPRequestHandler, answer: Answer, reply: Reply) -> None:
        released = self._released
        if reply.behaviour == "hang":
            released.wait(60)
            handler.close_connection = True
            return
        if reply.behaviour == "close":
            handler.close_connection = True
            return
        if reply.behaviour == "drip_head":
            handler.close_connection = True
            self._drip(handler, b"HTTP/1.1 200 OK and so on" + b" " * 1000, released)
            return
        if reply.behaviour == "html":
            answer.content, answer.content_type = b"<html><body>It works</body></html>", "text/html"
        handler.send_response(answer.status)
        if reply.retry_after:
            handler.send_header("retry-after", reply.retry_after)
        handler.send_header("content-type", answer.content_type)
        handler.send_header("content-length", str(len(answer.content) + (1000 if reply.behaviour == "drip" else 0)))
        handler.end_headers()
        if reply.behaviour == "drip":
            handler.close_connection = True
            self._drip(handler, b" " * 1000, released)
            return
        handler.wfile.write(answer.content)

    def _drip(self, handler: BaseHTTPRequestHandler, content: bytes, released: threading.Event) -> None:
        for byte in content:
            if released.wait(0.05):
                return
            try:
                handler.wfile.write(bytes([byte]))
                handler.wfile.flush()
            except OSError:
                return


class LoopbackOtlpReceiver(LoopbackServer):
    """An OTLP/HTTP receiver on 127.0.0.1: strict, recording, and failing on demand.

    Attributes:
        spans: Spans received, in order, also those received twice.
        limit_bytes: Larger bodies are answered with 413.
        refuse_names: Spans of these names make their request fail with 400.
        break_names: Spans of these names make their request fail with 500.
    """

    def __init__(
        self, *, limit_bytes: int = 20 * 1024 * 1024, path: str = "/v1/traces", tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(tls=tls)
        self.spans: list[Span] = []
        self.limit_bytes = limit_bytes
        self.refuse_names: frozenset[str] = frozenset()
        self.break_names: frozenset[str] = frozenset()
        self._path = path

    def answer(self, request: Request, reply: Reply) -> Answer:
        """Check a request and keep its spans."""
        return self.take_spans(request, reply, self._path)

    def take_spans(self, request: Request, reply: Reply, path: str) -> Answer:
        """Check an OTLP request and keep its spans."""
        spans = decode_spans(request)
        if (request.method, request.path) != ("POST", path):
            request.problem = request.problem or f"{request.method} {request.path}"
        sent = {span.name for span in spans}
        status = reply.status
        if request.size_bytes > self.limit_bytes:
            status = 413
        elif request.problem or sent & self.refuse_names:
            status = 400
        elif sent & self.break_names:
            status = 500
        if reply.stores and status not in (400, 413) and (status < 300 or reply.behaviour in ("hang", "close")):
            self.spans += spans
        content_type = request.headers.get("content-type", "")
        content = (
            partial_success(content_type, reply.rejected) if reply.behaviour == "partial" and status < 300 else b""
        )
        return Answer(status, content, content_type)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    tls: ssl.SSLContext | None = None

    def __init__(self, *given: Any) -> None:
        self._open: set[Any] = set()
        self.connections = 0
        super().__init__(*given)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Shake hands here and not in `accept`, where a client that does not would keep all others waiting."""
        if self.tls is not None:
            try:
                request = self.tls.wrap_socket(request, server_side=True)
            except OSError:
                request.close()
                return
        self._open.add(request)
        self.connections += 1
        super().process_request_thread(request, client_address)
        self._open.discard(request)

    def drop(self) -> None:
        """Close the connections that are kept: a peer that went away keeps none."""
        for request in tuple(self._open):
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay quiet: a peer that gives up is part of the tests."""


def partial_success(content_type: str, rejected: int) -> bytes:
    """Return the body that says how many spans were not taken."""
    if content_type == "application/json":
        return json.dumps({"partialSuccess": {"rejectedSpans": str(rejected), "errorMessage": "no"}}).encode()
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = rejected
    answer.partial_success.error_message = "no"
    body: bytes = answer.SerializeToString()
    return body


def decode_spans(request: Request) -> list[Span]:
    """Return the spans of an OTLP request, and note on it what is wrong with it."""
    content_type = request.headers.get("content-type")
    try:
        if content_type == "application/x-protobuf":
            from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

            return spans_of(otlp_json(ExportTraceServiceRequest.FromString(request.body)))
        if content_type == "application/json":
            return spans_of(request.body)
    except Exception as error:
        request.problem = request.problem or f"not an OTLP request ({type(error).__name__})"
        return []
    request.problem = request.problem or f"content-type {content_type}"
    return []


def spans_of(line: bytes) -> list[Span]:
    """Return the spans of a request in OTLP JSON."""
    return [record for record in decode_line(line) if isinstance(record, Span)]


def _decompressed(headers: Mapping[str, str], raw: bytes) -> tuple[bytes, str]:
    encoding = headers.get("content-encoding", "identity")
    try:
        if encoding == "gzip":
            return gzip.decompress(raw), ""
        if encoding == "deflate":
            return zlib.decompress(raw), ""
    except (OSError, zlib.error, EOFError):
        return raw, f"a body that is not {encoding}"
    return raw, "" if encoding == "identity" else f"content-encoding {encoding}"
