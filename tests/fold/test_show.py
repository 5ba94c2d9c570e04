"""`show_run` says what a journal says: by stage, by model, by error, and what is open."""

from pathlib import Path
from typing import Any

import pytest

from spanfold import names
from spanfold.errors import JournalMissing
from spanfold.fold import show_run
from spanfold.fold.show import MAX_ERRORS
from tests.fold.journals import START_NS, JournalFile, span_id

ERROR = 2


def failed(
    kind: str, number: int, parent: int | str, journal: JournalFile, error: str = "ValueError", **more: Any
) -> None:
    attributes = {names.ERROR_TYPE: error, **more.pop("attributes", {})}
    journal.span(
        kind,
        more.pop("name", f"{kind} {number}"),
        number,
        parent=parent,
        status_code=ERROR,
        attributes=attributes,
        **more,
    )


def test_work_is_counted_by_stage_and_cycle_in_the_order_of_their_start(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.started("stage", "M2", 1, at=1, stage="M2", cycle=0)
    journal.started("stage", "inner", 2, at=2, stage="inner", cycle=0)
    # The inner stage stands right under the other one.
    journal.model_call(3, stage="M2", attributes={names.CYCLE: 0})
    journal.stage("inner", 2, 0, start=2, end=3)
    journal.stage("M2", 1, 0, start=1, end=5)
    journal.model_call(4, stage=None)

    stages = show_run(run_dir).stages

    assert [(s.stage, s.cycle, s.ended, s.seconds, s.model_calls) for s in stages] == [
        (None, None, 0, 0.0, 1),
        ("M2", 0, 1, 4.0, 1),
        ("inner", 0, 1, 1.0, 0),
    ]


def test_a_stage_right_under_another_is_inside_it(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    for number, parent in ((1, names.SPAN_PARENT), (2, span_id(1)), (3, span_id(2))):
        journal.event(
            names.EVENT_STARTED,
            at=number,
            span=number,
            attributes={
                names.SPAN_NAME: f"s{number}",
                names.KIND: "stage",
                names.STAGE: f"s{number}",
                names.SPAN_PARENT: parent,
            },
        )

    assert [(s.stage, s.depth) for s in show_run(run_dir).stages] == [("s1", 0), ("s2", 1), ("s3", 2)]


@pytest.mark.case("C-070")
def test_a_call_recorded_by_two_libraries_is_counted_once(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.started("model_call", "chat m", 1, stage="M2")
    inner = {
        names.GENAI_OPERATION: "chat",
        names.GENAI_PROVIDER: "openai",
        names.GENAI_MODEL: "m",
        names.GENAI_INPUT_TOKENS: 12,
    }
    journal.span(None, "chat m", 2, parent=1, attributes=inner, scope="opentelemetry.instrumentation.openai_v2")
    journal.model_call(1)

    run = show_run(run_dir)

    assert [(model.name, model.calls, model.usage) for model in run.models] == [
        ("some-model", 1, {"input_tokens": 12, "output_tokens": 3})
    ]
    assert run.totals["wrapped"] == 1


def test_a_failure_is_told_where_it_arose_and_an_unrelated_one_too(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    failed("tool", 3, 2, journal)
    failed("stage", 2, ROOT_SPAN, journal)  # the same, on its way up
    failed("tool", 5, 4, journal, "KeyError")
    failed("stage", 4, ROOT_SPAN, journal, "RuntimeError")  # raised anew: another error

    assert [(e.kind, e.error_type, e.count) for e in show_run(run_dir).errors] == [
        ("tool", "ValueError", 1),
        ("tool", "KeyError", 1),
        ("stage", "RuntimeError", 1),
    ]


ROOT_SPAN = "00000000000000aa"


def test_like_errors_are_one_row_and_unlike_ones_are_bounded(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    for number in range(1, 40):
        failed("tool", number, ROOT_SPAN, journal, name="grep", end=number, status_message=f"attempt {number}")
    for number in range(1000, 1000 + MAX_ERRORS + 5):
        failed("tool", number, ROOT_SPAN, journal, name=f"tool {number}", end=number)

    run = show_run(run_dir)

    assert (run.errors[0].name, run.errors[0].count, run.errors[0].last_message) == ("grep", 39, "attempt 39")
    assert len(run.errors) == MAX_ERRORS
    assert run.more_errors == 6


def test_ages_count_from_the_clock_that_is_given(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started(at=0)
    journal.started("agent", "invoke_agent a", 1, at=10)

    run = show_run(run_dir, now_ns=lambda: START_NS + 70 * 10**9)

    assert [(work.kind, work.age_seconds) for work in run.open] == [("run", 70.0), ("agent", 60.0)]
    assert run.silent_seconds == 60.0
    # The clock was set back meanwhile: no negative age.
    assert show_run(run_dir, now_ns=lambda: 0).open[0].age_seconds == 0


def test_a_run_of_another_machine_is_not_called_dead(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started(host="some other machine")

    run = show_run(run_dir)

    assert (run.status, run.writer, run.open[0].writer) == ("running", "unknown", "unknown")


def test_a_run_of_this_machine_whose_process_is_gone_is_interrupted(run_dir: Path, journal: JournalFile) -> None:
    from spanfold.journal import host_name

    journal.run_started(host=host_name())

    run = show_run(run_dir)

    assert (run.status, run.writer, run.open[0].writer) == ("interrupted", "dead", "dead")


def test_a_score_keeps_its_last_value_and_its_range(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    for at, value in enumerate((0.5, 0.9, 0.7)):
        journal.event(
            names.EVENT_SCORE,
            at=at,
            attributes={names.STAGE: "M2", names.CYCLE: at, names.SCORE_NAME: "auc", names.SCORE_VALUE: value},
        )

    (score,) = show_run(run_dir).scores

    assert (score.name, score.stage, score.count, score.last_value, score.last_cycle) == ("auc", "M2", 3, 0.7, 2)
    assert (score.min_value, score.max_value) == (0.5, 0.9)


def test_a_journal_of_another_otlp_writer_is_shown_as_far_as_it_tells(run_dir: Path, journal: JournalFile) -> None:
    journal.span(None, "GET /", 1, scope="some.http.library")

    run = show_run(run_dir)

    assert (run.name, run.records, run.stages, run.models) == (None, 1, (), ())


def test_without_a_journal_there_is_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(JournalMissing, match="spanfold run list"):
        show_run(tmp_path)
