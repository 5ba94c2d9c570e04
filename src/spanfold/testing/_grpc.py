"""A real OTLP/gRPC receiver on 127.0.0.1: recording, and failing on demand."""

import threading
from concurrent import futures
from types import TracebackType
from typing import Any, Self

from spanfold.deliver import otlp_json
from spanfold.model import Span
from spanfold.testing._http import spans_of


class LoopbackGrpcReceiver:
    """An OTLP/gRPC receiver on 127.0.0.1.

    Attributes:
        spans: Spans received, in order, also those received twice.
        metadata: Of each request: key -> value.
        code: gRPC status to answer with, by name; empty for OK.
        details: Text of that status.
        retry_delay_s: Of the `RetryInfo` of that status; None for none.
        rejected: Spans to reject by partial success.
        refuse_names: Spans of these names make their request fail with INVALID_ARGUMENT.
    """

    def __init__(self, *, limit_bytes: int = 4 * 1024 * 1024, credentials: Any = None) -> None:
        self.spans: list[Span] = []
        self.metadata: list[dict[str, str]] = []
        self.code = ""
        self.details = ""
        self.retry_delay_s: float | None = None
        self.rejected = 0
        self.refuse_names: frozenset[str] = frozenset()
        self._limit_bytes = limit_bytes
        self._credentials = credentials
        self._lock = threading.Lock()
        self._server: Any = None
        self._port = 0

    @property
    def endpoint(self) -> str:
        """Address, for `OTEL_EXPORTER_OTLP_ENDPOINT`."""
        return f"{'http' if self._credentials is None else 'https'}://127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Begin to listen; on the same port again after a `stop`."""
        import grpc
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc

        receiver = self

        class Service(trace_service_pb2_grpc.TraceServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name of the service's method
                return receiver._export(request, context)

        self._server = grpc.server(
            futures.ThreadPoolExecutor(4),
            options=[("grpc.max_receive_message_length", self._limit_bytes), ("grpc.so_reuseport", 0)],
        )
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), self._server)  # type: ignore[no-untyped-call]  # generated code
        address = f"127.0.0.1:{self._port}"
        if self._credentials is None:
            self._port = self._server.add_insecure_port(address)
        else:
            self._port = self._server.add_secure_port(address, self._credentials)
        self._server.start()
        return self

    def stop(self) -> None:
        """Stop listening, as a peer that went away."""
        server, self._server = self._server, None
        if server is not None:
            server.stop(None).wait(5)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _export(self, request: Any, context: Any) -> Any:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        spans = spans_of(otlp_json(request))
        answer = ExportTraceServiceResponse()
        with self._lock:
            self.metadata.append({key: value for key, value in context.invocation_metadata() if type(value) is str})
            if self.code or self.refuse_names & {span.name for span in spans}:
                self._fail(context, self.code or "INVALID_ARGUMENT")
                return answer
            self.spans += spans
        if self.rejected:
            answer.partial_success.rejected_spans = self.rejected
            answer.partial_success.error_message = "no"
        return answer

    def _fail(self, context: Any, code: str) -> None:
        import grpc

        if self.retry_delay_s is not None:
            from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # it publishes no types

            info = error_details_pb2.RetryInfo()
            info.retry_delay.FromNanoseconds(int(self.retry_delay_s * 1e9))
            status = status_pb2.Status(code=grpc.StatusCode[code].value[0])
            status.details.add().Pack(info)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.set_code(grpc.StatusCode[code])
        context.set_details(self.details)
