"""Reading the journal for a destination: in order of time over all files, in bounded memory, and back from where it stopped."""

import json
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spanfold
from spanfold.deliver import Destination, backlogs, deliver_run
from spanfold.deliver._answer import Answer
from spanfold.deliver._encode import request
from spanfold.deliver._outbox import Outbox
from spanfold.deliver._past import outbox_of
from spanfold.deliver._send import deliver_batch
from spanfold.deliver._spans import HELD_BYTES, MAX_SPAN_EVENTS
from spanfold.journal import journal_files
from spanfold.testing import LoopbackOtlpReceiver


@pytest.fixture
def receiver():
    with LoopbackOtlpReceiver() as running:
        yield running


def there(receiver: LoopbackOtlpReceiver, **changes: object) -> Destination:
    return Destination(
        **{"name": "otlp", "protocol": "http/protobuf", "url": f"{receiver.endpoint}/v1/traces", **changes}
    )


def test_what_a_child_process_recorded_inside_of_a_span_arrives_on_that_span(receiver, tmp_path):
    spanfold.configure(otlp=False)
    with spanfold.run("sent", dir=tmp_path / "run"), spanfold.stage("M1"):
        spanfold.event("from the parent")
        code = "import spanfold\nspanfold.event('from the child')\nspanfold.score('accuracy', 1)"
        subprocess.run([sys.executable, "-c", code], env=spanfold.child_env(), check=True)
        spanfold.event("from the parent again")
    assert len(journal_files(tmp_path / "run")) == 2

    assert deliver_run(tmp_path / "run", there(receiver)).sent == 2

    events = {span.name: [event.name for event in span.events] for span in receiver.spans}
    names = ["from the parent", "from the child", "gen_ai.evaluation.result", "from the parent again"]
    assert events == {"M1": names, "sent": []}


