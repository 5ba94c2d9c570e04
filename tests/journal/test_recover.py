"""A run whose process died is finished: nothing it wrote is changed, what it could not write is added."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold import names
from spanfold.errors import JournalCorrupt, JournalMissing, LockedError, UnsafeEntryError
from spanfold.fs import FileLock, SafeRoot
from spanfold.journal._alive import host_name, process_start
from spanfold.journal._decode import fields
from spanfold.journal._reader import read_journal
from spanfold.journal._recover import Recovery, recover_run
from spanfold.journal._verify import verify_journal
from spanfold.model import Event, Record, Span
from tests.journal.samples import CHILD, SECOND, START, TRACE, File, line, small_run, span, started

pytestmark = pytest.mark.slow

NOW = START + 3600 * SECOND


def recovered(run_dir: Path, **options: Any) -> Recovery:
    return recover_run(run_dir, now_ns=lambda: NOW, **options)


def files_of(run_dir: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run_dir)): p.read_bytes() for p in sorted(run_dir.rglob("*")) if p.is_file()}


def records_of(run_dir: Path) -> list[Record]:
    return list(read_journal(run_dir).records)


def spans_of(run_dir: Path) -> dict[str, Span]:
    found = [r for r in records_of(run_dir) if isinstance(r, Span)]
    assert len(found) == len({s.span_id for s in found})
    return {s.span_id: s for s in found}


def interrupted_run(run_dir: Path) -> tuple[File, File]:
    """Write a run whose process and child process died: run, stage and a call are open, a timing of the child has ended."""
    owner = File(run_dir / "journal")
    owner.add(
        started("00000000000000a1", kind="run", name="sample", spanfold__depth=0, spanfold__run__id="sample"),
        started(
            "00000000000000a2",
            "00000000000000a1",
            kind="stage",
            name="M2",
            time=START + SECOND,
            spanfold__stage="M2",
            spanfold__cycle=3,
            spanfold__depth=0,
            spanfold__rows='{"big":123456789012345678901234567890,"none":null,"z":[]}',
            spanfold__json_fields=["spanfold.rows"],
        ),
        span(
            "00000000000000a3",
            "00000000000000a2",
            name="load",
            start=START + SECOND,
            end=START + 2 * SECOND,
            spanfold__kind="timing",
        ),
        started(
            "00000000000000a4",
            "00000000000000a2",
            kind="model_call",
            name="chat some-model",
            time=START + 2 * SECOND,
            spanfold__stage="M2",
            spanfold__depth=1,
            gen_ai__request__model="some-model",
        ),
    )
    child = File(run_dir / "journal", CHILD)
    child.add(
        span("00000000000000b1", "00000000000000a2", name="part", end=START + 5 * SECOND, spanfold__kind="timing")
    )
    return owner, child


# -- torn tails


@pytest.mark.case("C-038")
@given(data=st.data())
def test_a_last_record_cut_at_any_byte_is_set_aside_and_the_rest_kept(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    owner, _ = interrupted_run(run_dir)
    whole = owner.path.read_bytes()
    last = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    cut = data.draw(st.integers(last + 1, len(whole) - 1))
    owner.path.write_bytes(whole[:cut])
    kept = len(records_of(run_dir))

    recovery = recovered(run_dir)

    (aside,) = recovery.torn
    assert (aside.path, aside.offset, aside.length) == (owner.path, last, cut - last)
    assert aside.moved_to == owner.path.with_name(f"{owner.path.name}.torn-{last}")
    assert aside.moved_to.read_bytes() == whole[last:cut]
    assert owner.path.read_bytes() == whole[:last]
    assert len(records_of(run_dir)) == kept + len(recovery.ended) + 2
    assert verify_journal(run_dir).state == "intact"


def test_torn_bytes_under_a_taken_name_get_a_name_of_their_own(tmp_path: Path) -> None:
    owner, _ = interrupted_run(tmp_path)
    with owner.path.open("ab") as file:
        file.write(b"new tail")
    taken = owner.path.with_name(f"{owner.path.name}.torn-{owner.size}")
    taken.write_bytes(b"something else")

    (aside,) = recovered(tmp_path).torn

    assert aside.moved_to == taken.with_name(f"{taken.name}-2")
    assert (taken.read_bytes(), aside.moved_to.read_bytes()) == (b"something else", b"new tail")


def test_a_copy_that_an_earlier_attempt_made_is_used(tmp_path: Path) -> None:
    owner, _ = interrupted_run(tmp_path)
    with owner.path.open("ab") as file:
        file.write(b"tail")
    owner.path.with_name(f"{owner.path.name}.torn-{owner.size}").write_bytes(b"tail")

    (aside,) = recovered(tmp_path).torn

    assert aside.moved_to.name == f"{owner.path.name}.torn-{owner.size}"
    assert not [p for p in owner.path.parent.iterdir() if p.name.endswith("-2")]


# -- open spans


def test_open_spans_are_ended_as_interrupted_with_everything_their_start_said(tmp_path: Path) -> None:
    interrupted_run(tmp_path)
    events = {r.span_id: r for r in records_of(tmp_path) if isinstance(r, Event)}

    recovery = recovered(tmp_path)

    found = spans_of(tmp_path)
    for span_id, parent, kind, name in (
        ("00000000000000a1", "", "run", "sample"),
        ("00000000000000a2", "00000000000000a1", "stage", "M2"),
        ("00000000000000a4", "00000000000000a2", "model_call", "chat some-model"),
    ):
        one = found[span_id]
        assert (one.trace_id, one.parent_span_id, one.name) == (TRACE, parent, name)
        assert (one.start_ns, one.end_ns) == (events[span_id].time_ns, START + 5 * SECOND)
        assert (one.status_code, one.status_message) == (2, "interrupted")
        assert one.attributes["error.type"] == one.attributes["spanfold.outcome"] == "interrupted"
        assert one.attributes["spanfold.kind"] == kind
        assert (one.scope, dict(one.resource)) == (events[span_id].scope, dict(events[span_id].resource))
        assert fields(one) == fields(events[span_id])
    assert fields(found["00000000000000a2"])["rows"] == {"big": 123456789012345678901234567890, "none": None, "z": []}
    assert found["00000000000000a4"].otel_kind == 3
    assert found["00000000000000a4"].attributes["spanfold.parent"] == "m2"
    assert [(e.span_id, e.kind) for e in recovery.ended] == [
        ("00000000000000a4", "model_call"),
        ("00000000000000a2", "stage"),
        ("00000000000000a1", "run"),
    ]


def test_children_are_written_before_their_parents_then_the_event_then_the_seal(tmp_path: Path) -> None:
    interrupted_run(tmp_path)

    file = recovered(tmp_path).file

    assert file is not None
    mine = [r for r in records_of(tmp_path) if r.position and r.position.path == file]
    assert [r.span_id if isinstance(r, Span) else r.name for r in mine] == [
        "00000000000000a4",
        "00000000000000a2",
        "00000000000000a1",
        "spanfold.run.recovered",
        "spanfold.journal.sealed",
    ]
    told = mine[3]
    assert isinstance(told, Event)
    assert (told.trace_id, told.span_id, told.time_ns) == (TRACE, "00000000000000a1", NOW)
    assert fields(told) == {"ended_spans": 3, "set_aside": []}


def test_self_time_leaves_out_what_children_covered(tmp_path: Path) -> None:
    interrupted_run(tmp_path)
    recovered(tmp_path)

    own = {
        i: s.attributes["spanfold.self_ns"] / SECOND
        for i, s in spans_of(tmp_path).items()
        if "spanfold.self_ns" in s.attributes
    }

    # The run waits for the stage from its second 1 on; the stage is covered by load, the call and the child's part.
    assert own == {"00000000000000a1": 1.0, "00000000000000a2": 0.0, "00000000000000a4": 3.0}


def test_the_journal_of_a_recovered_run_is_intact_and_its_anchor_is_on_the_root_span(tmp_path: Path) -> None:
    interrupted_run(tmp_path)
    recovered(tmp_path)

    verdict = verify_journal(tmp_path)

    assert (verdict.state, verdict.findings) == ("intact", ())
    assert spans_of(tmp_path)["00000000000000a1"].attributes["spanfold.seal.head"] == verdict.anchor


def test_a_circle_of_parents_is_ended_too(tmp_path: Path) -> None:
    owner = File(tmp_path / "journal")
    owner.add(
        started("00000000000000a1", "00000000000000a2", kind="stage", name="a"),
        started("00000000000000a2", "00000000000000a1", kind="stage", name="b"),
    )

    assert len(recovered(tmp_path).ended) == 2


def test_ten_thousand_children_of_an_open_span_are_summed_up(tmp_path: Path) -> None:
    owner = File(tmp_path / "journal")
    owner.add(started("00000000000000a1", kind="run", name="r"))
    owner.add(
        *(
            span(
                f"{n + 256:016x}",
                "00000000000000a1",
                start=START + n * 100,
                end=START + n * 100 + 60,
                spanfold__kind="timing",
            )
            for n in range(10_000)
        )
    )

    recovered(tmp_path)

    root = spans_of(tmp_path)["00000000000000a1"]
    assert root.attributes["spanfold.self_ns"] == (root.end_ns - root.start_ns) - 10_000 * 60


# -- when there is nothing, or little, to do


def test_recovering_twice_changes_nothing_the_second_time(tmp_path: Path) -> None:
    owner, _ = interrupted_run(tmp_path)
    with owner.path.open("ab") as file:
        file.write(b'{"resourceSpans":')
    assert recovered(tmp_path).changed
    after = files_of(tmp_path)

    second = recovered(tmp_path)

    assert (second.changed, second.file, second.sealed) == (False, None, False)
    assert files_of(tmp_path) == after


def test_a_run_that_ended_by_itself_is_left_alone(tmp_path: Path) -> None:
    small_run(tmp_path)
    before = files_of(tmp_path)

    assert not recovered(tmp_path).changed
    assert files_of(tmp_path) == before


def test_a_dry_run_says_what_would_be_done_and_does_nothing(tmp_path: Path) -> None:
    owner, _ = interrupted_run(tmp_path)
    with owner.path.open("ab") as file:
        file.write(b"torn")
    before = files_of(tmp_path)

    said = recovered(tmp_path, dry_run=True)

    assert files_of(tmp_path) == before
    done = recovered(tmp_path)
    assert (said.torn, said.ended, said.sealed) == (done.torn, done.ended, done.sealed)
    assert (said.file, done.file is None) == (None, False)


def test_a_run_killed_between_its_end_and_its_seal_is_sealed_and_not_called_interrupted(tmp_path: Path) -> None:
    owner, _ = small_run(tmp_path)
    whole = owner.path.read_bytes()
    owner.path.write_bytes(whole[: whole.rindex(b"\n", 0, len(whole) - 1) + 1])

    recovery = recovered(tmp_path)

    assert (recovery.ended, recovery.torn, recovery.sealed) == ((), (), True)
    assert verify_journal(tmp_path).state == "intact"
    assert names.EVENT_RECOVERED not in {r.name for r in records_of(tmp_path)}


def test_lines_a_child_wrote_after_the_seal_are_taken_up(tmp_path: Path) -> None:
    _, child = small_run(tmp_path)
    child.add(span("00000000000000b9", "00000000000000a2", spanfold__kind="timing"))
    assert verify_journal(tmp_path).state == "broken"

    recovered(tmp_path)

    verdict = verify_journal(tmp_path)
    assert (verdict.state, [f.code for f in verdict.findings]) == ("intact", ["adopted"])
    assert not recovered(tmp_path).changed


def test_a_journal_of_another_otlp_writer_beside_ours_does_not_keep_a_run_unfinished(tmp_path: Path) -> None:
    interrupted_run(tmp_path)
    (tmp_path / "journal" / "other.otlp.jsonl").write_bytes(line(span("00000000000000ee")))

    assert recovered(tmp_path).changed
    assert not recovered(tmp_path).changed


def test_a_journal_in_which_the_start_of_the_run_is_missing_is_finished_too(tmp_path: Path) -> None:
    owner, _ = interrupted_run(tmp_path)
    owner.path.unlink()

    assert recovered(tmp_path).sealed
    assert names.EVENT_RECOVERED in {r.name for r in records_of(tmp_path)}
    assert not recovered(tmp_path).changed


def test_a_folder_without_a_journal_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalMissing):
        recover_run(tmp_path)


def test_a_journal_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    interrupted_run(tmp_path / "run")
    (tmp_path / "victim").write_bytes(b"precious without an end of line")
    (tmp_path / "run" / "journal" / "x.otlp.jsonl").symlink_to(tmp_path / "victim")

    with pytest.raises(UnsafeEntryError):
        recover_run(tmp_path / "run")
    assert (tmp_path / "victim").read_bytes() == b"precious without an end of line"


# -- when the journal is damaged: a new seal would hide it

FAMILY = """
    import subprocess, sys
    import spanfold
    spanfold.configure(otlp=False, langfuse=False)
    child = "import spanfold\\nwith spanfold.stage('M2'):\\n    spanfold.event('note', why='so')\\nspanfold.shutdown()"
    with spanfold.run("sample", dir=sys.argv[1]):
        for cycle in range(3):
            with spanfold.stage("M1", cycle=cycle), spanfold.timed("load"):
                spanfold.event("note", why="just so")
        if sys.argv[2:]:
            subprocess.run([sys.executable, "-c", child], env=spanfold.child_env(), check=True)
