"""What earlier runs left is sent by the next process: real processes, killed and at once, against a receiver on loopback."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import spanfold
from spanfold.deliver import Destination, backlogs, deliver_run
from spanfold.deliver._beside import look_beside
from spanfold.errors import LockedError
from spanfold.journal import host_name
from spanfold.testing import LoopbackLangfuse, LoopbackOtlpReceiver, Reply, wait_until

pytestmark = pytest.mark.slow

PROGRAM = """
import sys, spanfold
folder, name, count, shutdown_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
with spanfold.run(name, dir=f"{folder}/{name}"):
    for i in range(count):
        with spanfold.timed(f"{name}-{i}"):
            pass
    print("recorded", flush=True)
    sys.stdin.readline()
result = spanfold.shutdown(shutdown_s)
print(result.sent, result.waiting, flush=True)
"""
SCORED = PROGRAM.replace("            pass\n", "            spanfold.score('accuracy', i)\n")
STOPPED = PROGRAM.replace('    print("recorded"', '    spanfold.shutdown(0.1)\n    print("recorded"')
LOGGED = (
    """
import logging, sys
logging.basicConfig(filename=sys.argv[1] + ".log", level="INFO")
"""
    + PROGRAM
)
LOOP = """
import sys, time
from types import SimpleNamespace
from spanfold.diagnose import RunLogger
log = RunLogger(f"{sys.argv[1]}/{sys.argv[2]}")
log.log_run_start({"model": "m"})
log.log_diagnosis(0, SimpleNamespace(model_name="m", hypotheses=[], raw_judge_output="r", prompt="p"), duration_sec=1.5)
for i in range(3):
    log.log_model_call(cycle=0, analyzer="a", call_index=i, method="generate", inputs="x", kwargs={}, output="y",
                       duration_sec=0.01, error=None)
