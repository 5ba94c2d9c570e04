"""OTLP over HTTP and gRPC, plain and with TLS: what the standard variables mean, against real servers and the official exporters."""

import json
import os
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import trustme
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import spanfold
from spanfold.deliver import Delivery, deliver_run, destinations
from spanfold.errors import SettingsError
from spanfold.journal import read_journal
from spanfold.model import Span
from spanfold.settings import resolve
from spanfold.testing import LoopbackGrpcReceiver, LoopbackOtlpReceiver

pytestmark = pytest.mark.slow


def unsent(folder: Path, n: int = 3) -> Path:
    spanfold.configure(otlp=False)
    with spanfold.run("sent", dir=folder) as run:
        for i in range(n):
            with spanfold.stage("M1", cycle=i, note="ü" * 50):
                spanfold.score("accuracy", i)
    return run.dir


def deliver(run_dir: Path, environ: dict[str, str], timeout_s: float = 10) -> Delivery:
    (destination,) = destinations(resolve({}), environ)
    return deliver_run(run_dir, destination, timeout_s=timeout_s)


# -- the wrong protocol for a port

GRPC_INSTEAD = "set OTEL_EXPORTER_OTLP_PROTOCOL=grpc, or name the port for HTTP, usually 4318"


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json"])
def test_http_to_a_server_for_grpc_waits_and_says_how_to_reach_it(collector, tmp_path, protocol):
    environ = over_grpc(collector) | {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    port = collector.endpoint.rpartition(":")[2]

    run_dir = unsent(tmp_path / "run")
    wrong = deliver(run_dir, environ, timeout_s=0.3)

    # What the server says before it closes the connection is there to be read, or already gone.
    assert wrong.reason in (
        f"no answer: BadStatusLine; port {port} speaks gRPC: {GRPC_INSTEAD}",
        f"no answer: ConnectionResetError; if port {port} speaks gRPC, {GRPC_INSTEAD}",
    )
    assert (wrong.sent, wrong.refused, wrong.waiting) == (0, 0, 4)
    assert deliver(run_dir, over_grpc(collector)).sent == 4


@contextmanager
def peer(*answers: bytes) -> Iterator[str]:
    """Answer each connection with the next of these bytes, the last of them for ever, and close it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            left = list(answers)
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:  # closed
                    return
                with connection:
                    connection.sendall(left.pop(0) if len(left) > 1 else left[0])
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65_536):  # unread bytes would make it a reset
                        pass

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "no answer: RemoteDisconnected; if port {port} speaks gRPC, "),
        (b"\0\0\x06\x04\0\0\0\0\0\0\x05\0\0\x40\0", "no answer: BadStatusLine; port {port} speaks gRPC: "),
    ],
    ids=["nothing", "its settings"],
)
def test_a_peer_that_closes_without_an_answer_in_http_may_speak_grpc(tmp_path, answer, told):
    with peer(answer) as url:
        result = deliver(unsent(tmp_path / "run"), {"OTEL_EXPORTER_OTLP_ENDPOINT": url}, timeout_s=0.3)

    assert result.reason == told.format(port=url.rpartition(":")[2]) + GRPC_INSTEAD


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ((b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", b""), "no answer: RemoteDisconnected"),
        ((b"SSH-2.0-OpenSSH_9.6\r\n",), "no answer: BadStatusLine"),
    ],
    ids=["it has answered before", "another protocol"],
)
def test_a_peer_that_speaks_something_else_is_not_taken_for_one_that_speaks_grpc(tmp_path, answers, told):
    with peer(*answers) as url:
        result = deliver(unsent(tmp_path / "run"), {"OTEL_EXPORTER_OTLP_ENDPOINT": url}, timeout_s=1)

    assert result.reason == told


def test_grpc_to_a_server_for_http_waits_and_says_how_to_reach_it(tmp_path):
    with LoopbackOtlpReceiver() as receiver:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
        result = deliver(unsent(tmp_path / "run"), environ, timeout_s=0.3)

    assert result.reason == (
        "gRPC UNAVAILABLE; that port speaks HTTP: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or name the port for gRPC, "
        "usually 4317"
    )
    assert (result.sent, result.refused, result.waiting) == (0, 0, 4)


# -- gRPC


@pytest.fixture
def collector() -> Iterator[LoopbackGrpcReceiver]:
    with LoopbackGrpcReceiver() as running:
        yield running


def over_grpc(receiver: LoopbackGrpcReceiver, **more: str) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", **more}


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_over_grpc_every_span_arrives_with_what_it_holds(collector, tmp_path, compression):
    run_dir = unsent(tmp_path / "run")
    result = deliver(
        run_dir,
        over_grpc(
            collector, OTEL_EXPORTER_OTLP_COMPRESSION=compression, OTEL_EXPORTER_OTLP_HEADERS="X-Tenant=a%20b,key=v"
        ),
    )
    assert (result.sent, result.refused, result.waiting) == (4, 0, 0)
    assert collector.metadata[0].items() >= {"x-tenant": "a b", "key": "v"}.items()
    mine = {r.span_id: r for r in read_journal(run_dir).records if isinstance(r, Span)}
    for span in collector.spans:
        assert dict(span.attributes) == dict(mine[span.span_id].attributes)
        assert [e.name for e in span.events] == (["gen_ai.evaluation.result"] if span.name == "M1" else [])
    assert len(collector.spans) == 4
    assert deliver(run_dir, over_grpc(collector)).sent == 0


def test_an_address_without_a_scheme_is_secure_unless_a_variable_says_otherwise(collector, tmp_path):
    address = collector.endpoint.removeprefix("http://")
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    run_dir = unsent(tmp_path / "run")
    assert deliver(run_dir, environ, timeout_s=0.5).waiting == 4
    assert deliver(run_dir, {**environ, "OTEL_EXPORTER_OTLP_TRACES_INSECURE": "true"}).sent == 4


@pytest.mark.case("C-044")
def test_over_grpc_a_partial_success_is_counted_and_not_sent_again(collector, tmp_path):
    collector.rejected = 2
    run_dir = unsent(tmp_path / "run")
    result = deliver(run_dir, over_grpc(collector))
    assert (result.sent, result.refused, result.waiting) == (2, 2, 0)
    assert len(collector.metadata) == 1
    line = json.loads(next((run_dir / "journal/.deliver").glob("otlp-*.refused.jsonl")).read_text())
    assert {span["span_id"] for span in line["among"]} == {span.span_id for span in collector.spans}


@pytest.mark.case("C-044")
def test_over_grpc_the_refused_span_is_named_and_the_others_arrive(collector, tmp_path):
    spanfold.configure(otlp=False)
    with spanfold.run("sent", dir=tmp_path / "run") as run:
        for i in range(20):
            with spanfold.timed("poison" if i == 7 else "fine"):
                pass
    collector.refuse_names = frozenset({"poison"})
    result = deliver(run.dir, over_grpc(collector))
    assert (result.sent, result.refusals, result.waiting) == (20, {"gRPC INVALID_ARGUMENT": 1}, 0)


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "DATA_LOSS"])
def test_over_grpc_what_may_be_tried_again_waits(collector, tmp_path, code):
    run_dir = unsent(tmp_path / "run")
    collector.code = code
    result = deliver(run_dir, over_grpc(collector), timeout_s=0.3)
    assert (result.sent, result.refused, result.waiting, result.reason) == (0, 0, 4, f"gRPC {code}")
    collector.code = ""
    assert deliver(run_dir, over_grpc(collector)).sent == 4


def test_over_grpc_a_quota_is_waited_for_as_long_as_the_server_says(collector, tmp_path):
    run_dir = unsent(tmp_path / "run")
    collector.code, collector.details, collector.retry_delay_s = "RESOURCE_EXHAUSTED", "quota", 3600
    result = deliver(run_dir, over_grpc(collector), timeout_s=30)
    assert (result.sent, result.refused, result.waiting) == (0, 0, 4)
    assert len(collector.metadata) == 1  # not a try before its time, and no span taken for too large


def test_over_grpc_a_quota_without_a_time_refuses_nothing(collector, tmp_path):
    run_dir = unsent(tmp_path / "run")
    collector.code, collector.details = "RESOURCE_EXHAUSTED", "quota"
    result = deliver(run_dir, over_grpc(collector), timeout_s=30)
    assert (result.sent, result.refused, result.waiting) == (0, 0, 4)


@pytest.mark.parametrize("code", ["UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED", "INTERNAL", "UNKNOWN"])
def test_over_grpc_nothing_is_refused_for_a_wrong_key_or_a_broken_server(collector, tmp_path, code):
    run_dir = unsent(tmp_path / "run")
    collector.code = code
    result = deliver(run_dir, over_grpc(collector), timeout_s=30)
    assert (result.sent, result.refused, result.waiting) == (0, 0, 4)


@pytest.mark.case("C-031")
def test_over_grpc_a_smaller_limit_of_the_server_is_found(tmp_path):
    spanfold.configure(otlp=False)
    with spanfold.run("sent", dir=tmp_path / "run") as run:
        for i in range(40):
            with spanfold.timed("part") as part:
                part.set(text=f"{i}" + "x" * 20_000)
        with spanfold.timed("huge") as huge:
            huge.set(text="y" * 5_000_000)
    with LoopbackGrpcReceiver(limit_bytes=200_000) as small:
        result = deliver(run.dir, over_grpc(small))
        assert (result.sent, result.refused, result.waiting) == (42, 0, 0)
        assert len({s.span_id for s in small.spans}) == len(small.spans) == 42


def test_over_grpc_a_collector_that_comes_back_is_found_at_once(collector, tmp_path, monkeypatch):
    for name, value in over_grpc(collector).items():
        monkeypatch.setenv(name, value)
    collector.stop()
    spanfold.configure(otlp=True)
    with spanfold.run("sent", dir=tmp_path / "run"), spanfold.stage("M1"):
        pass
    result = spanfold.flush(0.5)
    assert result.waiting == 2 and "UNAVAILABLE" in next(iter(result.reasons))
    collector.start()
    assert spanfold.flush(20).waiting == 0
    assert sorted(span.name for span in collector.spans) == ["M1", "sent"]


# -- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(authority, tmp_path) -> dict[str, str]:
    """The authority's certificate, and certificate and key of a client, as files."""
    client = authority.issue_cert("client@example.org")
    found = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "client", "key")}
    authority.cert_pem.write_to_path(found["ca"])
    client.private_key_pem.write_to_path(found["key"])
    for pem in client.cert_chain_pems:
        pem.write_to_path(found["client"], append=True)
    return found