"""


def ended_run(run_dir: Path, *argv: str) -> tuple[Path, ...]:
    """Record a run that ends by itself, and return its journal files, that of its own process first."""
    subprocess.run([sys.executable, "-c", textwrap.dedent(FAMILY), str(run_dir), *argv], check=True, timeout=60)
    files = (run_dir / "journal").glob("*.otlp.jsonl")
    return tuple(sorted(files, key=lambda path: names.EVENT_SEALED.encode() not in path.read_bytes()))


def cut(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:-length])


def without_line(path: Path, index: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[index]
    path.write_bytes(b"".join(lines))


def with_other_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"just so", b"just sO", 1))


@pytest.mark.parametrize(
    "damage",
    [
        lambda owner, child: cut(owner, 400),
        lambda owner, child: [without_line(owner, -1) for _ in range(10)],
        lambda owner, child: cut(child, 400),
        lambda owner, child: without_line(child, -1),
        lambda owner, child: child.unlink(),
        lambda owner, child: owner.unlink(),
        lambda owner, child: without_line(owner, 4),
        lambda owner, child: with_other_byte(owner),
    ],
    ids=["torn seal", "last lines", "torn child", "last line of child", "no child", "no owner", "line", "byte"],
)
def test_a_sealed_run_that_lost_something_is_not_sealed_again(tmp_path: Path, damage: Any) -> None:
    owner, child = ended_run(tmp_path / "run", "child")
    damage(owner, child)
    verdict = verify_journal(tmp_path / "run")
    before = files_of(tmp_path / "run")

    assert verdict.state == "broken"
    for dry_run in (True, False):
        with pytest.raises(JournalCorrupt) as refused:
            recover_run(tmp_path / "run", dry_run=dry_run)
        assert verdict.damage is not None
        found = verdict.damage
        assert (refused.value.path, refused.value.offset, refused.value.length) == (
            found.path,
            found.offset,
            found.length,
        )
        assert str(found.path) in str(refused.value)
    assert files_of(tmp_path / "run") == before
    assert verify_journal(tmp_path / "run") == verdict


def test_a_recovery_that_was_cut_is_not_done_again(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start(RECORDING, str(run_dir))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    before = set((run_dir / "journal").glob("*.otlp.jsonl"))
    subprocess.run([sys.executable, "-m", "spanfold", "run", "recover", str(run_dir)], check=True, timeout=60)
    (written,) = set((run_dir / "journal").glob("*.otlp.jsonl")) - before
    cut(written, 400)

    with pytest.raises(JournalCorrupt, match=r"run\.json"):
        recover_run(run_dir)


def test_without_documents_a_seal_that_is_missing_is_taken_for_one_that_was_not_written(tmp_path: Path) -> None:
    (owner,) = ended_run(tmp_path / "run")
    without_line(owner, -1)
    (tmp_path / "run" / "run.json").unlink()
    assert verify_journal(tmp_path / "run").damage is None

    assert recover_run(tmp_path / "run").sealed


def test_the_number_of_lines_is_that_of_the_lines_that_are_there(tmp_path: Path) -> None:
    owner, child = ended_run(tmp_path / "run", "child")
    whole = verify_journal(tmp_path / "run").n_lines
    without_line(owner, 4)

    assert whole == sum(path.read_bytes().count(b"\n") for path in (owner, child)) + 1
    assert verify_journal(tmp_path / "run").n_lines == whole - 1


# -- who may still be at work

RECORDING = """
    import sys, time
    import spanfold
    run = spanfold.run("sample", dir=sys.argv[1]).__enter__()
    stage = spanfold.stage("M2", cycle=1, text="größe").__enter__()
    with spanfold.timed("load"):
        pass
    print("ready", flush=True)
    time.sleep(60)
