"""`tail_run` follows what grows, in order, and knows when it is over."""

from pathlib import Path

import pytest

from spanfold import names
from spanfold.errors import JournalMissing
from spanfold.fold import Moment, tail_run
from spanfold.journal import SUFFIX, host_name, writer_name
from tests.fold.journals import JournalFile


def told(moments: list[Moment]) -> list[tuple[str, str]]:
    return [(moment.type, moment.name) for moment in moments]


def sealed(journal: JournalFile) -> None:
    journal.event(names.EVENT_SEALED, at=1000, span="", trace="")


def test_moments_of_several_files_come_in_the_order_of_time(run_dir: Path, journal: JournalFile) -> None:
    other = JournalFile(run_dir / "journal", "20260131T090508Z-2-00000000")
    journal.run_started(at=0)
    other.span("tool", "late", 2, end=3)
    journal.span("tool", "early", 1, end=2)
    journal.run_ended(end=5)
    sealed(journal)

    moments = list(tail_run(run_dir, stop=lambda: True))

    assert told(moments) == [
        ("started", "digits"),
        ("ended", "early"),
        ("ended", "late"),
        ("ended", "digits"),
        ("sealed", names.EVENT_SEALED),
    ]
    assert moments[2].file == other.path.name


def test_what_is_written_while_it_is_followed_arrives(run_dir: Path, journal: JournalFile) -> None:
    # A file of this process, so that its writer lives.
    mine = JournalFile(run_dir / "journal", writer_name())
    mine.run_started(host=host_name())
    following = tail_run(run_dir, stop=lambda: False, poll_s=0.001)
    assert next(following).type == "started"

    half = mine.span("tool", "half", 1, write=False)
    mine.put(half[:40])
    mine.put(half[40:])
    assert next(following).name == "half"
    child = JournalFile(run_dir / "journal", f"{writer_name()[:-8]}ffffffff")
    child.span("tool", "of a new file", 2)
    assert next(following).name == "of a new file"
    sealed(mine)

    assert told(list(following)) == [("sealed", names.EVENT_SEALED)]


def test_when_no_process_lives_any_more_the_last_moment_says_so(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started(host=host_name())

    moments = list(tail_run(run_dir, stop=lambda: False))

    assert told(moments) == [("started", "digits"), ("interrupted", "")]


def test_a_run_of_another_machine_is_followed_until_told_to_stop(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started(host="some other machine")
    looks = iter([False, False, True])

    moments = list(tail_run(run_dir, stop=lambda: next(looks), poll_s=0.001))

    assert told(moments) == [("started", "digits")]
    assert next(looks, "all asked") == "all asked"


@pytest.mark.parametrize(("last", "numbers"), [(None, [0, 1, 2, 3, 4]), (2, [3, 4]), (0, [])])
def test_of_the_past_only_so_much_is_told_as_asked_for(
    run_dir: Path, journal: JournalFile, last: int | None, numbers: list[int]
) -> None:
    for number in range(5):
        journal.span("tool", f"wanted {number}", 1 + number, end=number)
        journal.span("timing", "noise", 100 + number, end=number)
    sealed(journal)

    moments = list(tail_run(run_dir, stop=lambda: True, last=last, wanted=lambda m: m.name.startswith("wanted")))

    assert [moment.name for moment in moments] == [f"wanted {number}" for number in numbers]


def test_message_content_is_left_out(run_dir: Path, journal: JournalFile) -> None:
    journal.model_call(1, prompt="a secret question", answer="a secret answer")
    sealed(journal)

    moments = list(tail_run(run_dir, stop=lambda: True))

    assert "secret" not in repr(moments)
    assert moments[0].facts is not None
    assert moments[0].facts["usage"] == {"input_tokens": 12, "output_tokens": 3}


def test_without_a_journal_there_is_nothing_to_follow(tmp_path: Path) -> None:
    with pytest.raises(JournalMissing):
        next(tail_run(tmp_path, stop=lambda: True))


def test_the_suffix_of_journal_files_is_what_other_files_do_not_have(run_dir: Path, journal: JournalFile) -> None:
    (run_dir / "journal" / "notes.txt").write_text("not a journal\n")
    journal.span("tool", "t", 1)
    sealed(journal)

    moments = list(tail_run(run_dir, stop=lambda: True))

    assert {moment.file for moment in moments} == {journal.path.name}
    assert journal.path.name.endswith(SUFFIX)