@pytest.fixture(params=["http/protobuf", "grpc"])
def mutual(request, authority) -> Iterator[tuple[str, LoopbackOtlpReceiver | LoopbackGrpcReceiver]]:
    """A server that shows a certificate and wants to see one."""
    own = authority.issue_cert("127.0.0.1")
    if request.param == "grpc":
        credentials = grpc.ssl_server_credentials(
            [(own.private_key_pem.bytes(), b"".join(pem.bytes() for pem in own.cert_chain_pems))],
            authority.cert_pem.bytes(),
            require_client_auth=True,
        )
        with LoopbackGrpcReceiver(credentials=credentials) as over_grpc:
            yield request.param, over_grpc
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    with LoopbackOtlpReceiver(tls=context) as over_http:
        yield request.param, over_http


def test_over_tls_both_sides_show_their_certificates(mutual, files, tmp_path):
    protocol, server = mutual
    run_dir = unsent(tmp_path / "run")
    where = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    own = {
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE": files["client"],
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY": files["key"],
    }
    trust = {"OTEL_EXPORTER_OTLP_CERTIFICATE": files["ca"]}

    for half in (where, where | own, where | trust):
        assert (deliver(run_dir, half, timeout_s=0.3).sent, server.spans) == (0, [])
    assert deliver(run_dir, where | own | trust).sent == 4
    assert len(server.spans) == 4


