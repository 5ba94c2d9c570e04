"""C-051 and C-055: what a journal does when its disk refuses, and when somebody moves its file."""

import errno
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.journal import Journal, read_journal, verify_journal
from spanfold.journal._writer import MAX_HELD_BYTES, RETRY_INTERVAL_S
from spanfold.model import Span
from spanfold.redact import Gate, Redactor
from tests.instrument.programs import run
from tests.journal import raw
from tests.journal.kernel import change_disk, fill, refused, small_disk

pytestmark = pytest.mark.slow

GATE = Gate(Redactor())


def opened(folder: Path, *, durable: bool = False) -> Journal:
    return Journal(folder / "journal", gate=GATE, resource=lambda: {"service.name": "sample"}, durable=durable)


def add(journal: Journal, *numbers: int, size: int = 100) -> None:
    for number in numbers:
        journal.span(
            b'{"traceId":"0af7651916cd43dd8448eb211c80319c","spanId":"%016x","name":"%b","startTimeUnixNano":"%d",'
            b'"endTimeUnixNano":"%d","attributes":[]}' % (number, b"x" * size, number, number),
            True,
        )


def numbers(folder: Path) -> list[int]:
    return [int(s["spanId"], 16) for s in raw.spans(folder)]


def let_retry() -> None:
    time.sleep(RETRY_INTERVAL_S + 0.05)


def look_again(journal: Journal) -> None:
    """Make the next append look for its file, as it does twice a second."""
    journal._file.next_check = 0.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "1m") as folder:
        yield folder


# -- refusals


@pytest.mark.case("C-051")
def test_a_full_disk_holds_records_in_memory_and_writes_them_in_order_when_there_is_room(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = opened(disk)
    add(journal, 1)
    filler = fill(disk)

    for number in range(2, 200):
        add(journal, number, size=1000)
    held = journal.stats.held
    before = numbers(disk)
    let_retry()
    add(journal, 200)
    assert journal.stats.held == held + 1
    filler.unlink()
    let_retry()
    add(journal, 201)

    # Until the last block that was free is full some records still fit.
    assert 1 <= len(before) < 10
    assert len(before) + held == 199
    assert numbers(disk) == list(range(1, 202))
    assert (journal.stats.held, journal.stats.lost) == (0, 0)
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "No space left on device" in warning.getMessage()
    assert verify_journal(disk).ok


@pytest.mark.case("C-051")
def test_what_memory_cannot_hold_is_lost_counted_and_journaled(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        journal = opened(disk)
        fill(disk)
        count = MAX_HELD_BYTES // 1_000_000 + 5
        add(journal, *range(1, count + 1), size=1_000_000)
        lost = journal.stats.lost
        assert 4 <= lost <= 6
        add(journal, count + 1)

        change_disk(disk, "size=64m")
        assert journal.sync()
        add(journal, count + 2)

        kept = numbers(disk)
        assert kept == [*range(1, count - lost + 1), count + 1, count + 2]
        (told,) = raw.events(disk, "spanfold.journal.lost")
        assert told["attributes"] == {"spanfold.count": lost}
        assert journal.stats.lost == lost
        assert verify_journal(disk).ok


@pytest.mark.case("C-051")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOLINK], ids=errno.errorcode.get)
def test_any_refusal_of_the_system_is_survived_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    journal = opened(tmp_path)
    add(journal, 1)

    def act() -> tuple[int, str]:
        for number in range(2, 50):
            add(journal, number)
        let_retry()
        add(journal, 50)
        return journal.stats.held, journal.stats.problem

    held, problem = refused(["write"], error, act)

    assert held == 49
    assert problem == f"OSError: {os.strerror(error)}"
    assert numbers(tmp_path) == [1]
    assert journal.sync()
    assert numbers(tmp_path) == list(range(1, 51))
    assert len(caplog.records) == 1