print("recorded", flush=True)
time.sleep(60)
"""


class Program:
    """A process that records a run, waits for a line, ends the run and itself, and says what became of its records."""

    def __init__(
        self,
        folder: Path,
        name: str,
        count: int = 3,
        *,
        shutdown_s: float = 5,
        program: str = PROGRAM,
        **environ: str,
    ) -> None:
        self.run_dir = folder / name
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(folder), name, str(count), str(shutdown_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
        )

    def recorded(self) -> "Program":
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "recorded\n"
        return self

    def end(self) -> list[int]:
        told, _ = self.process.communicate("\n", timeout=60)
        assert self.process.returncode == 0
        return [int(word) for word in told.split()]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


@pytest.fixture
def receiver() -> Iterator[LoopbackOtlpReceiver]:
    with LoopbackOtlpReceiver() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, receiver: LoopbackOtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    monkeypatch.setenv("SPANFOLD_LANGFUSE", "false")
    return tmp_path / "runs"


@contextmanager
def down(receiver: LoopbackOtlpReceiver) -> Iterator[None]:
    receiver.stop()
    try:
        yield
    finally:
        receiver.start()


def unsent(receiver: LoopbackOtlpReceiver, folder: Path, name: str, count: int = 3, **environ: str) -> Path:
    """Record a whole run while the collector is down."""
    with down(receiver):
        program = Program(folder, name, count, shutdown_s=0.2, **environ).recorded()
        assert program.end() == [0, count + 1]
    return program.run_dir


def named(name: str, count: int, *, is_whole: bool = True) -> set[str]:
    return {f"{name}-{i}" for i in range(count)} | ({name} if is_whole else set())


def arrived(receiver: LoopbackOtlpReceiver) -> Counter[str]:
    return Counter(span.name for span in receiver.spans)


def waiting(run_dir: Path) -> int:
    return sum(backlog.waiting for backlog in backlogs(run_dir))


def once(*names: set[str]) -> Counter[str]:
    return Counter({name: 1 for some in names for name in some})


# -- what arrives


def test_the_next_process_sends_what_a_run_left_when_the_collector_was_down(receiver, folder):
    first = unsent(receiver, folder, "first")
    assert waiting(first) == 4

    later = Program(folder, "later").recorded()
    assert wait_until(lambda: waiting(first) == 0, 30)

    assert later.end() == [4, 0]  # what it says is of its own run
    assert arrived(receiver) == once(named("first", 3), named("later", 3))


def test_of_a_run_that_was_killed_what_has_ended_is_sent_and_no_more(receiver, folder):
    with down(receiver):
        killed = Program(folder, "killed").recorded()
        assert wait_until(lambda: backlogs(killed.run_dir), 30)
        killed.kill()

    later = Program(folder, "later").recorded()
    assert wait_until(lambda: waiting(killed.run_dir) == 0, 30)
    later.end()

    assert arrived(receiver) == once(named("killed", 3, is_whole=False), named("later", 3))
    again = Program(folder, "again").recorded()
    time.sleep(1)
    again.end()
    assert arrived(receiver) == once(named("killed", 3, is_whole=False), named("later", 3), named("again", 3))


def test_a_journal_that_a_killed_diagnose_loop_left_elsewhere_is_sent_too(receiver, folder):
    with down(receiver):
        killed = Program(folder, "killed", program=LOOP).recorded()
        assert wait_until(lambda: backlogs(killed.run_dir), 30)
        killed.kill()
    left = waiting(killed.run_dir)
    assert left and not (killed.run_dir / "journal").exists()

    later = Program(folder, "later").recorded()
    assert wait_until(lambda: waiting(killed.run_dir) == 0, 30)
    later.end()
    assert len(receiver.spans) == left + 4


def test_what_a_destination_acknowledged_before_is_not_sent_again(receiver, folder):
    half = Program(folder, "half", shutdown_s=0.2).recorded()
    assert wait_until(lambda: len(receiver.spans) == 3, 30)
    with down(receiver):
        assert half.end() == [3, 1]

    later = Program(folder, "later").recorded()
    assert wait_until(lambda: waiting(half.run_dir) == 0, 30)
    later.end()
    assert arrived(receiver) == once(named("half", 3), named("later", 3))


def test_the_newest_run_is_sent_first(receiver, folder):
    for name, age_s in (("old", 300), ("new", 100), ("older", 500)):
        run_dir = unsent(receiver, folder, name)
        os.utime(run_dir, (time.time() - age_s,) * 2)

    later = Program(folder, "later").recorded()
    assert wait_until(lambda: len(receiver.spans) == 15, 30)
    later.end()
    order = [span.name for span in receiver.spans if span.name in ("old", "new", "older")]
    assert order == ["new", "old", "older"]


def test_runs_in_the_folder_of_the_settings_are_sent_by_a_run_elsewhere(receiver, folder, tmp_path):
    first = unsent(receiver, folder, "first")

    later = Program(tmp_path / "elsewhere", "later", SPANFOLD_RUN_DIR=str(folder)).recorded()
    assert wait_until(lambda: waiting(first) == 0, 30)
    later.end()


def test_content_that_was_recorded_to_stay_here_stays_here(receiver, folder, monkeypatch):
    with down(receiver):
        spanfold.configure(otlp=True, content="local")
        with spanfold.run("first", dir=folder / "first"), spanfold.model_call("m", input="a private question"):
            pass
        spanfold.shutdown(0.2)
        # A process that lives would go on with it by itself.
        for journal in (folder / "first" / "journal").glob("*.otlp.jsonl"):
            journal.rename(journal.with_name(f"19990101T000000Z-1-{'0' * 8}.otlp.jsonl"))

    later = Program(folder, "later", SPANFOLD_CONTENT="all").recorded()
    assert wait_until(lambda: waiting(folder / "first") == 0, 30)
    later.end()
    assert "chat m" in arrived(receiver)
    assert b"private" not in receiver.payloads()


def test_scores_of_an_earlier_run_go_to_langfuse_with_its_spans(tmp_path, monkeypatch):
    pytest.importorskip("langfuse")
    with LoopbackLangfuse() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.stop()
        first = Program(tmp_path, "first", shutdown_s=0.2, program=SCORED).recorded()
        first.end()
        server.start()

        later = Program(tmp_path, "later", 0).recorded()
        assert wait_until(lambda: waiting(first.run_dir) == 0, 30)
        later.end()
        assert once(named("first", 3), {"later"}) == Counter(span.name for span in server.spans)
        assert sorted(score["value"] for score in server.scores.values()) == [0, 1, 2]


# -- what does not


@pytest.mark.parametrize("case", ["off", "another address", "switched off now"])
def test_a_run_goes_nowhere_it_was_not_meant_to_go(receiver, folder, case):
    with LoopbackOtlpReceiver() as other:
        elsewhere = other.endpoint
    recorded = {"off": {"SPANFOLD_OTLP": "false"}, "another address": {"OTEL_EXPORTER_OTLP_ENDPOINT": elsewhere}}
    now = {"SPANFOLD_DELIVER_EARLIER": "false"} if case == "switched off now" else {}
    with down(receiver):
        Program(folder, "first", shutdown_s=0.2, **recorded.get(case, {})).recorded().end()

    later = Program(folder, "later", **now).recorded()
    time.sleep(1.5)
    assert later.end() == [4, 0]
    assert arrived(receiver) == once(named("later", 3))


def test_a_run_that_a_living_process_records_is_left_to_it(receiver, folder):
    with down(receiver):
        living = Program(folder, "living", program=STOPPED).recorded()
    try:
        # Nobody holds the lock: its process has stopped sending, and goes on recording.
        later = Program(folder, "later").recorded()
        time.sleep(1.5)
        later.end()
        assert arrived(receiver) == once(named("later", 3))
    finally:
        living.kill()
    again = Program(folder, "again").recorded()
    assert wait_until(lambda: waiting(living.run_dir) == 0, 30)
    again.end()
    assert arrived(receiver) == once(named("living", 3, is_whole=False), named("later", 3), named("again", 3))


def test_the_log_says_how_many_runs_wait_and_does_not_count_its_own_run_as_left(receiver, folder):
    unsent(receiver, folder, "first", count=0)
    later = Program(folder, "later", program=LOGGED).recorded()
    log = folder.with_suffix(".log")
    assert wait_until(lambda: "1 record of earlier runs was sent.\n" in log.read_text(), 30)
    later.end()

    told = log.read_text()
    assert "records of 1 earlier run wait.\n" in told
    assert "left" not in told


def test_nothing_is_reached_through_a_link(receiver, folder, tmp_path):
    for name in ("run", "journal", "folder", "file"):
        unsent(receiver, tmp_path / "outside", name)
    outside = tmp_path / "outside"
    (folder / "folder").mkdir(parents=True)
    (folder / "run").symlink_to(outside / "run")
    (folder / "journal").mkdir()
    (folder / "journal/journal").symlink_to(outside / "journal/journal")
    for name in ("folder", "file"):
        (folder / name / "journal").mkdir(parents=True)
        for journal in (outside / name / "journal").glob("*.otlp.jsonl"):
            (folder / name / "journal" / journal.name).write_bytes(journal.read_bytes())
    (folder / "folder/journal/.deliver").symlink_to(outside / "folder/journal/.deliver")
    (folder / "file/journal/.deliver").mkdir()
    (ack,) = (outside / "file/journal/.deliver").glob("*.ack.jsonl")
    (folder / "file/journal/.deliver" / ack.name).symlink_to(ack)
    (folder / "broken").symlink_to(folder / "nowhere")

    later = Program(folder, "later").recorded()
    time.sleep(1.5)
    assert later.end() == [4, 0]
    assert arrived(receiver) == once(named("later", 3))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a folder away")
def test_a_run_of_somebody_else_is_left_to_him(receiver, folder):
    first = unsent(receiver, folder, "first")
    os.chown(first, 12345, 12345)

    later = Program(folder, "later").recorded()
    time.sleep(1)
    later.end()
    assert arrived(receiver) == once(named("later", 3))


def test_of_the_runs_of_another_machine_only_those_that_have_ended_are_sent(receiver, folder):
    with down(receiver):
        killed = Program(folder, "killed").recorded()
        assert wait_until(lambda: backlogs(killed.run_dir), 30)
        killed.kill()
    ended = unsent(receiver, folder, "ended")
    for run_dir in (killed.run_dir, ended):
        for file in (*run_dir.glob("run.json"), *(run_dir / "journal").glob("*.otlp.jsonl")):
            file.write_text(file.read_text().replace(json.dumps(host_name()), '"another-machine"'))

    later = Program(folder, "later").recorded()
    assert wait_until(lambda: waiting(ended) == 0, 30)
    time.sleep(0.5)
    later.end()
    assert arrived(receiver) == once(named("ended", 3), named("later", 3))


def test_a_run_and_its_copy_are_not_both_sent(receiver, folder):
    first = unsent(receiver, folder, "first")
    shutil.copytree(first, folder / "backup")

    later = Program(folder, "later").recorded()
    time.sleep(1)
    later.end()
    assert arrived(receiver) == once(named("later", 3))
    assert (waiting(first), waiting(folder / "backup")) == (4, 4)  # so that doctor tells of them


# -- what is odd


def test_broken_and_foreign_folders_cost_only_themselves(receiver, folder):
    good = unsent(receiver, folder, "good")
    broken = unsent(receiver, folder, "broken")
    (journal,) = (broken / "journal").glob("*.otlp.jsonl")
    journal.write_bytes(b"\0" * 100 + b'{"resourceSpans":[{]}\n' + os.urandom(10_000) + journal.read_bytes()[:-40])
    acks = unsent(receiver, folder, "acks")
    (ack,) = (acks / "journal/.deliver").glob("*.ack.jsonl")
    ack.write_bytes(os.urandom(500) + b'\n{"file":7,"offset":"x"}\n[]\n')
    fifo = unsent(receiver, folder, "fifo")
    (lock,) = (fifo / "journal/.deliver").glob("*.lock")
    lock.unlink()
    os.mkfifo(lock)
    (folder / "file").write_bytes(b"no folder")
    (folder / "empty/journal/.deliver").mkdir(parents=True)

    later = Program(folder, "later").recorded()
    assert wait_until(lambda: (waiting(good), waiting(acks)) == (0, 0), 30)
    assert later.end() == [4, 0]
    found = arrived(receiver)
    assert found & once(named("good", 3), named("acks", 3)) == once(named("good", 3), named("acks", 3))
    assert not found & once(named("fifo", 3))
    assert max(found.values()) == 1 and not receiver.problems


def test_a_folder_of_ten_thousand_runs_takes_bounded_time(receiver, folder):
    first = unsent(receiver, folder, "first")
    for number in range(10_000):
        (folder / f"run-{number}").mkdir()
    os.utime(first)
    (ack,) = (first / "journal/.deliver").glob("*.ack.jsonl")
    key = ack.name.removesuffix(".ack.jsonl")

    found = look_beside(folder, [key], time.monotonic() + 60)
    assert [(run_dir.name, keys) for run_dir, keys in found.waiting] == [("first", [key])]
    found = look_beside(folder, [key], time.monotonic())
    assert not found.waiting and any("no time left" in why for why in found.left)

    later = Program(folder, "later").recorded()
    assert wait_until(lambda: waiting(first) == 0, 30)
    later.end()


def test_a_run_that_breaks_the_server_keeps_no_other_waiting(receiver, folder):
    good = unsent(receiver, folder, "good")
    bad = unsent(receiver, folder, "bad", 0)
    receiver.break_names = frozenset({"bad"})

    later = Program(folder, "later").recorded()
    assert wait_until(lambda: waiting(good) == 0, 30)
    assert later.end() == [4, 0]
    assert waiting(bad) == 1


# -- processes that come together, and that die


def test_two_processes_at_once_send_each_record_once(receiver, folder):
    count = 600
    for name in ("a", "b", "c"):
        unsent(receiver, folder, name, count)

    both = [Program(folder, name) for name in ("x", "y")]
    for one in both:
        one.recorded()
    assert wait_until(lambda: all(waiting(folder / name) == 0 for name in ("a", "b", "c")), 60)
    for one in both:
        assert one.end() == [4, 0]
    assert arrived(receiver) == once(*(named(name, count) for name in "abc"), named("x", 3), named("y", 3))


def test_what_was_acknowledged_before_a_kill_in_the_middle_is_never_sent_again(receiver, folder):
    count = 6000
    first = unsent(receiver, folder, "first", count)

    picker = Program(folder, "picker", 0).recorded()
    assert wait_until(lambda: len(receiver.spans) > 512, 30)
    picker.kill()
    left, before = waiting(first), len(receiver.spans)
    assert 0 < left < count

    later = Program(folder, "later", 0).recorded()
    assert wait_until(lambda: waiting(first) == 0, 60)
    later.end()
    sent_again = [span.name for span in receiver.spans[before:] if span.name != "later"]
    assert len(sent_again) == left  # all that was not acknowledged, and nothing else
    assert named("first", count) <= set(arrived(receiver))
    assert len(receiver.spans) - len(arrived(receiver)) <= 512  # the one request whose answer the kill has lost


def test_while_it_waits_for_the_collector_anybody_else_may_send_the_run(receiver, folder):
    first = unsent(receiver, folder, "first")
    with down(receiver):
        idle = Program(folder, "idle", 0).recorded()
        time.sleep(1.5)  # it has tried by now
        there = Destination(name="otlp", protocol="http/protobuf", url=f"{receiver.endpoint}/v1/traces")
        assert wait_until(lambda: tried(first, there), 30)
        idle.kill()


def tried(run_dir: Path, there: Destination) -> bool:
    try:
        return deliver_run(run_dir, there, timeout_s=0.1).waiting == 4
    except LockedError:  # in the moment of a try
        return False


def test_who_is_asked_to_send_a_run_is_not_refused_because_it_is_being_picked_up(receiver, folder):
    count = 6000
    first = unsent(receiver, folder, "first", count)
    there = Destination(name="otlp", protocol="http/protobuf", url=f"{receiver.endpoint}/v1/traces")

    spanfold.configure(otlp=True)
    with spanfold.run("later", dir=folder / "later"):
        assert wait_until(lambda: receiver.spans, 30)  # it is being picked up by this process
        result = deliver_run(first, there)
        assert (result.waiting, result.refused) == (0, 0)
        assert 0 < result.sent < count
    spanfold.shutdown(5)
    assert arrived(receiver) == once(named("first", count), {"later"})


def test_a_loop_that_goes_on_with_its_killed_run_takes_it_over_from_who_sends_it(receiver, folder, capfd):
    many = LOOP.replace("range(3)", "range(6000)")
    with down(receiver):
        killed = Program(folder, "killed", program=many).recorded()
        assert wait_until(lambda: backlogs(killed.run_dir), 30)
        killed.kill()

    later = Program(folder, "later", 0).recorded()
    assert wait_until(lambda: receiver.spans, 30)
    again = Program(folder, "killed", program=LOOP).recorded()
    assert wait_until(lambda: waiting(killed.run_dir) == 0, 60)
    again.kill()
    assert later.end() == [1, 0]
    sent = Counter(span.span_id for span in receiver.spans)
    assert len(sent) > 6000
    assert len(receiver.spans) - len(sent) <= 512  # the request that was on its way when the journal moved
    assert "could not be taken along" not in capfd.readouterr().err


# -- the guest


def test_the_end_of_a_process_does_not_wait_for_earlier_runs(receiver, folder):
    unsent(receiver, folder, "first")
    receiver.reply = Reply(behaviour="hang", stores=False)

    later = Program(folder, "later", 0, shutdown_s=0.2).recorded()
    assert wait_until(lambda: receiver.requests, 30)  # a request with the earlier run is on its way, and hangs
    begun = time.monotonic()
    later.end()
    assert time.monotonic() - begun < 5  # a request may take 10 s


class _SlowForEarlier(LoopbackOtlpReceiver):
    """Answers requests that hold records of another run than `later` half a second late."""

    def __init__(self) -> None:
        super().__init__()
        self._slow = threading.local()

    def answer(self, request, reply):
        before = len(self.spans)
        answer = super().answer(request, reply)
        self._slow.seconds = 0.5 if any(span.name.startswith("first") for span in self.spans[before:]) else 0
        return answer

    def _send(self, handler, answer, reply) -> None:
        time.sleep(self._slow.seconds)
        super()._send(handler, answer, reply)


def test_the_answer_to_a_request_that_is_on_its_way_is_noted_before_the_process_ends(folder, monkeypatch):
    with _SlowForEarlier() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        first = unsent(receiver, folder, "first", 2000)

        later = Program(folder, "later", 0).recorded()
        assert wait_until(lambda: receiver.spans, 30)
        later.end()
        assert waiting(first) == 2001 - len([s for s in receiver.spans if s.name != "later"])


def test_a_wrong_key_is_not_tried_for_every_earlier_run(receiver, folder):
    for name in "abc":
        unsent(receiver, folder, name)
    receiver.reply = Reply(status=401, stores=False)

    later = Program(folder, "later", 0).recorded()
    assert wait_until(lambda: receiver.requests, 30)
    time.sleep(1.5)
    assert len(receiver.requests) == 1
    later.kill()