def test_a_kept_tls_connection_carries_the_next_request_too(authority, files, tmp_path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with LoopbackOtlpReceiver(tls=context) as server:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint, "OTEL_EXPORTER_OTLP_CERTIFICATE": files["ca"]}
        with server.answering(status=413, times=1):  # so that there is a second one
            assert deliver(unsent(tmp_path / "run"), environ).sent == 4
        assert [r.problem for r in server.requests] == ["", "", ""]
        assert server.connections == 1


# -- proxies


def test_a_proxy_gets_the_whole_address_and_its_own_key(tmp_path, monkeypatch):
    with LoopbackOtlpReceiver(path="http://collector.invalid:4318/v1/traces") as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.endpoint.replace("http://", "http://user:pass%21@"))
        assert (
            deliver(unsent(tmp_path / "run"), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.invalid:4318"}).sent
            == 4
        )
        assert proxy.problems == []
        assert proxy.requests[0].headers["host"] == "collector.invalid:4318"
        assert proxy.requests[0].headers["proxy-authorization"] == "Basic dXNlcjpwYXNzIQ=="


def test_tls_goes_through_the_tunnel_of_a_proxy(authority, files, tmp_path, monkeypatch):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("collector.invalid").configure_cert(context)
    with LoopbackOtlpReceiver(tls=context) as server, Tunnel(server) as tunnel:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{tunnel.port}")
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector.invalid",
            "OTEL_EXPORTER_OTLP_CERTIFICATE": files["ca"],
        }
        assert deliver(unsent(tmp_path / "run"), environ).sent == 4
        assert tunnel.asked == [b"CONNECT collector.invalid:443 HTTP/1.1"]


