"""A signal handler runs between any two instructions: what it raises, records or flushes costs no record."""

import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.errors import JournalSealed
from spanfold.journal import IS_NATIVE, Journal
from spanfold.redact import Gate, Redactor
from tests.journal import raw
from tests.journal.interrupts import Interrupt, interrupted

GATE = Gate(Redactor())


def opened(folder: Path) -> Journal:
    return Journal(folder / "journal", gate=GATE, resource=lambda: {"service.name": "sample"})


def body(number: int) -> bytes:
    return (
        b'{"traceId":"0af7651916cd43dd8448eb211c80319c","spanId":"%016x","name":"n","startTimeUnixNano":"1",'
        b'"endTimeUnixNano":"2","attributes":[]}' % number
    )


def numbers(folder: Path) -> list[int]:
    return [int(s["spanId"], 16) for s in raw.spans(folder)]


def look_again(journal: Journal) -> None:
    """Make the next append look for its file, as it does twice a second."""
    journal._file.next_check = 0.0


class Life:
    """The life of a journal in steps, each of which may be interrupted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = opened(folder)
        self.steps: list[Callable[[], object]] = [
            lambda: self.journal.span(body(1), True),
            lambda: self.journal.span(body(2), True),
            self.lose_file,
            lambda: self.journal.span(body(3), True),
            self.journal.close,
            lambda: self.journal.span(body(4), True),
            self.replace_file,
            lambda: self.journal.span(body(5), True),
            self.journal.sync,
            lambda: self.journal.span(body(6), True),
            lambda: self.journal.seal({}),
        ]

    # A file that is lost while its descriptor is closed cannot be written again: then it is left where it is here.

    def lose_file(self) -> None:
        for path in raw.files(self.folder) if self.journal._file.handle else []:
            path.unlink()
        look_again(self.journal)

    def replace_file(self) -> None:
        for path in raw.files(self.folder) if self.journal._file.handle else []:
            path.rename(path.with_suffix(".old"))
            path.touch()
        look_again(self.journal)

    def live(self, *places: int) -> int:
        """Go through all steps, each once; return how many of the places were met."""
        left = list(places)
        for step in self.steps:
            try:
                met = interrupted(step, *left)
            except Interrupt:
                met = left.pop(0)
            left = [p - met for p in left if p > met]
        self.journal.seal({})
        self.journal.close()
        return len(places) - len(left)


@pytest.mark.slow
@pytest.mark.case("C-037", "C-078")
def test_an_exception_between_any_two_instructions_loses_no_record_doubles_none_and_breaks_no_chain(
    tmp_path: Path,
) -> None:
    for place in count(1):
        life = Life(tmp_path / str(place))
        is_met = life.live(place)

        found = numbers(life.folder)
        assert len(found) == len(set(found)), place
        # The one that was interrupted may be missing, if that was before the journal had taken it.
        assert len({1, 2, 3, 4, 5, 6} - set(found)) <= is_met, place
        assert sum(r.get("eventName") == "spanfold.journal.sealed" for r in raw.journal(life.folder)) == 1, place
        if not is_met:
            break
    assert place > 100


@pytest.mark.slow
@given(st.lists(st.integers(1, 200), min_size=2, max_size=6))
@pytest.mark.case("C-037")
def test_exceptions_that_interrupt_each_other_break_no_chain_and_lock_nobody_out(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[int]
) -> None:
    life = Life(tmp_path_factory.mktemp("life"))
    places = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    life.live(*places)

    found = numbers(life.folder)
    assert len(found) == len(set(found))
    other = threading.Thread(target=life.journal.sync, daemon=True)
    other.start()
    other.join(30)
    assert not other.is_alive()


step_by_step = pytest.mark.parametrize("is_looking", [True, False], ids=["step by step", "at one go"])
"""A record whose file is looked at first is written in Python; the C core, where there is one, writes all others."""


@pytest.mark.case("C-037")
@step_by_step
def test_what_a_signal_handler_records_in_the_middle_of_a_record_is_kept_and_chained(
    tmp_path: Path, is_looking: bool
) -> None:
    recorded = count(1000)
    for place in count(1):
        journal = opened(tmp_path / str(place))
        inner = next(recorded)
        journal.span(body(1), True)
        if is_looking:
            look_again(journal)
        met = interrupted(lambda: journal.span(body(2), True), place, action=lambda: journal.span(body(inner), True))  # noqa: B023  # both run now
        journal.close()

        if met < place:
            break
        assert sorted(numbers(tmp_path / str(place))) == [1, 2, inner], place
    assert place > 5 or (not is_looking and IS_NATIVE)


@pytest.mark.case("C-037")
@step_by_step
@pytest.mark.parametrize("act", [Journal.sync, Journal.close, Journal.release, lambda j: j.seal({})])
def test_a_signal_handler_may_flush_close_or_seal_in_the_middle_of_a_record(
    tmp_path: Path, act: Callable[[Journal], object], is_looking: bool
) -> None:
    for place in count(1):
        journal = opened(tmp_path / str(place))
        journal.span(body(1), True)
        if is_looking:
            look_again(journal)

        def record(journal: Journal = journal) -> None:
            with suppress(JournalSealed):
                journal.span(body(2), True)

        met = interrupted(record, place, action=lambda journal=journal: act(journal) and None)
        journal.close()

        assert set(numbers(tmp_path / str(place))) | ({2} if journal.is_sealed else set()) == {1, 2}, place
        if met < place:
            break
    assert place > 5 or (not is_looking and IS_NATIVE)
