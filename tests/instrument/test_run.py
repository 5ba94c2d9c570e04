"""Where a run is recorded: the directory it is given, the next free name, and never anywhere else."""

import os
import time
from pathlib import Path

import pytest
from opentelemetry import trace

import spanfold
from spanfold.instrument import RecordedSpan
from spanfold.journal import verify_journal
from tests.instrument.conftest import Lost
from tests.instrument.programs import Program, run
from tests.journal import raw

pytestmark = pytest.mark.slow


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.case("C-012")
def test_a_directory_that_holds_a_run_is_kept_and_the_next_free_name_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with spanfold.run("first", dir=tmp_path / "run"):
        pass
    before = content(tmp_path / "run")
    (tmp_path / "run-2").mkdir()
    (tmp_path / "run-2" / "journal").mkdir()

    with spanfold.run("second", dir=tmp_path / "run") as second:
        pass

    assert second.dir == tmp_path / "run-3"
    assert content(tmp_path / "run") == before
    assert os.listdir(tmp_path / "run-2" / "journal") == []
    assert [r for r in caplog.records if str(tmp_path / "run-3") in r.getMessage()]


def test_an_existing_directory_without_a_run_is_used_and_what_is_in_it_is_kept(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")

    with spanfold.run("r", dir=tmp_path / "run") as opened:
        pass

    assert opened.dir == tmp_path / "run"
    assert (tmp_path / "run" / "mine.txt").read_text() == "mine"


@pytest.mark.case("C-012")
def test_processes_that_want_the_same_directory_at_once_get_one_each(tmp_path: Path) -> None:
    program = """
    import sys, spanfold
    print("ready"); sys.stdin.readline()
    with spanfold.run("r", dir=sys.argv[1], number=int(sys.argv[2])) as opened:
        print(opened.dir)
    """
    programs = [Program(program, tmp_path / "run", n) for n in range(8)]
    for one in programs:
        one.says("ready")
    for one in programs:
        one.tell()
    folders = [Path(one.line()) for one in programs]
    for one in programs:
        assert one.end().status == 0

    assert sorted(folders) == sorted([tmp_path / "run", *(tmp_path / f"run-{n}" for n in range(2, 9))])
    for number, folder in enumerate(folders):
        assert [s["attributes"]["spanfold.number"] for s in raw.spans(folder)] == [number]
        assert verify_journal(folder).state == "intact"


@pytest.mark.parametrize(
    "planted", ["link to a folder", "dangling link", "file", "journal is a link", "journal is a file"]
)
def test_a_link_or_file_in_place_of_the_directory_is_neither_followed_nor_touched(tmp_path: Path, planted: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("precious")
    place = tmp_path / "run"
    if planted == "link to a folder":
        place.symlink_to(victim)
    elif planted == "dangling link":
        place.symlink_to(tmp_path / "nowhere")
    elif planted == "file":
        place.write_text("precious")
    else:
        place.mkdir()
        if planted == "journal is a link":
            (place / "journal").symlink_to(victim)
        else:
            (place / "journal").write_text("precious")

    with spanfold.run("r", dir=place) as opened, spanfold.stage("M1"):
        pass

    assert opened.dir == tmp_path / "run-2"
    assert opened.stats.held == 0
    assert verify_journal(opened.dir).state == "intact"
    assert content(victim) == {"precious": b"precious"}
    assert not (tmp_path / "nowhere").exists()


def test_links_on_the_way_to_the_directory_are_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "large disk")

    with spanfold.run("r", dir=tmp_path / "runs" / "1"):
        pass

    assert verify_journal(tmp_path / "large disk" / "1").state == "intact"


def test_a_link_planted_in_place_of_the_run_directory_while_it_is_recorded_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    with spanfold.run("r", dir=tmp_path / "run") as opened:
        (tmp_path / "run").rename(tmp_path / "moved")
        (tmp_path / "run").symlink_to(victim)
        time.sleep(0.6)
        spanfold.event("after the move", number=1)
        opened.view()
        assert list(victim.iterdir()) == []
        (tmp_path / "run").unlink()
        (tmp_path / "moved").rename(tmp_path / "run")

    assert list(victim.iterdir()) == []
    assert [e["attributes"]["spanfold.number"] for e in raw.events(tmp_path / "run", "after the move")] == [1]
    assert verify_journal(tmp_path / "run").state == "intact"


@pytest.mark.case("C-055")
def test_a_run_directory_that_is_removed_is_written_again_whole(tmp_path: Path) -> None:
    program = """
    import os, shutil, sys, time, spanfold
    with spanfold.run("r", dir=sys.argv[1]):
        with spanfold.stage("M1"): spanfold.event("e", number=1)
        shutil.rmtree(sys.argv[1])
        time.sleep(0.6)
        with spanfold.stage("M2"): spanfold.event("e", number=2)
    """
    run(program, tmp_path / "run")

    assert raw.names(raw.spans(tmp_path / "run")) == ["M1", "M2", "r"]
    assert [e["attributes"]["spanfold.number"] for e in raw.events(tmp_path / "run", "e")] == [1, 2]
    assert verify_journal(tmp_path / "run").state == "intact"
    assert (tmp_path / "run" / "M1" / "log.json").exists()


def test_a_name_that_is_a_path_or_nothing_makes_a_folder_of_its_own_inside_the_runs_folder(tmp_path: Path) -> None:
    spanfold.configure(run_dir=tmp_path / "runs")
    for name in ("../../escape", "/etc/passwd", "", ".", "..", "a/b", "nul\0", "x" * 500, "\udcff"):
        with spanfold.run(name) as opened:
            pass
        assert opened.dir.parent == tmp_path / "runs"
        assert opened.dir.is_dir()
    assert os.listdir(tmp_path) == ["runs"]


def test_a_thousand_taken_names_keep_the_records_in_memory_and_say_so(tmp_path: Path, lost: Lost) -> None:
    for number in range(1, 1001):
        (tmp_path / ("run" if number == 1 else f"run-{number}") / "journal").mkdir(parents=True)
    with spanfold.run("r", dir=tmp_path / "run", fact=1):
        pass
    assert list(lost()) == [
        f"the run directory {tmp_path / 'run'}: 1000 names beside it are taken; records are kept in memory only"
    ]


@pytest.mark.parametrize("empty", ["", b""])
def test_an_empty_directory_name_does_not_make_the_working_directory_a_run(empty: str | bytes, tmp_path: Path) -> None:
    os.chdir(tmp_path)
    with spanfold.run("r", dir=empty) as recorded:
        pass

    assert recorded.dir.parent == tmp_path / "runs"
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.parametrize("value", [5, 5.5, object(), ["a"], {"a": 1}])
def test_a_directory_of_a_wrong_type_costs_the_run_and_raises_nothing(value: object, lost: Lost) -> None:
    with spanfold.run("r", dir=value), spanfold.stage("M1"):  # type: ignore[arg-type]
        pass
    assert lost() == {"a run": 1}


@pytest.mark.parametrize("name", ["nul\0", "x" * 300])
def test_a_directory_no_system_can_make_keeps_the_records_in_memory(tmp_path: Path, name: str, lost: Lost) -> None:
    with spanfold.run("r", dir=tmp_path / name) as opened, spanfold.stage("M1"):
        pass
    assert opened.stats.held == 4
    assert len(lost()) == 1


@pytest.mark.case("C-042")
def test_fields_of_any_name_are_taken(tmp_path: Path) -> None:
    with spanfold.run("r", dir=tmp_path / "run", self=1, kind=2, stage=3) as opened:
        opened.set(self=4)
        opened.event("e", self=5, name=6)

    (root,) = raw.spans(tmp_path / "run")
    assert root["attributes"]["spanfold.self"] == 4
    (event,) = raw.events(tmp_path / "run", "e")
    assert (event["attributes"]["spanfold.self"], event["attributes"]["spanfold.name"]) == (5, 6)


def test_a_duration_never_goes_backwards_whatever_the_wall_clock_says(tmp_path: Path) -> None:
    with spanfold.run("r", dir=tmp_path / "run"):
        past = spanfold.timed("ended in the past")
        assert isinstance(past, RecordedSpan)
        past.end(end_time=past.start_ns - 10**18)
        tracer_made = spanfold.timed("parent")
        assert isinstance(tracer_made, RecordedSpan)
        with tracer_made:
            # As if the clock had been set back by an hour since the parent began.
            tracer_made.start_ns += 3_600 * 10**9
            with spanfold.timed("child"):
                time.sleep(0.01)

    spans = {s["name"]: s for s in raw.spans(tmp_path / "run")}
    lengths = {n: int(s["endTimeUnixNano"]) - int(s["startTimeUnixNano"]) for n, s in spans.items()}
    assert lengths["ended in the past"] == 0
    assert 0.01 <= lengths["child"] / 1e9 < 30
    assert lengths["child"] <= lengths["parent"] < 30 * 10**9
    assert 0 <= spans["parent"]["attributes"]["spanfold.self_ns"] <= lengths["parent"]
    assert trace.get_current_span() is trace.INVALID_SPAN
