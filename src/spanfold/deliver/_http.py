"""OTLP over HTTP/1.1: one kept connection, one deadline for a request, whatever the peer does.

Written on sockets and not on the official exporter, because that one takes
every answer from 200 to 399 for success, does not read partial success, and
decides by itself when to give up (docs/decisions/0007-own-transport.md). And
not on a client library, because a time-out there starts again with every byte:
a peer that sends one now and then would be waited for without end.
"""

import base64
import gzip
import http.client
import io
import socket
import ssl
import time
import zlib
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from spanfold.deliver._answer import Answer, judge_http, no_answer
from spanfold.deliver._bounded import within
from spanfold.deliver._destination import GRPC_PORT, Destination
from spanfold.deliver._encode import otlp_json

MAX_ANSWER: Final = 4 * 1024 * 1024
"""Bytes read of an answer (OTLP: responses are at most 4 MiB)."""
IDLE_S: Final = 20.0
"""A connection that was not used for so long is not trusted any more: somebody between may have forgotten it."""
_SETTINGS: Final = "\x04\0\0\0\0\0"
"""How the first frame of an HTTP/2 server goes on after its length: its type, no flags, stream 0 (RFC 9113, section 4.1)."""
_PIECE: Final = 16 * 1024
"""Bytes sent at once: a time-out starts again with each."""


class HttpSender:
    """Sends requests to one destination over one connection, which is made anew when it has gone."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._parts = urlsplit(destination.url)
        self._socket: socket.socket | None = None
        self._used_at = 0.0
        self._was_answered = False
        """Whether the peer has ever answered in HTTP."""
        self._proxy = proxy_of(self._parts)

    def send(self, request: bytes, deadline: float) -> Answer:
        """Send a request; every failure is an answer, none is an exception.

        Args:
            request: What, an encoded `ExportTraceServiceRequest`.
            deadline: Monotonic seconds after which this must have returned.
        """
        is_json = self._destination.protocol == "http/json"
        body = _json(request) if is_json else request
        if len(body) > self._destination.limit_bytes:
            return Answer("too_large", f"{len(body)} bytes, and a request may have {self._destination.limit_bytes}")
        headers = {"content-type": "application/json" if is_json else "application/x-protobuf"}
        if self._destination.compression != "none":
            headers["content-encoding"] = self._destination.compression
            is_gzip = self._destination.compression == "gzip"
            body = gzip.compress(body, 1) if is_gzip else zlib.compress(body, 1)
        try:
            return self._exchange(self._head(headers, len(body)), body, deadline)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            return no_answer(error, self._advice(error))

    def _advice(self, error: Exception) -> str:
        """Say what to do about the most frequent mistake: HTTP to a port for gRPC, which says nothing that HTTP could read."""
        if self._was_answered or self._destination.setting != "otlp":
            return ""
        port = self._parts.port or (443 if self._parts.scheme == "https" else 80)
        instead = "OTEL_EXPORTER_OTLP_PROTOCOL=grpc, or name the port for HTTP, usually 4318"
        if isinstance(error, http.client.BadStatusLine) and str(error)[3:9] == _SETTINGS:
            return f"port {port} speaks gRPC: set {instead}"
        # A server for gRPC closes the connection, mostly before anybody could read what it said.
        if port == GRPC_PORT or isinstance(error, ConnectionResetError):
            return f"if port {port} speaks gRPC, set {instead}"
        return ""

    def close(self) -> None:
        """Close the connection; the next request makes another."""
        found, self._socket = self._socket, None
        if found is not None:
            found.close()

    def _head(self, headers: dict[str, str], length: int) -> bytes:
        parts = self._parts
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if self._proxy is not None and parts.scheme == "http":
            target = f"http://{_authority(parts)}{target}"
            headers |= _authorization("proxy-authorization", self._proxy)
        told = {
            "host": _authority(parts),
            "user-agent": "spanfold",
            "accept": headers["content-type"],
            **_authorization("authorization", parts),
            **self._destination.headers,
            **headers,
            "content-length": str(length),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        return f"POST {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")

    def _exchange(self, head: bytes, body: bytes, deadline: float) -> Answer:
        connection = self._connected(deadline)
        try:
            _send(connection, head, deadline)
            _send(connection, body, deadline)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            # A peer that will not read a request to its end may have said why: too large, or no right to send.
            try:
                return self._answer(connection, deadline, keep=False)
            except (OSError, http.client.HTTPException):
                raise error from None
        return self._answer(connection, deadline, keep=True)

    def _answer(self, connection: socket.socket, deadline: float, *, keep: bool) -> Answer:
        response = _Response(connection, deadline)
        response.begin()
        self._was_answered = True
        content = _read(response)
        # `isclosed` is said of a body that was read beyond its end only, which one of a known length never is.
        is_whole = response.isclosed() or str(len(content)) == response.headers.get("content-length")
        if not keep or response.will_close or not is_whole:
            self.close()
        self._used_at = time.monotonic()
        return judge_http(
            response.status, response.headers.get_content_type(), response.headers.get("retry-after", ""), content
        )

    def _connected(self, deadline: float) -> socket.socket:
        found = self._socket
        if found is not None and (time.monotonic() - self._used_at > IDLE_S or _is_stale(found)):
            self.close()
            found = None
        if found is None:
            found = within(deadline, lambda: self._open(deadline), lambda late: late.close())
            self._socket = found
        return found

    def _open(self, deadline: float) -> socket.socket:
        parts, proxy = self._parts, self._proxy
        is_tls = parts.scheme == "https"
        # Read first: a certificate that is not there is found without asking anybody.
        context = _tls(self._destination) if is_tls else None
        if proxy is not None:
            address = (proxy.hostname or "", proxy.port or (443 if proxy.scheme == "https" else 80))
        else:
            address = (parts.hostname or "", parts.port or (443 if is_tls else 80))
        connection = socket.create_connection(address, _left(deadline))
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is None:
                return connection
            if proxy is not None:
                _open_tunnel(connection, parts, proxy, deadline)
            connection.settimeout(_left(deadline))
            return context.wrap_socket(connection, server_hostname=parts.hostname)
        except BaseException:
            connection.close()
            raise


class _Reading(io.RawIOBase):
    """A socket that is read until a moment, however slowly it drips."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(_left(self._deadline))
        return self._connection.recv_into(buffer)