@pytest.mark.slow
def test_what_children_record_arrives_on_the_span_also_while_it_is_sent_at_once(receiver, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    spanfold.configure(otlp=True)
    with spanfold.run("sent", dir=tmp_path / "run"):
        for i in range(40):
            with spanfold.stage("M1", cycle=i):
                pid = os.fork()
                if pid == 0:
                    spanfold.event("from the child")
                    os._exit(0)
                os.waitpid(pid, 0)
            spanfold.flush(0)  # have it sent now
    assert spanfold.flush(20).waiting == 0
    stages = [span for span in receiver.spans if span.name == "M1"]
    assert [[event.name for event in span.events] for span in stages] == [["from the child"]] * 40


@pytest.mark.slow
def test_memory_does_not_grow_with_the_events_of_a_long_span(receiver, tmp_path):
    spanfold.configure(otlp=False)
    with spanfold.run("sent", dir=tmp_path / "run") as run, spanfold.timed("inner", phase="pass"):
        for i in range(6_000):
            run.event("note", text=f"{i} " + "x" * 4_000)  # of the run: it ends last
    journal_bytes = sum(path.stat().st_size for path in journal_files(run.dir))
    assert journal_bytes > 3 * HELD_BYTES

    outbox = outbox_of(run.dir, there(receiver))
    tracemalloc.start()
    held, peak = 0, 0
    try:
        events = iter(outbox._records())
        for record in events:
            if record.position is not None and record.name == "note":
                outbox.take(record, record.position)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 3 * HELD_BYTES < journal_bytes, peak

    result = deliver_run(run.dir, there(receiver))
    assert (result.sent, result.waiting) == (2, 0)
    (root,) = (span for span in receiver.spans if span.name == "sent")
    assert [event.attributes["spanfold.text"].split(" ")[0] for event in root.events[:3]] == ["0", "1", "2"]
    assert len(root.events) > 1000


@pytest.mark.slow
def test_memory_does_not_grow_with_the_journal(receiver, tmp_path):
    spanfold.configure(otlp=False)
    with spanfold.run("sent", dir=tmp_path / "run") as run:
        for i in range(6_000):
            with spanfold.timed("part", phase="pass") as part:
                part.set(text=f"{i} " + "x" * 12_000)
    assert sum(path.stat().st_size for path in journal_files(run.dir)) > 70_000_000
    outbox = outbox_of(run.dir, there(receiver))
    outbox.claim()
    tracemalloc.start()
    try:
        while outbox.fill():
            deliver_batch(outbox, Taker(), time.monotonic() + 60)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    outbox.release()
    assert outbox.sent == 6_001
    assert peak < 8 * there(receiver).window_bytes


class Taker:
    """A destination that takes every request, at no cost of memory."""

    def send(self, items, deadline, patience=1):
        assert request((item.record, item.content) for item in items)
        return Answer("accepted")

    def close(self):
        pass


@pytest.mark.slow
def test_events_of_a_span_beyond_what_a_page_shows_are_counted(receiver, tmp_path):
    spanfold.configure(otlp=False)
    with spanfold.run("sent", dir=tmp_path / "run") as run:
        for i in range(3):
            run.event("note", number=i)
    (path,) = journal_files(run.dir)
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"note"' in line)
    path.write_bytes(b"".join([*lines[:at], lines[at] * (MAX_SPAN_EVENTS + 5), *lines[at:]]))

    assert deliver_run(run.dir, there(receiver)).sent == 1

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    sent = ExportTraceServiceRequest.FromString(receiver.requests[-1].body).resource_spans[0].scope_spans[0].spans[0]
    assert (len(sent.events), sent.dropped_events_count) == (MAX_SPAN_EVENTS, 8)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(plan=st.lists(st.sampled_from(["take", "refuse", "stop", "crash", "record"]), max_size=25))
def test_each_record_is_settled_once_whatever_happens_between(tmp_path_factory, plan):
    """Compare with the obvious model: a set of spans, each leaves it when it is accepted or refused."""
    spanfold.configure(otlp=False)
    folder = tmp_path_factory.mktemp("plan") / "run"
    where = Destination(name="otlp", protocol="http/protobuf", url="http://127.0.0.1:1/v1/traces")
    settled: list[str] = []
    recorded = 0
    with spanfold.run("sent", dir=folder):
        outbox = opened(folder, where)
        for step in plan:
            if step == "record":
                for _ in range(5):
                    with spanfold.timed(f"t{recorded}", phase="pass"):
                        recorded += 1
            elif step == "stop":
                outbox.release()
                outbox = opened(folder, where)
            elif step == "crash":
                outbox.fill()
                outbox.acks._lock.release()  # what the system does for a process that has died
                outbox = opened(folder, where)
            elif step == "take" and (pending := outbox.fill()[:3]):
                outbox.accept(pending)
                settled += [item.record.span_id for item in pending]
            elif step == "refuse" and (pending := outbox.fill()):
                settled.append(pending[0].record.span_id)
                outbox.refuse(pending[0], "no")
            assert outbox.waiting() == recorded - len(settled)
        outbox.release()
    assert len(set(settled)) == len(settled)
    (backlog,) = backlogs(folder)
    assert backlog.waiting == recorded + 1 - len(settled)


def opened(folder: Path, where: Destination) -> Outbox:
    outbox = outbox_of(folder, where)
    outbox.claim()
    return outbox


def test_a_disk_that_takes_no_acknowledgements_makes_nothing_arrive_twice(receiver, tmp_path):
    spanfold.configure(otlp=False)
    with spanfold.run("sent", dir=tmp_path / "run") as run:
        for i in range(1200):
            with spanfold.timed(f"t{i}", phase="pass"):
                pass
    outbox = outbox_of(run.dir, there(receiver))
    outbox.claim()
    (ack,) = (run.dir / "journal" / ".deliver").glob("*.ack.jsonl")
    ack.rename(ack.with_suffix(".aside"))
    os.mkfifo(ack)  # no regular file: it is not written to
    assert len(outbox.fill()) == 512
    outbox.accept(list(outbox.pending))
    os.unlink(ack)
    ack.with_suffix(".aside").rename(ack)
    outbox.release()  # writes what could not be written

    result = deliver_run(run.dir, there(receiver))

    assert (result.sent, result.waiting) == (1201 - 512, 0)
    lines = [json.loads(line) for line in ack.read_text().splitlines()]
    assert sum(line.get("sent", 0) for line in lines) == 1201


def test_files_of_an_earlier_format_are_no_destination(tmp_path):
    spanfold.configure(otlp=False)
    with spanfold.run("sent", dir=tmp_path / "run") as run:
        pass
    folder = run.dir / "journal" / ".deliver"
    folder.mkdir()
    (folder / "otlp.ack.jsonl").write_text('{"file":"a","offset":1}\n')
    assert backlogs(run.dir) == []
