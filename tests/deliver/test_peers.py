"""Promise P9 against peers that behave badly.

A destination holds what it acknowledged, `flush()` and the command line say how many records were sent, refused and are
waiting, nobody waits longer than was said, and nothing is lost or refused for what a peer does.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import spanfold
from spanfold.deliver import Delivery, Destination, deliver_run
from spanfold.errors import LockedError
from spanfold.testing import LoopbackGrpcReceiver, LoopbackOtlpReceiver, Reply, wait_until
from spanfold.testing._http import decode_spans

pytestmark = pytest.mark.slow


def unsent(folder: Path, n: int = 3) -> Path:
    spanfold.configure(otlp=False)
    with spanfold.run("sent", dir=folder) as run:
        for i in range(n):
            with spanfold.timed(f"t{i}", phase="pass"):
                pass
    return run.dir


def at(url: str, **changes: object) -> Destination:
    return Destination(**{"name": "otlp", "protocol": "http/protobuf", "url": f"{url}/v1/traces", **changes})


@contextmanager
def peer(serve) -> Iterator[str]:
    """Serve each connection by a function, in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(60)
    kept: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            kept.append(connection)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        for connection in kept:
            connection.close()


def never_answers(connection: socket.socket) -> None:
    pass


def drips_its_first_line(connection: socket.socket) -> None:
    drip(connection, b"HTTP/1.1 200 OK" + b" " * 10_000)


def drips_headers(connection: socket.socket) -> None:
    drip(connection, b"HTTP/1.1 200 OK\r\n" + b"x-a: 1\r\n" * 10_000)


def drips_interim_answers(connection: socket.socket) -> None:
    drip(connection, b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000)


def drips_chunks(connection: socket.socket) -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: application/x-protobuf\r\n\r\n"
    drip(connection, head + b"1\r\n \r\n" * 10_000, at_once=len(head))


def drip(connection: socket.socket, data: bytes, at_once: int = 0) -> None:
    try:
        connection.sendall(data[:at_once])
        for byte in data[at_once:]:
            connection.sendall(bytes([byte]))
            time.sleep(0.02)
    except OSError:
        pass


def talks_nonsense(connection: socket.socket) -> None:
    try:
        connection.sendall(b"\x00\xff" * 40_000 + b"\r\n\r\n")
    except OSError:
        pass


def refuses_early(connection: socket.socket) -> None:
    """Answer before the request has come to its end, and close: what many servers do with one that is too large."""
    connection.recv(1000)
    connection.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    time.sleep(0.1)
    connection.close()  # with unread data: the other side is told that the connection was reset