"""


def start(script: str, *argv: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(script), *argv]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.case("C-037")
def test_a_run_is_refused_while_its_process_lives_and_finished_after_it_was_killed(tmp_path: Path) -> None:
    process = start(RECORDING, str(tmp_path / "run"))
    try:
        before = files_of(tmp_path / "run" / "journal")
        with pytest.raises(LockedError, match=str(process.pid)):
            recover_run(tmp_path / "run")
        with pytest.raises(LockedError, match=str(process.pid)):
            recover_run(tmp_path / "run", dry_run=True)
        assert files_of(tmp_path / "run" / "journal") == before
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    recovery = recover_run(tmp_path / "run")

    assert [e.kind for e in recovery.ended] == ["stage", "run"]
    assert verify_journal(tmp_path / "run").state == "intact"
    stage = next(s for s in spans_of(tmp_path / "run").values() if s.attributes["spanfold.kind"] == "stage")
    assert (fields(stage)["text"], stage.attributes["spanfold.outcome"]) == ("größe", "interrupted")


def test_a_process_id_that_another_process_has_now_does_not_lock_a_run(tmp_path: Path) -> None:
    """In a container every start has the same process ids; this process began long after that name was given."""
    owner = File(tmp_path / "journal", f"20200101T000000Z-{os.getpid()}-00000000")
    owner.add(started("00000000000000a1", kind="run", name="sample"))

    assert recovered(tmp_path).changed


def test_a_run_of_this_very_process_is_refused(tmp_path: Path) -> None:
    owner = File(tmp_path / "journal", f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}-00000000")
    owner.add(started("00000000000000a1", kind="run", name="sample"))

    with pytest.raises(LockedError, match=f"process {os.getpid()}"):
        recovered(tmp_path)


def owner_record(run_dir: Path, **facts: Any) -> None:
    (run_dir / "journal" / ".fold").mkdir()
    (run_dir / "journal" / ".fold" / "owner.json").write_text(json.dumps(facts))


def test_a_living_owner_of_the_documents_locks_a_run(tmp_path: Path) -> None:
    interrupted_run(tmp_path)
    owner_record(tmp_path, pid=os.getpid(), started=process_start(os.getpid()), host=host_name())

    with pytest.raises(LockedError, match=f"process {os.getpid()}"):
        recovered(tmp_path)


def test_an_owner_whose_process_id_was_given_to_another_does_not_lock_a_run(tmp_path: Path) -> None:
    owner = File(tmp_path / "journal", f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}-00000000")
    owner.add(started("00000000000000a1", kind="run", name="sample"))
    owner_record(tmp_path, pid=os.getpid(), started="1@an-earlier-boot", host=host_name())

    assert recovered(tmp_path).changed


@pytest.mark.parametrize("where", ["owner", "run"])
def test_a_run_of_another_machine_is_finished_only_on_request(where: str, tmp_path: Path) -> None:
    owner = File(tmp_path / "journal")
    host = {"spanfold__host": "another-machine"} if where == "run" else {}
    owner.add(started("00000000000000a1", kind="run", name="sample", **host))
    if where == "owner":
        owner_record(tmp_path, pid=1, started="1@b", host="another-machine")

    with pytest.raises(LockedError, match="another-machine"):
        recovered(tmp_path)
    assert recovered(tmp_path, assume_dead=True).changed


def test_two_recoveries_at_once_do_not_both_write(tmp_path: Path) -> None:
    interrupted_run(tmp_path)
    with FileLock(SafeRoot(tmp_path / "journal"), ".recover.lock"), pytest.raises(LockedError):
        recovered(tmp_path)

    assert recovered(tmp_path).changed


# -- when it is interrupted itself

INTERRUPTED_RECOVERY = """
    import os, signal, sys
    from pathlib import Path
    from spanfold.journal._recover import recover_run

    left = int(sys.argv[2])
    rooms = tuple(os.sep + room + os.sep for room in ("journal", "fs"))

    def count(frame, event, arg):
        global left
        if not any(room in frame.f_code.co_filename for room in rooms):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return count

    total = left
    sys.settrace(count)
    recover_run(Path(sys.argv[1]))
    sys.settrace(None)
    print(total - left)