class _Source:
    """What `HTTPResponse` wants of a socket."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._reading = _Reading(connection, deadline)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._reading)


class _Response(http.client.HTTPResponse):
    def __init__(self, connection: socket.socket, deadline: float, method: str = "POST") -> None:
        super().__init__(_Source(connection, deadline), method=method)  # type: ignore[arg-type]  # all it uses is makefile


def _read(response: http.client.HTTPResponse) -> bytes:
    content = b""
    while len(content) < MAX_ANSWER and (block := response.read1(65_536)):
        content += block
    announced = response.headers.get("content-length", "")
    # An answer that broke off before its first byte would look like an empty one, which means that all was accepted.
    if announced.isdigit() and len(content) < min(int(announced), MAX_ANSWER):
        raise http.client.IncompleteRead(content)
    return content


def _send(connection: socket.socket, data: bytes, deadline: float) -> None:
    view = memoryview(data)
    for begin in range(0, len(view), _PIECE):
        connection.settimeout(_left(deadline))
        connection.sendall(view[begin : begin + _PIECE])


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _is_stale(connection: socket.socket) -> bool:
    """Whether the peer has closed a kept connection, or said something that nobody asked for."""
    try:
        connection.setblocking(False)
        # By the plain socket's method: that of a TLS socket takes no flags.
        socket.socket.recv(connection, 1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _tls(destination: Destination) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=destination.certificate or None)
    if destination.client_certificate:
        context.load_cert_chain(destination.client_certificate, destination.client_key or None)
    return context


# --- proxies -----------------------------------------------------------------------------------------------------


def proxy_of(parts: SplitResult) -> SplitResult | None:
    """Return the proxy that `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` name for an address."""
    from urllib.request import getproxies, proxy_bypass

    found = getproxies().get(parts.scheme) or ""
    if not found or proxy_bypass(_authority(parts)):
        return None
    return urlsplit(found if "://" in found else f"http://{found}")


def _open_tunnel(connection: socket.socket, parts: SplitResult, proxy: SplitResult, deadline: float) -> None:
    authority = f"{_bracketed(parts.hostname or '')}:{parts.port or 443}"
    told = {"host": authority, **_authorization("proxy-authorization", proxy)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    _send(connection, f"CONNECT {authority} HTTP/1.1\r\n{lines}\r\n".encode("latin-1"), deadline)
    response = _Response(connection, deadline, "CONNECT")
    response.begin()
    if response.status != 200:
        raise ConnectionError("the proxy opened no tunnel")


def _authorization(header: str, parts: SplitResult) -> dict[str, str]:
    """Return the header for the user and password in an address, none when there are none."""
    if parts.username is None:
        return {}
    token = base64.b64encode(f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()).decode("ascii")
    return {header: f"Basic {token}"}


def _authority(parts: SplitResult) -> str:
    return _bracketed(parts.hostname or "") + (f":{parts.port}" if parts.port else "")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _json(request: bytes) -> bytes:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    return otlp_json(ExportTraceServiceRequest.FromString(request))
