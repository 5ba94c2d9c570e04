"""OTLP over gRPC, by the official client: one kept channel, one deadline for a request."""

import time
from collections.abc import Iterable
from typing import Any, Final, cast
from urllib.parse import urlsplit

from spanfold.deliver._answer import Answer, judge_grpc, no_answer, partial_success
from spanfold.deliver._bounded import unobserved
from spanfold.deliver._destination import GRPC_PORT, Destination

_EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_STATUS_KEY: Final = "grpc-status-details-bin"
_NO_HTTP2: Final = "Failed parsing HTTP/2"
"""What the client says of a peer that answers in HTTP/1.1."""
_FOR_HTTP: Final = (
    "that port speaks HTTP: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or name the port for gRPC, usually 4317"
)


class GrpcSender:
    """Sends requests to one destination over one channel, which is made anew after a failure."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._channel: Any = None

    def send(self, request: bytes, deadline: float) -> Answer:
        """Send a request; every failure is an answer, none is an exception.

        Args:
            request: What, an encoded `ExportTraceServiceRequest`.
            deadline: Monotonic seconds after which this must have returned.
        """
        import grpc
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        size = len(request)
        if size > self._destination.limit_bytes:
            return Answer("too_large", f"{size} bytes, and a request may have {self._destination.limit_bytes}")
        try:
            if self._channel is None:
                self._channel = self._open()
            # What the generated stub does, but for encoding the request, which it is already.
            export = self._channel.unary_unary(_EXPORT, response_deserializer=ExportTraceServiceResponse.FromString)
            with unobserved():
                answer: Any = export(
                    request,
                    timeout=max(0.001, deadline - time.monotonic()),
                    metadata=tuple(self._destination.headers.items()),
                )
        except grpc.RpcError as error:
            # A channel that failed waits by itself before it connects again, up to two minutes: a new one does not.
            self.close()
            status: Any = error
            details = str(status.details())
            judged = judge_grpc(status.code().name, details, _retry_delay(status.trailing_metadata()))
            return judged._replace(reason=f"{judged.reason}; {_FOR_HTTP}") if _NO_HTTP2 in details else judged
        except (OSError, ValueError) as error:  # a certificate that is not there, or a header gRPC does not take
            self.close()
            return no_answer(error)
        return partial_success(answer.partial_success.rejected_spans, answer.partial_success.error_message)

    def close(self) -> None:
        """Close the channel; the next request makes another."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _open(self) -> Any:
        import grpc

        parts = urlsplit(self._destination.url)
        host = parts.hostname or ""
        target = f"{f'[{host}]' if ':' in host else host}:{parts.port or GRPC_PORT}"
        is_gzip = self._destination.compression == "gzip"
        compression = grpc.Compression.Gzip if is_gzip else grpc.Compression.NoCompression
        if self._destination.insecure:
            return grpc.insecure_channel(target, compression=compression)
        return grpc.secure_channel(target, _credentials(self._destination), compression=compression)


def _retry_delay(metadata: Any) -> float | None:
    """Return the seconds of the `RetryInfo` that a status may carry (OTLP 1.x, "OTLP/gRPC Throttling")."""
    from google.protobuf.message import DecodeError
    from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # it publishes no types

    for key, value in cast("Iterable[tuple[str, Any]]", metadata or ()):
        if key != _STATUS_KEY:
            continue
        try:
            details = status_pb2.Status.FromString(value).details
        except (DecodeError, TypeError):
            return None
        for detail in details:
            info = error_details_pb2.RetryInfo()
            if detail.Unpack(info):
                return float(info.retry_delay.ToNanoseconds()) / 1e9
    return None


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