@pytest.mark.case("C-038", "C-051")
def test_a_line_that_fits_only_in_part_is_taken_back_even_if_the_system_refuses_that_at_first(disk: Path) -> None:
    journal = opened(disk)
    add(journal, 1)
    filler = fill(disk)
    size = journal.position.size

    refused(["ftruncate"], errno.EIO, lambda: add(journal, 2, size=20_000))
    torn = raw.files(disk)[0].stat().st_size
    filler.unlink()
    let_retry()
    add(journal, 3)

    assert torn > size
    assert numbers(disk) == [1, 2, 3]
    assert verify_journal(disk).ok


LIMITED = """
import json, resource, sys
from pathlib import Path
from tests.journal.test_writer_disk import add, let_retry, opened
journal = opened(Path(sys.argv[1]))
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
for number in range(1, 40):
    add(journal, number, size=500)
held = journal.stats.held
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
let_retry()
add(journal, 40)
print(json.dumps([held, journal.stats.held, journal.stats.problem]))
"""


@pytest.mark.case("C-051")
def test_a_file_size_limit_is_a_full_disk(tmp_path: Path) -> None:
    held, left, problem = json.loads(run(LIMITED, tmp_path).out)
    assert held > 10
    assert (left, problem) == (0, "OSError: File too large")
    assert numbers(tmp_path) == list(range(1, 41))


@pytest.mark.case("C-051", "C-052")
def test_a_disk_that_turns_read_only_holds_records_until_it_is_writable_again(disk: Path) -> None:
    journal = opened(disk)
    add(journal, 1)
    journal.close()
    change_disk(disk, "ro")

    add(journal, 2, 3)
    assert journal.stats.problem == "OSError: Read-only file system"
    change_disk(disk, "rw")
    assert journal.sync()

    assert numbers(disk) == [1, 2, 3]


