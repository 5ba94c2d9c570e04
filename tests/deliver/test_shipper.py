"""The thread that sends: who waits for it, how long, and what it leaves behind."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import spanfold
from spanfold.deliver import Destination, Shipper, deliver_run
from spanfold.testing import LoopbackOtlpReceiver, wait_until

pytestmark = pytest.mark.slow


def destination(receiver: LoopbackOtlpReceiver) -> Destination:
    return Destination(name="otlp", protocol="http/protobuf", url=f"{receiver.endpoint}/v1/traces")


def finished_run(folder: Path, n: int = 3) -> Path:
    spanfold.configure(otlp=False)
    with spanfold.run("sent", dir=folder) as run:
        for i in range(n):
            with spanfold.stage("M1", cycle=i):
                pass
    return run.dir


def test_a_flush_returns_as_soon_as_everything_has_arrived_also_when_the_run_ends_meanwhile(tmp_path):
    run_dir = finished_run(tmp_path / "run", 300)
    with LoopbackOtlpReceiver() as receiver:
        for _ in range(5):
            shipper = Shipper(destination(receiver))
            outbox = shipper.add(run_dir)
            shipper.close(outbox)  # the thread is about to find that it is done, and ends
            begun = time.monotonic()
            result = shipper.flush(30)
            assert time.monotonic() - begun < 20
            assert (result.sent + result.waiting, result.waiting) == (result.sent, 0)
    assert len({s.span_id for s in receiver.spans}) == len(receiver.spans) == 301


@pytest.mark.case("C-040")
def test_stopping_twice_waits_once_for_a_destination_that_is_down(tmp_path):
    with LoopbackOtlpReceiver() as receiver:
        nobody = destination(receiver)
    shipper = Shipper(nobody)
    outbox = shipper.add(finished_run(tmp_path / "run"))
    shipper.close(outbox)

    assert shipper.stop(0.5).waiting == 4

    begun = time.monotonic()
    shipper.stop(20)
    assert time.monotonic() - begun < 10


def test_what_waits_for_an_earlier_destination_is_still_counted_and_sent(tmp_path, monkeypatch):
    with LoopbackOtlpReceiver() as first, LoopbackOtlpReceiver() as second:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", first.endpoint)
        spanfold.configure(otlp=True)
        first.stop()
        with spanfold.run("earlier", dir=tmp_path / "earlier"):
            pass
        assert spanfold.flush(0.5).waiting == 1
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", second.endpoint)
        spanfold.configure(otlp=True)
        with spanfold.run("later", dir=tmp_path / "later"):
            pass
        assert wait_until(lambda: [s.name for s in second.spans] == ["later"])
        assert spanfold.flush(0.5).waiting == 1
        first.start()
        assert wait_until(lambda: spanfold.flush(5).waiting == 0, 30)
        assert [s.name for s in first.spans] == ["earlier"]


@pytest.mark.case("C-042")
def test_recording_goes_on_and_is_sent_after_a_shutdown(tmp_path, monkeypatch):
    with LoopbackOtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        spanfold.configure(otlp=True)
        with spanfold.run("sent", dir=tmp_path / "run"):
            with spanfold.stage("M1"):
                pass
            assert spanfold.shutdown(5).waiting == 0
            with spanfold.stage("M2"):
                pass
        assert spanfold.flush(5).waiting == 0
        assert sorted(s.name for s in receiver.spans) == ["M1", "M2", "sent"]


def test_a_record_no_message_can_hold_is_set_aside_and_the_rest_arrives(tmp_path):
    run_dir = finished_run(tmp_path / "run")
    (journal,) = (run_dir / "journal").glob("*.otlp.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    second = next(i for i, line in enumerate(lines) if b'"resourceSpans"' in line)
    lines.insert(second, lines[second].replace(b'"startTimeUnixNano":"', b'"startTimeUnixNano":"-'))
    journal.write_bytes(b"".join(lines))

    with LoopbackOtlpReceiver() as receiver:
        result = deliver_run(run_dir, destination(receiver))
        again = deliver_run(run_dir, destination(receiver))

    assert (result.sent, result.refused, result.waiting) == (4, 1, 0)
    assert (again.sent, again.refused, again.waiting) == (0, 0, 0)
    assert b"while encoding it" in next((run_dir / "journal/.deliver").glob("otlp-*.refused.jsonl")).read_bytes()


@pytest.mark.parametrize(
    "partial", [b"[]", b'{"rejectedSpans":[]}', b'{"rejectedSpans":"many"}', b'{"rejectedSpans":-4}', b"7"]
)
def test_an_odd_partial_success_raises_nothing_and_loses_nothing(tmp_path, partial):
    from http.server import BaseHTTPRequestHandler, HTTPServer

    bodies: list[bytes] = []

    class Odd(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            answer = b'{"partialSuccess":' + partial + b"}"
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Odd)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        run_dir = finished_run(tmp_path / "run")
        there = Destination(
            name="otlp", protocol="http/protobuf", url=f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
        )
        result = deliver_run(run_dir, there, timeout_s=0.2)
    finally:
        server.shutdown()
        server.server_close()
    assert result.sent + result.refused + result.waiting == 4
    assert result.refused == 0
    assert bodies


def test_an_answer_that_breaks_off_before_its_first_byte_is_no_acknowledgement(tmp_path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65_536)
                    connection.sendall(
                        b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 12\r\n\r\n"
                    )
                    connection.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1/traces"
        there = Destination(name="otlp", protocol="http/protobuf", url=url)

        result = deliver_run(finished_run(tmp_path / "run"), there, timeout_s=0.2)

    assert (result.sent, result.refused, result.waiting) == (0, 0, 4)


@pytest.mark.parametrize("status", [302, 401, 403, 404, 405])
def test_records_wait_for_a_key_or_address_to_be_mended_and_are_not_refused_for_it(tmp_path, monkeypatch, status):
    with LoopbackOtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        spanfold.configure(otlp=True)
        with receiver.answering(status=status, stores=False):
            with spanfold.run("sent", dir=tmp_path / "run"), spanfold.stage("M1"):
                pass
            begun = time.monotonic()
            result = spanfold.flush(30)
            assert time.monotonic() - begun < 20  # nobody waits for what cannot change
            assert (result.sent, result.refused, result.waiting) == (0, 0, 2)
            assert list(result.reasons.values()) == [2] and f"HTTP {status}" in next(iter(result.reasons))
            assert len(receiver.requests) < 6
        assert spanfold.flush(5).waiting == 0
        assert sorted(s.name for s in receiver.spans) == ["M1", "sent"]


def test_a_missing_certificate_is_a_reason_to_wait_and_no_exception(tmp_path):
    there = Destination(
        name="otlp", protocol="http/protobuf", url="https://127.0.0.1:1/v1/traces", certificate="/nowhere/ca.pem"
    )

    result = deliver_run(finished_run(tmp_path / "run"), there, timeout_s=0.2)

    assert (result.sent, result.waiting) == (0, 4)
    assert "FileNotFoundError" in result.reason


def test_a_forked_child_sends_nothing_twice(tmp_path):
    program = (
        "import os, spanfold\n"
        "with spanfold.run('sent', dir='run'):\n"
        "    with spanfold.stage('M1'): pass\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        with spanfold.tool('child'): pass\n"
        "        os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
    )
    with LoopbackOtlpReceiver() as receiver:
        env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "PYTHONWARNINGS": "ignore"}
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, check=True, timeout=60)
        assert sorted(s.name for s in receiver.spans) == ["M1", "execute_tool child", "sent"]


@pytest.mark.case("C-048")
def test_many_runs_are_each_sent_once_and_leave_nothing_behind(tmp_path, monkeypatch):
    def threads() -> list[str]:
        return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("spanfold-otlp"))

    def record(number: int) -> None:
        with spanfold.run(f"run-{number}", dir=tmp_path / f"{number}"), spanfold.stage(f"stage-{number}"):
            pass

    with LoopbackOtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        spanfold.configure(otlp=True)
        descriptors = len(os.listdir("/proc/self/fd"))
        for number in range(30):
            record(number)
        workers = [threading.Thread(target=record, args=(number,)) for number in range(30, 40)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert spanfold.flush(20).waiting == 0
        assert wait_until(lambda: threads() == [], 20)
        assert len(os.listdir("/proc/self/fd")) < descriptors + 10
        by_trace: dict[str, list[str]] = {}
        for span in receiver.spans:
            by_trace.setdefault(span.trace_id, []).append(span.name)
        assert len(by_trace) == 40
        assert sorted(map(sorted, by_trace.values())) == sorted([f"run-{n}", f"stage-{n}"] for n in range(40))


def test_a_short_flush_cuts_no_request_off_which_would_then_arrive_twice(tmp_path, monkeypatch):
    class Slow(LoopbackOtlpReceiver):
        def answer(self, request, reply):
            time.sleep(0.3)
            return super().answer(request, reply)

    with Slow() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        spanfold.configure(otlp=True)
        with spanfold.run("sent", dir=tmp_path / "run"):
            for i in range(5):
                with spanfold.stage("M1", cycle=i):
                    pass
                spanfold.flush(0.01)
        assert spanfold.flush(20).waiting == 0
        assert len({s.span_id for s in receiver.spans}) == len(receiver.spans) == 6