"""


def recover_and_die(run_dir: Path, after_lines: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(INTERRUPTED_RECOVERY), str(run_dir), str(after_lines)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def torn_run(run_dir: Path) -> dict[str, bytes]:
    """Write an interrupted run with a torn tail in each file, and return the whole lines of each."""
    files = interrupted_run(run_dir)
    whole = {file.path.name: file.path.read_bytes() for file in files}
    for number, file in enumerate(files):
        with file.path.open("ab") as out:
            out.write(b'{"resourceSpans":[{"half' + b"x" * number)
    return whole


@pytest.mark.case("C-037", "C-038")
def test_a_recovery_killed_at_any_instant_can_be_run_again(tmp_path: Path) -> None:
    torn_run(tmp_path / "whole")
    done = recover_and_die(tmp_path / "whole", 10**9)
    assert done.returncode == 0, done.stderr
    steps = int(done.stdout)
    # What is there already is read for most of the time; writing begins in the last third.
    instants = [*range(1, steps, steps // 10), *range(steps * 6 // 10, steps, steps // 40)]
    states = set()
    for number, instant in enumerate(instants):
        run_dir = tmp_path / str(number)
        whole = torn_run(run_dir)
        assert recover_and_die(run_dir, instant).returncode == -signal.SIGKILL
        states.add(frozenset(files_of(run_dir)))

        recover_run(run_dir)

        for name, data in whole.items():
            assert (run_dir / "journal" / name).read_bytes() == data
        # Not the hidden name under which a copy is written: a kill may leave that behind.
        aside = [p.read_bytes() for p in sorted((run_dir / "journal").glob("[!.]*.torn-*"))]
        assert aside == [b'{"resourceSpans":[{"half', b'{"resourceSpans":[{"halfx'], instant
        assert verify_journal(run_dir).state == "intact", instant
        kinds = sorted(s.attributes["spanfold.kind"] for s in spans_of(run_dir).values())
        assert kinds == ["model_call", "run", "stage", "timing", "timing"], instant
        assert [r.name for r in records_of(run_dir)].count(names.EVENT_RECOVERED) == 1, instant
        after = files_of(run_dir)
        assert not recover_run(run_dir).changed
        assert files_of(run_dir) == after
    assert len(states) > 4, "the kills hit different states of the folder"


FULL_DISK = """
    import resource, signal, sys
    from pathlib import Path
    from spanfold.errors import JournalError
    from spanfold.journal._recover import recover_run
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
    try:
        recover_run(Path(sys.argv[1]))
    except JournalError as error:
        print(error)
"""


@pytest.mark.parametrize("limit", [10, 700, 1500, 3000])
def test_a_disk_that_refuses_is_an_error_and_a_second_attempt_finishes(limit: int, tmp_path: Path) -> None:
    interrupted_run(tmp_path)
    before = files_of(tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "refuses" in done.stdout, done.stderr
    assert before.items() <= files_of(tmp_path).items()

    assert recovered(tmp_path).changed
    assert verify_journal(tmp_path).state == "intact"
    assert len(spans_of(tmp_path)) == 5