def refuses_early_and_lingers(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    with suppress(OSError):  # the test is over and has closed it
        while connection.recv(65_536):
            pass


@pytest.mark.case("C-040")
@pytest.mark.parametrize(
    "serve",
    [never_answers, drips_its_first_line, drips_headers, drips_interim_answers, drips_chunks, talks_nonsense],
    ids=lambda serve: serve.__name__,
)
def test_a_delivery_ends_in_time_whatever_the_peer_says(tmp_path, serve):
    run_dir = unsent(tmp_path / "run")
    with peer(serve) as url:
        begun = time.monotonic()
        result = deliver_run(run_dir, at(url), timeout_s=0.5)
        assert time.monotonic() - begun < 5
        assert (result.sent, result.refused, result.waiting) == (0, 0, 4)
        assert result.reason


@pytest.mark.case("C-040")
def test_a_delivery_ends_in_time_when_the_peer_reads_slowly(tmp_path):
    spanfold.configure(otlp=False)
    with spanfold.run("sent", dir=tmp_path / "run") as run, spanfold.timed("large") as large:
        large.set(text="x" * 8_000_000)

    def reads_slowly(connection: socket.socket) -> None:
        try:
            while connection.recv(2000):
                time.sleep(0.05)
        except OSError:
            pass

    with peer(reads_slowly) as url:
        begun = time.monotonic()
        assert deliver_run(run.dir, at(url), timeout_s=0.5).waiting == 2
        assert time.monotonic() - begun < 5


@pytest.mark.case("C-040")
def test_a_name_server_that_hangs_holds_up_neither_delivery_nor_exit(tmp_path):
    unsent(tmp_path / "run")
    program = (
        "import socket, time\n"
        "socket.getaddrinfo = lambda *given, **named: time.sleep(60)\n"  # what a resolver without an answer does
        "from pathlib import Path\n"
        "import spanfold\n"
        "from spanfold.deliver import deliver_run, destinations\n"
        "from spanfold.settings import resolve\n"
        "import os\n"
        "begun = time.monotonic()\n"
        "[there] = destinations(resolve(), os.environ)\n"
        "print(deliver_run(Path('run'), there, timeout_s=0.5).reason)\n"
        "with spanfold.run('live', dir='live'): pass\n"
        "print(spanfold.flush(0.5).waiting)\n"
        "spanfold.shutdown(0.5)\n"
        "print(time.monotonic() - begun < 10)\n"
    )
    env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.invalid:4318"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stdout.split("\n")[:3] == ["no answer: TimeoutError", "1", "True"]


@pytest.mark.parametrize("serve", [refuses_early, refuses_early_and_lingers], ids=lambda serve: serve.__name__)
def test_an_answer_that_comes_before_the_end_of_the_request_is_heard(tmp_path, serve):
    spanfold.configure(otlp=False)
    with spanfold.run("sent", dir=tmp_path / "run") as run, spanfold.timed("large") as large:
        large.set(text="x" * 6_000_000)
    with peer(serve) as url:
        result = deliver_run(run.dir, at(url), timeout_s=20)
    assert (result.sent, dict(result.refusals), result.waiting) == (0, {"HTTP 413": 2}, 0)  # and not: no answer


def test_over_a_slow_line_smaller_requests_arrive_in_time(tmp_path):
    spanfold.configure(otlp=False)
    with spanfold.run("sent", dir=tmp_path / "run") as run:
        for i in range(80):
            with spanfold.timed(f"large-{i}") as large:
                large.set(text="x" * 100_000)
    with LoopbackOtlpReceiver() as receiver:
        with peer(lambda near: slow_line(near, receiver)) as url:
            result = deliver_run(run.dir, at(url, timeout_s=1.5), timeout_s=60)
        assert (result.sent, result.refused, result.waiting) == (81, 0, 0)
        assert len({s.span_id for s in receiver.spans}) == 81


def test_a_large_span_over_a_slow_line_gets_more_time_and_keeps_nobody_waiting_for_ever(tmp_path):
    spanfold.configure(otlp=False)
    with spanfold.run("sent", dir=tmp_path / "run") as run, spanfold.timed("large") as large:
        large.set(text="x" * 4_000_000)
    with LoopbackOtlpReceiver() as receiver:
        with peer(lambda near: slow_line(near, receiver)) as url:
            result = deliver_run(run.dir, at(url, timeout_s=1), timeout_s=60)
        assert (result.sent, result.refused, result.waiting) == (2, 0, 0)
        assert any(len(span.attributes.get("spanfold.text", "")) == 4_000_000 for span in receiver.spans)


def slow_line(near: socket.socket, receiver: LoopbackOtlpReceiver) -> None:
    """Hand requests on at less than 2 MB a second."""
    try:
        with socket.create_connection(("127.0.0.1", int(receiver.endpoint.rpartition(":")[2]))) as far:
            threading.Thread(target=pump, args=(far, near, 0.0), daemon=True).start()
            pump(near, far, 0.008)
    except OSError:
        pass  # given up


def pump(source: socket.socket, target: socket.socket, pause_s: float) -> None:
    try:
        while data := source.recv(16_384):
            target.sendall(data)
            time.sleep(pause_s)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.mark.parametrize("status", [500, 501, 505])
def test_a_record_that_breaks_the_server_is_told_from_a_server_that_is_broken(tmp_path, status):
    run_dir = unsent(tmp_path / "run", 40)
    with LoopbackOtlpReceiver() as receiver:
        with receiver.answering(status=status, stores=False):
            broken = deliver_run(run_dir, at(receiver.endpoint), timeout_s=20)
        assert (broken.sent, broken.refused, broken.waiting) == (0, 0, 41)
        assert len(receiver.requests) < 30

        receiver.break_names = frozenset({"t0", "t17"})
        result = deliver_run(run_dir, at(receiver.endpoint), timeout_s=20)

        assert (result.sent, dict(result.refusals), result.waiting) == (39, {"HTTP 500": 2}, 0)
        lines = next((run_dir / "journal/.deliver").glob("otlp-*.refused.jsonl")).read_text().splitlines()
        assert [json.loads(line)["name"] for line in lines] == ["t0", "t17"]


REPLIES = st.sampled_from(
    [
        *({"status": status} for status in (200, 302, 400, 401, 413, 429, 500, 503)),
        *({"behaviour": behaviour} for behaviour in ("close", "html")),
        *({"behaviour": "partial", "rejected": rejected} for rejected in (1, 3, 1000)),
    ]
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(replies=st.lists(REPLIES, max_size=12))
# A record that may have broken the server, and one behind it that is refused for good, when it goes away.
@example(replies=[*({"status": s} for s in (400, 400, 400, 400, 500, 400, 302))])
def test_the_count_of_what_arrived_is_that_of_the_destination_whatever_it_answers(tmp_path_factory, replies):
    class Recording(LoopbackOtlpReceiver):
        """Answers as planned, then takes everything; counts what it has acknowledged and rejected."""

        def __init__(self) -> None:
            super().__init__()
            self.plan = [Reply(**reply) for reply in replies]
            self.acknowledged: list[str] = []
            self.rejected = 0

        def _reply(self) -> Reply:
            return self.plan.pop(0) if self.plan else Reply()

        def answer(self, request, reply):
            answer = super().answer(request, reply)
            if answer.status == 200 and reply.behaviour in ("accept", "partial"):
                ids = [span.span_id for span in decode_spans(request)]
                self.acknowledged += ids
                self.rejected += min(reply.rejected, len(ids))
            return answer

    run_dir = unsent(tmp_path_factory.mktemp("plan") / "run", 19)
    sent = refused = 0
    with Recording() as receiver:
        for _ in range(40):
            result = deliver_run(run_dir, at(receiver.endpoint), timeout_s=0.4)
            sent, refused = sent + result.sent, refused + result.refused
            assert sent + refused + result.waiting == 20
            assert bool(result.reason) == bool(result.waiting or result.refused)
            if not result.waiting:
                break
        assert result.waiting == 0
        assert len(set(receiver.acknowledged)) == len(receiver.acknowledged)
        assert sent == len(receiver.acknowledged) - receiver.rejected
    lines = (run_dir / "journal" / ".deliver").glob("*.refused.jsonl")
    assert refused == sum(json.loads(line)["spans"] for file in lines for line in file.read_text().splitlines())


@pytest.mark.case("C-045")
def test_what_arrived_before_a_failure_is_not_sent_again_also_by_another_process(tmp_path):
    run_dir = unsent(tmp_path / "run", 63)

    class Failing(LoopbackOtlpReceiver):
        is_failing = True

        def answer(self, request, reply):
            # It takes what comes after two halvings, and then goes away.
            reply.status = 503 if self.is_failing and len(self.requests) > 3 else 200
            return super().answer(request, reply)

    with Failing() as receiver:
        receiver.refuse_names = frozenset({"t40"})
        first = deliver_run(run_dir, at(receiver.endpoint), timeout_s=0.3)
        assert 0 < first.sent < 63
        receiver.is_failing = False
        program = (
            "import sys\nfrom pathlib import Path\nfrom spanfold.deliver import Destination, deliver_run\n"
            "there = Destination(name='otlp', protocol='http/protobuf', url=sys.argv[1])\n"
            "deliver_run(Path('run'), there)"
        )
        subprocess.run([sys.executable, "-c", program, f"{receiver.endpoint}/v1/traces"], cwd=tmp_path, check=True)
        assert len({s.span_id for s in receiver.spans}) == len(receiver.spans) == 63


def test_a_destination_that_is_down_takes_no_time_from_another(tmp_path, monkeypatch):
    """Both are asked at once: the second one does not wait for the first to give up."""
    from spanfold.testing import LoopbackLangfuse

    with peer(never_answers) as dead, LoopbackLangfuse() as langfuse:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", dead)
        for name, value in langfuse.environment.items():
            monkeypatch.setenv(name, value)
        spanfold.configure(otlp=True, langfuse=True)
        with spanfold.run("sent", dir=tmp_path / "run"), spanfold.stage("M1"):
            pass
        begun = time.monotonic()
        result = spanfold.shutdown(2)
        assert time.monotonic() - begun < 8
    assert (result.sent, result.waiting) == (2, 2)
    assert [why for why in result.reasons if dead in why and "waiting" in why]


# -- who sends


def test_only_one_sends_while_the_run_is_recorded(tmp_path, monkeypatch):
    with LoopbackOtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        spanfold.configure(otlp=True)
        with spanfold.run("sent", dir=tmp_path / "run") as run:
            with spanfold.stage("M1"):
                pass
            assert wait_until(lambda: receiver.spans)
            with pytest.raises(LockedError, match="expected nobody to send it"):
                deliver_run(run.dir, at(receiver.endpoint))
        assert spanfold.shutdown(5).waiting == 0
        assert deliver_run(run.dir, at(receiver.endpoint)).sent == 0
        assert sorted(s.name for s in receiver.spans) == ["M1", "sent"]


def test_two_shells_at_once_send_everything_once(tmp_path):
    unsent(tmp_path / "runs" / "run", 2000)
    with LoopbackOtlpReceiver() as receiver:
        env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
        command = [sys.executable, "-m", "spanfold", "run", "deliver", "runs/run", "--json"]
        shells = [
            subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            for _ in range(3)
        ]
        answers = [json.loads(shell.communicate(timeout=60)[0])["destinations"][0] for shell in shells]
        codes = [shell.returncode for shell in shells]
        assert sum(answer["sent"] for answer in answers) == 2001
        assert len({s.span_id for s in receiver.spans}) == len(receiver.spans) == 2001
        assert 0 in codes and set(codes) <= {0, 5}
        assert subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=True).returncode == 0


def test_a_process_killed_while_it_delivers_leaves_the_rest_to_the_next(tmp_path):
    unsent(tmp_path / "run", 1500)
    with LoopbackOtlpReceiver() as receiver:
        program = (
            "import sys\nfrom pathlib import Path\nfrom spanfold.deliver import Destination, deliver_run\n"
            "there = Destination(name='otlp', protocol='http/protobuf', url=sys.argv[1])\n"
            "deliver_run(Path('run'), there, progress=lambda so_far: (print(so_far.sent, flush=True), sys.stdin.read(1)))"
        )
        sender = subprocess.Popen(
            [sys.executable, "-c", program, f"{receiver.endpoint}/v1/traces"],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert int(sender.stdout.readline()) == 512
        sender.send_signal(signal.SIGKILL)
        sender.wait(30)
        sender.stdin.close()
        sender.stdout.close()
        result = deliver_run(tmp_path / "run", at(receiver.endpoint))
        assert result.sent == 1501 - 512
        assert len({s.span_id for s in receiver.spans}) == len(receiver.spans) == 1501


def test_progress_says_how_much_is_left(tmp_path):
    run_dir = unsent(tmp_path / "run", 1100)
    told: list[Delivery] = []
    with LoopbackOtlpReceiver() as receiver:
        deliver_run(run_dir, at(receiver.endpoint), progress=told.append)
    assert [(one.sent, one.waiting) for one in told] == [(512, 589), (1024, 77), (1101, 0)]


@pytest.mark.case("C-039")
def test_a_process_that_forks_and_exits_in_every_way_sends_each_span_once(tmp_path):
    program = (
        "import os, sys, spanfold\n"
        "run = spanfold.run('sent', dir='run'); run.__enter__()\n"
        "for way in range(3):\n"
        "    with spanfold.stage('M1', cycle=way):\n"
        "        pid = os.fork()\n"
        "        if pid == 0:\n"
        "            with spanfold.tool('child'): pass\n"
        "            if way == 0: os._exit(0)\n"
        "            if way == 1: sys.exit(0)\n"
        "            break\n"
        "        os.waitpid(pid, 0)\n"
        "if pid: run.close()\n"
    )
    with LoopbackOtlpReceiver() as receiver:
        env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "PYTHONWARNINGS": "ignore"}
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, check=True, timeout=60)
        names = sorted(s.name for s in receiver.spans)
    assert names == ["M1"] * 3 + ["execute_tool child"] * 3 + ["sent"]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_fork_while_spans_are_sent_hangs_neither_side(tmp_path, protocol):
    program = (
        "import multiprocessing, spanfold\n"
        "def work(i):\n"
        "    with spanfold.tool('child', number=i): pass\n"
        "    return i\n"
        "with spanfold.run('sent', dir='run'):\n"
        "    for i in range(30):\n"
        "        with spanfold.stage('M1', cycle=i): pass\n"
        "        if i % 10 == 0: spanfold.flush(5)\n"
        "    with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "        print(sum(pool.map(work, range(20))))\n"
        "        pool.close(); pool.join()\n"
        "    print(spanfold.flush(10).waiting)\n"
    )
    server = LoopbackGrpcReceiver() if protocol == "grpc" else LoopbackOtlpReceiver()
    with server as receiver:
        env = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "PYTHONWARNINGS": "ignore",
        }
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stdout.split() == ["190", "0"]
        assert len({s.span_id for s in receiver.spans}) == len(receiver.spans) == 51


def test_sigterm_leaves_what_was_not_sent_to_the_next_delivery(tmp_path):
    program = (
        "import os, signal, spanfold\n"
        "with spanfold.run('sent', dir='run'):\n"
        "    with spanfold.stage('M1'): pass\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    with peer(never_answers) as dead, LoopbackOtlpReceiver() as receiver:
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": dead},
            check=False,
            timeout=60,
        )
        assert done.returncode == -signal.SIGTERM and time.monotonic() - begun < 20
        assert deliver_run(tmp_path / "run", at(receiver.endpoint)).sent == 2
