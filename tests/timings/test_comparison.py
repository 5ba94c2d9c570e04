"""Comparing runs: a verdict only where there is one, and everything that speaks against it said."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.errors import TimingsError
from spanfold.timings import RUN_PATH, Comparison, StageComparison, TimingRead, TimingRow, compare, read_timings
from spanfold.timings.clock import NS_PER_SECOND
from tests.timings.samples import RunWriter, kind, loop_run, row, write_rows


def runs(tmp_path: Path, name: str, count: int, *, first_seed: int, **settings: object) -> list[Path]:
    return [loop_run(tmp_path / f"{name}{number}", seed=first_seed + number, **settings) for number in range(count)]


def stage(comparison: Comparison, path: str) -> StageComparison:
    [found] = [stage for stage in comparison.stages if stage.path == path]
    return found


def codes(comparison: Comparison) -> set[str]:
    return {caution.code for caution in comparison.cautions}


def read_of(values: Sequence[float], name: str = "m1", *, failed: int = 0) -> TimingRead:
    """A run that did one thing several times, one after the other."""
    rows: list[TimingRow] = []
    start = 0.0
    for number, value in enumerate(values):
        rows.append(
            TimingRow(
                stage=name,
                seconds=value,
                start_ns=round(start * NS_PER_SECOND),
                ok=number >= failed,
                span_id=f"{number}",
            )
        )
        start += value
    return TimingRead(Path(f"{name}/timings.jsonl"), tuple(rows))


@pytest.mark.case("C-076")
def test_a_slower_stage_is_found_where_it_is_and_nowhere_else(tmp_path: Path) -> None:
    result = compare(
        runs(tmp_path, "a", 8, first_seed=0, noise=0.02), runs(tmp_path, "b", 8, first_seed=50, noise=0.02, slow=1.5)
    )

    outcomes = {stage.path: (stage.verdict, stage.direction) for stage in result.stages}
    assert outcomes == {
        RUN_PATH: ("changed", "slower"),
        "load": ("same", None),
        "m1": ("same", None),
        "m2": ("changed", "slower"),
        "m2/model_call": ("changed", "slower"),
    }
    assert (result.verdict, result.unit) == ("changed", "run")
    assert stage(result, "m2/model_call").ratio == pytest.approx(1.5, rel=0.05)
    assert stage(result, "m2/model_call").a.n == 8
    assert stage(result, "m2/model_call").a.rows == 32


@pytest.mark.case("C-076")
def test_self_time_does_not_blame_a_stage_for_its_children(tmp_path: Path) -> None:
    settings = {"noise": 0.02}
    result = compare(
        runs(tmp_path, "a", 8, first_seed=0, **settings),
        runs(tmp_path, "b", 8, first_seed=50, slow=1.5, **settings),
        measure="self",
    )

    assert [stage.path for stage in result.stages if stage.verdict == "changed"] == ["m2/model_call"]


@pytest.mark.case("C-076")
def test_one_run_against_one_run_is_inconclusive(tmp_path: Path) -> None:
    result = compare(loop_run(tmp_path / "a", seed=1, calls=1), loop_run(tmp_path / "b", seed=2, calls=1, slow=9))

    assert {stage.verdict for stage in result.stages} == {"inconclusive"}
    assert {stage.p_value for stage in result.stages} == {None}
    assert result.verdict == "inconclusive"
    assert stage(result, RUN_PATH).ratio is not None
    assert {"too_few", "spans_not_independent"} <= codes(result)


@pytest.mark.case("C-076")
def test_several_runs_against_one_are_inconclusive(tmp_path: Path) -> None:
    result = compare(runs(tmp_path, "a", 6, first_seed=0), loop_run(tmp_path / "b", seed=9, slow=9))

    assert (result.unit, result.verdict) == ("run", "inconclusive")
    assert (stage(result, "m2/model_call").a.n, stage(result, "m2/model_call").b.n) == (6, 1)


@pytest.mark.case("C-076")
def test_spans_of_one_run_are_compared_with_a_caution(tmp_path: Path) -> None:
    result = compare(
        loop_run(tmp_path / "a", seed=1, calls=20, noise=0.02),
        loop_run(tmp_path / "b", seed=2, calls=20, noise=0.02, slow=2),
    )

    calls = stage(result, "m2/model_call")
    assert (result.unit, calls.a.n, calls.verdict, calls.direction) == ("span", 20, "changed", "slower")
    assert stage(result, "m2").verdict == "inconclusive"
    assert "spans_not_independent" in codes(result)


@pytest.mark.case("C-076")
def test_one_outlier_of_twenty_does_not_change_a_verdict() -> None:
    random = Random(1)
    a, b = ([random.lognormvariate(0, 0.03) for _ in range(20)] for _ in "ab")
    plain = compare(read_of(a), read_of(b)).stages[0]
    outlier = compare(read_of(a), read_of([*b[:-1], 500.0])).stages[0]

    assert plain.verdict == outlier.verdict == "same"


@pytest.mark.case("C-076")
@pytest.mark.parametrize(("tolerance", "verdict"), [(1.10, "same"), (1.02, "changed"), (1.05, "inconclusive")])
def test_a_true_shift_of_five_percent_is_judged_by_the_tolerance(tolerance: float, verdict: str) -> None:
    random = Random(2)
    a = [random.lognormvariate(0, 0.01) for _ in range(30)]
    b = [1.05 * random.lognormvariate(0, 0.01) for _ in range(30)]
    result = compare(read_of(a), read_of(b), tolerance=tolerance).stages[0]

    assert result.verdict == verdict
    assert result.p_value is not None
    assert result.p_value < 0.001


@pytest.mark.case("C-076")
def test_failed_spans_are_left_out_of_medians_and_counted(tmp_path: Path) -> None:
    a, b = read_of([1.0] * 5), read_of([100.0, 100.0, 1.0, 1.0, 1.0], failed=2)
    result = compare(a, b).stages[0]
    asked = compare(a, b, include_failed=True).stages[0]

    assert (result.b.n, result.b.rows, result.b.failed, result.b.excluded) == (3, 5, 2, {"failed": 2})
    assert (result.ratio, asked.ratio) == (1.0, 1.0)
    assert (asked.b.n, asked.b.excluded) == (5, {})


@pytest.mark.case("C-076")
def test_a_run_without_a_stage_is_missing_and_not_zero(tmp_path: Path) -> None:
    with_m3 = [RunWriter(f"a{n}") for n in range(3)]
    for number, made in enumerate(with_m3):
        made.span("m1", 0, 1)
        if number:
            made.span("m3", 1, 2)
    a = [made.write(tmp_path / made.name) for made in with_m3]
    result = compare(a, a[::-1])

    assert (stage(result, "m3").a.n, stage(result, "m3").a.excluded) == (2, {"missing": 1})
    assert stage(result, "m3").a.median_seconds == 2


@pytest.mark.case("C-076")
def test_paths_of_one_side_only_are_listed_with_no_ratio() -> None:
    a, b = read_of([1, 1, 1], "m1"), read_of([1, 1, 1], "m2")
    result = compare(a, b)

    assert (result.only_in_a, result.only_in_b) == (("m1",), ("m2",))
    assert [(s.path, s.a.n, s.b.n, s.ratio, s.verdict) for s in result.stages] == [
        ("m1", 3, 0, None, "inconclusive"),
        ("m2", 0, 3, None, "inconclusive"),
    ]
    assert result.verdict == "inconclusive"


@pytest.mark.contract("EP-065")
def test_durations_nobody_measured_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [
        row("agent", 0, 5),
        row("agent_reported", 0, 4, measured=False),
        row("lease_wait", None, 3, source="transcript"),
    ]
    for name in "ab":
        write_rows(tmp_path / name / "timings.jsonl", rows)
    result = compare(tmp_path / "a", tmp_path / "b")

    assert [stage.path for stage in result.stages] == ["agent"]
    assert result.a.excluded == {"not_measured": 1, "source": 1}


@pytest.mark.case("C-076")
def test_what_makes_runs_hard_to_compare_is_said(tmp_path: Path) -> None:
    a = {"host": "big", "commit": "abc", "python_version": "3.11.7", "settings": {"batch": 8, "model": {"size": "s"}}}
    b = {
        "resource": {"host.name": "small"},
        "git": {"commit": "def"},
        "python": "3.11.7",
        "config": {"batch": 16, "extra": 1},
    }
    result = compare(
        loop_run(tmp_path / "a", seed=1, run=a, model="one"), loop_run(tmp_path / "b", seed=2, run=b, model="two")
    )

    assert {"host_differs", "commit_differs", "model_differs", "settings_differ"} <= codes(result)
    messages = {caution.code: caution.message for caution in result.cautions}
    assert messages["host_differs"] == "A and B differ in host: big against small."
    assert messages["settings_differ"] == "Not all runs have the same settings: batch, extra, model.size."
    assert "python_version_differs" not in codes(result)
    assert result.unknown_facts == ("spanfold_version",)


@pytest.mark.case("C-076")
def test_runs_of_one_side_that_differ_are_named(tmp_path: Path) -> None:
    a = [loop_run(tmp_path / name, seed=1, run={"host": name}) for name in ("x", "y")]
    b = [loop_run(tmp_path / f"b{name}", seed=1, run={"host": name}) for name in ("x", "y")]

    assert "host_mixed" in codes(compare(a, b))
    assert "host_differs" not in codes(compare(a, b))


@pytest.mark.parametrize(
    "content", [None, b"", b"[]", b'{"run": 3}', b'{"run": null}', b"{", b"\xff", b'{"run": {"host": null}}']
)
def test_a_run_json_that_says_nothing_leaves_the_facts_unknown(tmp_path: Path, content: bytes | None) -> None:
    for name in "ab":
        loop_run(tmp_path / name, seed=1)
        if content is not None:
            (tmp_path / name / "run.json").write_bytes(content)
    result = compare(tmp_path / "a", tmp_path / "b")

    assert result.unknown_facts == ("host", "commit", "spanfold_version", "python_version", "settings")


@pytest.mark.case("C-050")
def test_a_damaged_file_is_compared_by_its_good_rows_with_a_caution(tmp_path: Path) -> None:
    for name in "ab":
        loop_run(tmp_path / name, seed=1)
    path = tmp_path / "b" / "timings.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"\0" * 200_000, lines[3], b'{"broken\n', *lines[4:]]))
    result = compare(tmp_path / "a", tmp_path / "b")

    assert result.b.skipped == {"malformed": 2}
    assert [(s.a.rows, s.ratio) for s in result.stages] == [(s.b.rows, 1.0) for s in result.stages]
    assert "damaged_rows" in codes(result)


def test_interrupted_failed_and_repeated_runs_are_said(tmp_path: Path) -> None:
    made = RunWriter("bad")
    top = made.run(5, ok=False)
    stage_row = made.span("m2", 0, 4, top, **kind("stage"))
    made.span("model_call", 0, 1, stage_row)
    failed = made.write(tmp_path / "failed")
    made.rows.remove(stage_row)
    interrupted = made.write(tmp_path / "interrupted")
    empty = write_rows(tmp_path / "empty" / "timings.jsonl", []).parent

    assert {"failed_runs", "repeated_run"} <= codes(compare(failed, failed))
    assert "interrupted_runs" in codes(compare(interrupted, failed))
    assert "no_rows" in codes(compare(empty, failed))


def test_the_fewest_runs_that_can_show_a_difference_are_named(tmp_path: Path) -> None:
    result = compare(runs(tmp_path, "a", 3, first_seed=0), runs(tmp_path, "b", 3, first_seed=9, slow=2))

    [message] = [caution.message for caution in result.cautions if caution.code == "too_few"]
    assert "over 5 stages: it takes at least 5 a side." in message
    enough = compare(runs(tmp_path, "c", 5, first_seed=0), runs(tmp_path, "d", 5, first_seed=9, slow=2))
    assert stage(enough, "m2/model_call").verdict == "changed"


def test_sources_of_every_kind_give_the_same_answer(tmp_path: Path) -> None:
    a, b = loop_run(tmp_path / "a", seed=1), loop_run(tmp_path / "b", seed=2)
    as_text = compare(str(a), str(b)).to_dict()

    assert compare([a], [b]).to_dict() == as_text
    assert compare(a / "timings.jsonl", b / "timings.jsonl").to_dict() == as_text
    assert compare(read_timings(a / "timings.jsonl"), read_timings(b / "timings.jsonl")).to_dict() == as_text


@pytest.mark.parametrize("name", ["nothing here", "timings.jsonl is a folder"])
def test_a_run_without_timings_is_an_error_that_names_the_file(tmp_path: Path, name: str) -> None:
    good, bad = loop_run(tmp_path / "good", seed=1), tmp_path / name
    bad.mkdir()
    if "folder" in name:
        (bad / "timings.jsonl").mkdir()

    with pytest.raises(TimingsError) as caught:
        compare(good, bad)

    assert str(bad / "timings.jsonl") in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"tolerance": 0.9}, {"tolerance": math.inf}, {"alpha": 0.0}, {"alpha": 1.0}, {"replicates": 0}]
)
def test_an_argument_out_of_range_is_named(wrong: dict[str, float]) -> None:
    [name] = wrong
    with pytest.raises(ValueError, match=name):
        compare(read_of([1]), read_of([1]), **wrong)


def test_an_empty_list_of_runs_is_refused() -> None:
    with pytest.raises(ValueError, match="side B"):
        compare(read_of([1]), [])


@pytest.mark.case("C-076")
def test_the_same_comparison_gives_the_same_json(tmp_path: Path) -> None:
    a, b = runs(tmp_path, "a", 4, first_seed=0), runs(tmp_path, "b", 4, first_seed=9)
    first, second = (json.dumps(compare(a, b).to_dict(), allow_nan=False) for _ in range(2))

    assert first == second
    assert json.loads(first)["schema"] == "spanfold.comparison/1"
    assert list(json.loads(first))[:4] == ["schema", "verdict", "unit", "measure"]


SECONDS = st.lists(st.integers(1, 10**7).map(lambda us: us / 1e6), min_size=1, max_size=12)


@pytest.mark.slow
@given(a=SECONDS, b=SECONDS)
def test_turning_the_sides_around_turns_the_ratio_around(a: list[float], b: list[float]) -> None:
    there, back = compare(read_of(a), read_of(b)).stages[0], compare(read_of(b), read_of(a)).stages[0]

    assert there.ratio is not None
    assert back.ratio is not None
    assert there.ratio * back.ratio == pytest.approx(1)
    assert (there.p_value, there.p_adjusted) == (back.p_value, back.p_adjusted)
    assert (there.a, there.b) == (back.b, back.a)


@pytest.mark.slow
@given(a=SECONDS, b=SECONDS, factor=st.integers(2, 1000))
def test_the_unit_of_time_does_not_matter(a: list[float], b: list[float], factor: int) -> None:
    plain = compare(read_of(a), read_of(b)).stages[0]
    scaled = compare(read_of([v * factor for v in a]), read_of([v * factor for v in b])).stages[0]

    assert plain.p_value == scaled.p_value
    assert plain.ratio == pytest.approx(scaled.ratio)
    assert plain.ci_low == pytest.approx(scaled.ci_low)


def family_of_runs(random: Random, count: int, stages: int, noise: float) -> list[TimingRead]:
    """Replicates of one thing: every run is slower or faster as a whole, and every stage within it."""
    reads: list[TimingRead] = []
    for _ in range(count):
        mood = random.lognormvariate(0, noise)
        rows = tuple(
            TimingRow(stage=f"m{number}", seconds=mood * random.lognormvariate(0, noise), span_id=f"{number}")
            for number in range(stages)
        )
        reads.append(TimingRead(Path("timings.jsonl"), rows))
    return reads


@pytest.mark.slow
@pytest.mark.case("C-076")
@pytest.mark.parametrize(
    ("count", "stages", "tolerance", "least"),
    # At tolerance 1 the verdict rests on chance alone, and some false alarms must come: a test that never fires has no power.
    [(10, 1, 1.0, 0.01), (10, 5, 1.0, 0.0), (10, 5, 1.1, 0.0), (5, 1, 1.0, 0.0)],
)
def test_when_nothing_changed_false_alarms_stay_at_the_stated_rate(
    count: int, stages: int, tolerance: float, least: float
) -> None:
    random, trials, alpha = Random(20), 400, 0.05
    alarms = sum(
        compare(
            family_of_runs(random, count, stages, 0.2),
            family_of_runs(random, count, stages, 0.2),
            tolerance=tolerance,
            alpha=alpha,
            replicates=200,
        ).verdict
        == "changed"
        for _ in range(trials)
    )

    # Three standard errors of a proportion of 0.05 over the trials.
    assert least <= alarms / trials <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / trials)


@pytest.mark.slow
@pytest.mark.case("C-076")
def test_a_change_of_half_again_is_nearly_always_found() -> None:
    random, trials = Random(21), 60
    found = 0
    for _ in range(trials):
        a, b = family_of_runs(random, 10, 3, 0.1), family_of_runs(random, 10, 3, 0.1)
        slower = [
            TimingRead(
                read.path,
                tuple(TimingRow(stage=r.stage, seconds=r.seconds * 1.5, span_id=r.span_id) for r in read.rows),
            )
            for read in b
        ]
        found += compare(a, slower, replicates=200).verdict == "changed"

    assert found / trials > 0.95


@pytest.mark.case("C-035")
def test_ten_thousand_spans_of_one_stage_are_compared_without_resampling_each(tmp_path: Path) -> None:
    random = Random(3)
    a, b = (read_of([random.lognormvariate(0, 0.2) for _ in range(10_000)]) for _ in "ab")

    result = compare(a, b).stages[0]

    assert (result.a.n, result.b.n, result.verdict) == (10_000, 10_000, "same")
    assert result.ci_low is not None
    assert result.ci_high is not None
    # The interval of a median of so many values is a few parts in a thousand wide.
    assert 0.97 < result.ci_low < 1 < result.ci_high < 1.03
