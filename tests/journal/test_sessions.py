"""A later session of a diagnose loop, whose journal goes on behind a seal, is told from a file that was put there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spanfold.journal import journal_files, recover_run
from spanfold.journal._verify import verify_journal
from tests.journal.samples import CHILD, OWNER, SECOND, START, TRACE, File, event, line, span, started

LATER = "20260301T130000Z-4300-11223344"
LATER_CHILD = "20260301T130001Z-4301-55667788"
OTHER = "ffffffffffffffffffffffffffffffff"
HOUR = 3600 * SECOND


def begin(
    span_id: str, time: int, *, folder: str = "one", trace_id: str = TRACE, layout: str = "diagnose"
) -> dict[str, Any]:
    return started(
        span_id,
        kind="run",
        name="diagnose",
        time=time,
        trace_id=trace_id,
        spanfold__layout=layout,
        spanfold__run__dir=folder,
    )


def sealed_session(run_dir: Path) -> File:
    owner = File(run_dir / "journal", OWNER)
    owner.add(begin("00000000000000a1", START), event("note", "00000000000000a1", time=START + SECOND))
    owner.end_run("00000000000000a1", name="diagnose")
    return owner


def later(run_dir: Path, **more: str) -> File:
    file = File(run_dir / "journal", LATER)
    file.add(begin("00000000000000b1", START + HOUR, **more), event("note", "00000000000000b1", time=START + HOUR))
    return file


@pytest.mark.parametrize("more", [{}, {"trace_id": OTHER}, {"folder": "moved"}])
def test_a_session_that_goes_on_behind_a_seal_is_open_and_not_broken(tmp_path: Path, more: dict[str, str]) -> None:
    sealed_session(tmp_path)
    anchor = verify_journal(tmp_path).anchor
    later(tmp_path, **more)

    verdict = verify_journal(tmp_path)

    assert (verdict.state, verdict.sealed, verdict.findings) == ("open", False, ())
    assert verdict.anchor == anchor != ""


def test_what_a_child_process_of_a_later_session_writes_is_part_of_it(tmp_path: Path) -> None:
    sealed_session(tmp_path)
    later(tmp_path)
    File(tmp_path / "journal", LATER_CHILD).add(span("00000000000000c1", "00000000000000b1", start=START + HOUR))

    assert verify_journal(tmp_path).state == "open"


def test_half_a_line_at_the_end_of_a_later_session_is_torn_and_not_foreign(tmp_path: Path) -> None:
    sealed_session(tmp_path)
    file = later(tmp_path)
    with file.path.open("ab") as torn:
        torn.write(b'{"resourceSpans":[')

    verdict = verify_journal(tmp_path)

    assert [(d.path, d.offset, d.length, d.kind) for d in verdict.torn] == [(file.path, file.size, 18, "torn")]
    assert verdict.state == "open"


def test_a_change_of_what_was_sealed_is_named_while_a_later_session_is_open(tmp_path: Path) -> None:
    owner = sealed_session(tmp_path)
    later(tmp_path)
    owner.path.write_bytes(owner.path.read_bytes().replace(b'"note"', b'"nota"'))

    verdict = verify_journal(tmp_path)

    assert verdict.state == "broken"
    assert {finding.path for finding in verdict.findings} == {owner.path}


def put_without_chain(run_dir: Path) -> Path:
    path = run_dir / "journal" / f"{LATER}.otlp.jsonl"
    path.write_bytes(line(begin("00000000000000b1", START + HOUR)))
    return path


def put_without_a_run(run_dir: Path) -> Path:
    file = File(run_dir / "journal", LATER)
    file.add(span("00000000000000b1", "00000000000000a1", start=START + HOUR))
    return file.path


def put_of_another_run(run_dir: Path) -> Path:
    return later(run_dir, trace_id=OTHER, folder="two").path


def put_of_another_recorder(run_dir: Path) -> Path:
    return later(run_dir, layout="").path


def put_of_an_earlier_run_of_the_same_name(run_dir: Path) -> Path:
    file = File(run_dir / "journal", LATER)
    file.add(begin("00000000000000b1", START - HOUR, trace_id=OTHER))
    return file.path


def put_beside_a_later_session(run_dir: Path) -> Path:
    later(run_dir)
    file = File(run_dir / "journal", LATER_CHILD)
    file.add(span("00000000000000c1", trace_id=OTHER, start=START + HOUR))
    return file.path


def put_from_before_a_later_session(run_dir: Path) -> Path:
    later(run_dir)
    file = File(run_dir / "journal", CHILD)
    file.add(span("00000000000000c1", "00000000000000a1"))
    return file.path


@pytest.mark.parametrize(
    "put",
    [
        put_without_chain,
        put_without_a_run,
        put_of_another_run,
        put_of_another_recorder,
        put_of_an_earlier_run_of_the_same_name,
        put_beside_a_later_session,
        put_from_before_a_later_session,
    ],
)
def test_a_file_that_was_put_behind_a_seal_is_still_foreign(tmp_path: Path, put: Callable[[Path], Path]) -> None:
    sealed_session(tmp_path)
    path = put(tmp_path)

    verdict = verify_journal(tmp_path)

    assert verdict.state == "broken"
    assert [(finding.code, finding.path) for finding in verdict.findings] == [("foreign_bytes", path)]


def test_nothing_goes_on_behind_the_seal_of_a_run_that_no_loop_recorded(tmp_path: Path) -> None:
    owner = File(tmp_path / "journal", OWNER)
    owner.add(begin("00000000000000a1", START, layout=""))
    owner.end_run("00000000000000a1", name="sample")
    file = later(tmp_path)

    assert [(f.code, f.path) for f in verify_journal(tmp_path).findings] == [("foreign_bytes", file.path)]


def test_a_killed_later_session_is_recovered_as_interrupted_and_anchored(tmp_path: Path) -> None:
    sealed_session(tmp_path)
    later(tmp_path)

    recovery = recover_run(tmp_path)

    assert [ended.span_id for ended in recovery.ended] == ["00000000000000b1"]
    assert b'"eventName":"spanfold.run.recovered"' in b"".join(p.read_bytes() for p in journal_files(tmp_path))
    verdict = verify_journal(tmp_path)
    assert (verdict.state, verdict.sealed) == ("intact", True)
    assert recovery.file is not None
    assert f'"spanfold.seal.head","value":{{"stringValue":"{verdict.anchor}"' in recovery.file.read_text()
    assert not recover_run(tmp_path).changed