class Tunnel:
    """A proxy that opens tunnels to one server, whatever it is asked for."""

    def __init__(self, server: LoopbackOtlpReceiver) -> None:
        self._target = int(server.endpoint.rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.asked: list[bytes] = []

    def __enter__(self) -> "Tunnel":
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.close()

    def _serve(self) -> None:
        near, _ = self._listener.accept()
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += near.recv(1)
        self.asked.append(head.split(b"\r\n")[0])
        with near, socket.create_connection(("127.0.0.1", self._target)) as far:
            near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            while True:
                readable, _, _ = select.select([near, far], [], [], 30)
                for one in readable:
                    data = one.recv(65_536)
                    if not data:
                        return
                    (far if one is near else near).sendall(data)


# -- what variables mean

VARIABLES = [
    {},
    {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20abc%3D,x-a=1"},
    {"OTEL_EXPORTER_OTLP_HEADERS": "x-a=1", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-b=2"},
    {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"},
    {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "none"},
]


@pytest.mark.parametrize("variables", VARIABLES)
@pytest.mark.parametrize("is_own", [False, True])
def test_over_http_the_standard_variables_mean_what_they_mean_to_the_official_exporter(
    tmp_path, monkeypatch, variables, is_own
):
    with LoopbackOtlpReceiver(path="/base/v1/traces") as server:
        name, path = (
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "/base/v1/traces")
            if is_own
            else (
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                "/base",
            )
        )
        for key, value in {**variables, name: server.endpoint + path}.items():
            monkeypatch.setenv(key, value)
        send_one(HttpExporter())
        assert deliver(unsent(tmp_path / "run"), dict(os.environ)).sent == 4
        theirs, ours = server.requests[0], server.requests[-1]
        told = ("content-type", "content-encoding", "authorization", "x-a", "x-b")
        assert server.problems == []
        assert theirs.path == ours.path
        assert [theirs.headers.get(h) for h in told] == [ours.headers.get(h) for h in told]


@pytest.mark.parametrize("variables", VARIABLES[:4])
def test_over_grpc_the_standard_variables_mean_what_they_mean_to_the_official_exporter(
    collector, tmp_path, monkeypatch, variables
):
    for key, value in over_grpc(collector, **variables).items():
        monkeypatch.setenv(key, value)
    send_one(GrpcExporter())
    assert deliver(unsent(tmp_path / "run"), dict(os.environ)).sent == 4
    theirs, ours = collector.metadata[0], collector.metadata[-1]
    told = ("authorization", "x-a", "x-b", "grpc-accept-encoding")
    assert [theirs.get(h) for h in told] == [ours.get(h) for h in told]


def send_one(exporter: HttpExporter | GrpcExporter) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("official").start_as_current_span("official"):
        pass
    provider.shutdown()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:port"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://local host"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://localhost"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "thrift"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "-1"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-a=1%0d%0ax-b: 2"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named_and_not_quoted(variable, value):
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", variable: value}
    with pytest.raises(SettingsError) as found:
        destinations(resolve({}), environ)
    assert variable in str(found.value) and value not in str(found.value)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
@pytest.mark.parametrize(("value", "told"), [("h:70000", "text of 7 characters"), ("?", "text of 1 character")])
def test_an_address_that_cannot_be_used_is_as_long_as_it_was_given(variable, value, told, protocol):
    environ = {variable: value, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}

    with pytest.raises(SettingsError) as found:
        destinations(resolve({}), environ)

    assert (found.value.setting, found.value.found) == (variable, told)