@pytest.mark.case("C-052")
def test_a_folder_that_cannot_be_made_holds_records_until_it_can(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file")
    journal = opened(tmp_path / "blocked" / "run")
    add(journal, 1, 2)
    assert journal.stats.held == 2

    (tmp_path / "blocked").unlink()
    assert journal.sync()

    assert numbers(tmp_path / "blocked" / "run") == [1, 2]


@pytest.mark.case("C-051")
def test_a_journal_that_cannot_be_sealed_now_is_sealed_later(disk: Path) -> None:
    journal = opened(disk)
    add(journal, 1)
    filler = fill(disk)
    add(journal, *range(2, 30), size=1000)

    assert not journal.seal({})
    assert not journal.is_sealed
    filler.unlink()
    assert journal.seal({})

    assert numbers(disk) == list(range(1, 30))
    raw.seal(raw.files(disk)[0])
    assert verify_journal(disk).state == "intact"


@pytest.mark.case("C-051")
def test_a_seal_that_the_disk_refuses_leaves_the_journal_open_and_is_written_once(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    add(journal, 1)

    assert not refused(["write"], errno.EIO, lambda: journal.seal({}))
    add(journal, 2)
    assert journal.seal({})

    assert numbers(tmp_path) == [1, 2]
    raw.seal(raw.files(tmp_path)[0])
    assert verify_journal(tmp_path).state == "intact"


@pytest.mark.case("C-051")
def test_a_flush_that_the_device_refuses_is_told_and_not_taken_for_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = opened(tmp_path, durable=True)
    add(journal, 1)

    assert not refused(["fsync"], errno.EIO, journal.sync)
    assert "Input/output error" in caplog.records[0].getMessage()
    assert journal.sync()


# -- a file that somebody moves


@pytest.mark.case("C-055")
def test_a_file_that_is_removed_is_written_again_whole_under_its_name(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    add(journal, 1, 2)
    (path,) = raw.files(tmp_path)
    path.unlink()
    look_again(journal)

    add(journal, 3)

    assert raw.files(tmp_path) == [path]
    assert numbers(tmp_path) == [1, 2, 3]
    assert journal.stats.restored == 1


@pytest.mark.case("C-055")
def test_a_folder_that_is_removed_is_made_again_with_everything_in_it(tmp_path: Path) -> None:
    journal = opened(tmp_path / "run")
    add(journal, 1, 2)
    shutil.rmtree(tmp_path / "run")
    look_again(journal)

    add(journal, 3)

    assert numbers(tmp_path / "run") == [1, 2, 3]
    assert verify_journal(tmp_path / "run").ok


@pytest.mark.case("C-055")
def test_a_file_that_is_renamed_stands_under_both_names_and_only_ours_grows(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    add(journal, 1, 2)
    (path,) = raw.files(tmp_path)
    rotated = path.rename(path.with_name(path.name + ".1"))
    before = rotated.read_bytes()
    look_again(journal)

    add(journal, 3)

    assert rotated.read_bytes() == before
    assert raw.files(tmp_path) == [path]
    assert numbers(tmp_path) == [1, 2, 3]


@pytest.mark.case("C-055")
def test_a_file_that_is_replaced_is_written_again_under_another_name_and_the_other_is_left_alone(
    tmp_path: Path,
) -> None:
    journal = opened(tmp_path)
    add(journal, 1, 2)
    (path,) = raw.files(tmp_path)
    path.unlink()
    path.write_bytes(b"somebody else's\n")
    look_again(journal)

    add(journal, 3)
    journal.seal({})

    assert path.read_bytes() == b"somebody else's\n"
    (own,) = [p for p in raw.files(tmp_path) if p != path]
    assert [int(s["spanId"], 16) for s in raw.records(own) if s.get("spanId")] == [1, 2, 3]
    assert [s.span_id for s in read_journal(tmp_path).records if isinstance(s, Span)] == [
        f"{n:016x}" for n in (1, 2, 3)
    ]
    # What stood in the first file is known, so what became of it is seen.
    assert {f.path for f in verify_journal(tmp_path).findings} == {path}


@pytest.mark.case("C-055")
def test_a_file_that_is_replaced_by_a_copy_of_itself_is_gone_on_with(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    add(journal, 1, 2)
    (path,) = raw.files(tmp_path)
    path.write_bytes(path.rename(tmp_path / "moved").read_bytes())
    look_again(journal)

    add(journal, 3)

    assert raw.files(tmp_path) == [path]
    assert numbers(tmp_path) == [1, 2, 3]


@pytest.mark.case("C-055")
@pytest.mark.parametrize("cut", [0, 1, 400, -1])
def test_a_file_that_is_cut_is_left_as_it_is_and_the_seal_says_what_was_in_it(tmp_path: Path, cut: int) -> None:
    journal = opened(tmp_path)
    add(journal, 1, 2, 3)
    (path,) = raw.files(tmp_path)
    os.truncate(path, cut if cut >= 0 else path.stat().st_size - 1)
    rest = path.read_bytes()
    look_again(journal)

    add(journal, 4)
    journal.seal({})

    assert path.read_bytes() == rest
    assert not rest.startswith(b"\0")
    (own,) = [p for p in raw.files(tmp_path) if p != path]
    assert [int(s["spanId"], 16) for s in raw.records(own) if s.get("spanId")] == [4]
    assert journal.stats.restored == 1
    verdict = verify_journal(tmp_path)
    assert verdict.state == "broken"
    assert {f.path for f in verdict.findings} == {path}


@pytest.mark.case("C-055", "C-049")
def test_what_somebody_appends_is_never_chained_to(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    add(journal, 1)
    (path,) = raw.files(tmp_path)
    with path.open("ab") as file:
        file.write(b"somebody else's, torn")
    look_again(journal)

    add(journal, 2)
    journal.seal({})

    (own,) = [p for p in raw.files(tmp_path) if p != path]
    assert [int(s["spanId"], 16) for s in raw.records(own) if s.get("spanId")] == [2]
    (finding,) = verify_journal(tmp_path).findings
    assert (finding.path, finding.code) == (path, "foreign_bytes")
    assert len([r for r in read_journal(tmp_path).records if isinstance(r, Span)]) == 2


@pytest.mark.case("C-055")
def test_a_second_name_for_the_file_changes_nothing(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    add(journal, 1)
    (path,) = raw.files(tmp_path)
    os.link(path, tmp_path / "backup")
    look_again(journal)

    add(journal, 2)

    assert raw.files(tmp_path) == [path]
    assert numbers(tmp_path) == [1, 2]


@pytest.mark.case("C-055")
def test_a_file_that_was_changed_while_its_descriptor_was_closed_is_not_appended_to(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    add(journal, 1)
    journal.close()
    (path,) = raw.files(tmp_path)
    path.unlink()

    add(journal, 2)

    assert not path.exists()
    assert numbers(tmp_path) == [2]
    assert journal.heads()[path.name]["seq"] == 1


@pytest.mark.case("C-038")
@given(st.data())
def test_after_a_cut_at_any_byte_whole_records_stay_and_nothing_is_glued_to_the_torn_one(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    journal = opened(folder)
    add(journal, 1, 2, 3)
    journal.close()
    (path,) = raw.files(folder)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    os.truncate(path, cut)

    add(journal, 4)
    read = read_journal(folder)
    found = {r.span_id for r in read.records if isinstance(r, Span)}

    kept = whole[:cut].count(b"\n")
    assert found == {f"{n:016x}" for n in (*range(1, kept + 1), 4)}
    assert path.read_bytes().startswith(whole[:cut])
    assert cut == len(whole) or path.stat().st_size == cut
    assert sum(d.kind == "torn" for d in read.damage) == (not whole[:cut].endswith(b"\n") and cut > 0)


def test_no_record_goes_where_a_planted_link_leads(tmp_path: Path) -> None:
    journal = opened(tmp_path / "run")
    add(journal, 1)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / "journal").rename(tmp_path / "moved")
    (tmp_path / "run" / "journal").symlink_to(tmp_path / "elsewhere")
    look_again(journal)

    add(journal, 2)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    # Nothing is lost meanwhile: it goes on in the file it has.
    assert len(raw.whole_lines(next((tmp_path / "moved").iterdir()))[0]) == 2
    (tmp_path / "run" / "journal").unlink()
    look_again(journal)
    add(journal, 3)

    assert numbers(tmp_path / "run") == [1, 2, 3]


def test_a_link_in_place_of_the_folder_before_the_first_record_is_never_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal").symlink_to(tmp_path / "elsewhere")
    journal = opened(tmp_path / "run")

    add(journal, 1)

    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert journal.stats.held == 1


# -- descriptors that somebody closes


@pytest.mark.case("C-039")
def test_a_host_that_closes_all_descriptors_loses_no_record_and_finds_none_in_its_own_files(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from tests.journal.test_writer_disk import add, let_retry, opened
folder = Path(sys.argv[1])
journal = opened(folder)
add(journal, 1)
os.closerange(3, 4096)
own = [os.open(folder / f"own{n}", os.O_RDWR | os.O_CREAT) for n in range(30)]
add(journal, 2)
let_retry()
add(journal, 3)
for fd in own:
    os.write(fd, b"mine")
"""
    run(program, tmp_path)

    assert numbers(tmp_path) == [1, 2, 3]
    assert {p.read_bytes() for p in tmp_path.glob("own*")} == {b"mine"}


@pytest.mark.case("C-039")
def test_a_file_of_the_host_that_gets_our_very_descriptor_gets_none_of_our_lines(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from tests.journal.test_writer_disk import add, opened
folder = Path(sys.argv[1])
journal = opened(folder)
for number in range(1, 20, 2):
    add(journal, number)
    own = os.open(folder / f"own{number}", os.O_RDWR | os.O_CREAT)
    os.dup2(own, journal._file.handle.fileno())
    add(journal, number + 1)
"""
    run(program, tmp_path)

    assert numbers(tmp_path) == list(range(1, 21))
    assert {p.read_bytes() for p in tmp_path.glob("own*")} == {b""}


def test_the_log_handler_of_the_host_may_record_and_may_fail(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    add(journal, 1)

    class Recording(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            add(journal, 99)
            raise RuntimeError("the host's own fault")

        def handleError(self, record: logging.LogRecord) -> None:
            raise

    handler = Recording()
    logging.getLogger("spanfold").addHandler(handler)
    try:
        refused(["write"], errno.ENOSPC, lambda: add(journal, 2))
    finally:
        logging.getLogger("spanfold").removeHandler(handler)
    assert journal.sync()

    assert sorted(numbers(tmp_path)) == [1, 2, 99]
