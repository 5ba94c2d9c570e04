"""Stand-ins for tests of programs that use spanfold: small, real, and owned by us.

    from spanfold.testing import LoopbackOtlpReceiver

    with LoopbackOtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        ...
        assert [span.name for span in receiver.spans] == ["M1"]

The servers are real ones on the loopback interface that check every request
strictly and can fail on demand: `LoopbackOtlpReceiver` over HTTP,
`LoopbackGrpcReceiver` over gRPC, and `LoopbackLangfuse`, which has the
endpoints of a Langfuse server for spans, scores and media.
"""

from spanfold.testing._grpc import LoopbackGrpcReceiver
from spanfold.testing._http import LoopbackOtlpReceiver, LoopbackServer, Reply, Request
from spanfold.testing._langfuse import LoopbackLangfuse
from spanfold.testing._waiting import wait_until

__all__ = [
    "LoopbackGrpcReceiver",
    "LoopbackLangfuse",
    "LoopbackOtlpReceiver",
    "LoopbackServer",
    "Reply",
    "Request",
    "wait_until",
]
