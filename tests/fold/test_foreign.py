"""Spans of other instrumentors become records, and every call and token is counted once."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from spanfold import names
from spanfold.fold import fold_run
from tests.fold.journals import JournalFile, json_text, span_id

OPENAI = "opentelemetry.instrumentation.openai_v2"
CALL: dict[str, Any] = {
    names.GENAI_OPERATION: "chat",
    names.GENAI_PROVIDER: "openai",
    names.GENAI_MODEL: "m",
    names.GENAI_INPUT_TOKENS: 10,
    names.GENAI_OUTPUT_TOKENS: 2,
}


def folded(run_dir: Path, document: str = "run.json") -> dict[str, Any]:
    fold_run(run_dir)
    value = orjson.loads((run_dir / document).read_bytes())
    assert isinstance(value, dict)
    return value


@pytest.mark.case("C-072")
@pytest.mark.parametrize(
    "attributes",
    [
        {
            names.GENAI_OPERATION: "chat",
            names.GENAI_PROVIDER: "openai",
            names.GENAI_MODEL: "m",
            names.GENAI_INPUT: '[{"role":"user"}]',
            names.GENAI_OUTPUT: "out",
            names.GENAI_INPUT_TOKENS: 10,
            names.GENAI_OUTPUT_TOKENS: 2,
        },
        {
            "gen_ai.system": "openai",
            "gen_ai.request.model": "m",
            "gen_ai.operation.name": "chat",
            "gen_ai.prompt": '[{"role":"user"}]',
            "gen_ai.completion": "out",
            "gen_ai.usage.prompt_tokens": 10,
            "gen_ai.usage.completion_tokens": 2,
        },
        {
            "llm.request.type": "chat",
            "gen_ai.system": "openai",
            "gen_ai.request.model": "m",
            "gen_ai.prompt": '[{"role":"user"}]',
            "gen_ai.completion": "out",
            "gen_ai.usage.input_tokens": 10,
            "gen_ai.usage.output_tokens": 2,
        },
        {
            "openinference.span.kind": "LLM",
            "llm.model_name": "m",
            "llm.provider": "openai",
            "input.value": '[{"role":"user"}]',
            "output.value": "out",
            "llm.token_count.prompt": 10,
            "llm.token_count.completion": 2,
        },
    ],
    ids=["newest", "gen_ai.system", "openllmetry", "openinference"],
)
def test_older_and_foreign_names_read_as_the_newest_ones(
    run_dir: Path, journal: JournalFile, attributes: dict[str, Any]
) -> None:
    journal.run_started()
    journal.span(None, "chat m", 2, attributes={names.STAGE: "M2", **attributes}, scope=OPENAI)

    (record,) = folded(run_dir, "M2/log.json")["model_calls"]

    assert {k: record[k] for k in ("model", "provider", "input", "output", "usage", "scope", "event")} == {
        "model": "m",
        "provider": "openai",
        "input": [{"role": "user"}],
        "output": "out",
        "usage": {"input_tokens": 10, "output_tokens": 2},
        "scope": OPENAI,
        "event": "model_call",
    }
    assert "wrapped" not in record


def test_a_newer_name_wins_over_an_older_one_on_the_same_span(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    attributes = {"gen_ai.system": "old", "gen_ai.usage.prompt_tokens": 99, **CALL}
    journal.span(None, "chat m", 2, attributes=attributes, scope=OPENAI)

    (record,) = folded(run_dir)["model_calls"]

    assert record["provider"] == "openai"
    assert record["usage"]["input_tokens"] == 10


def test_foreign_tools_and_agents_become_records_and_other_spans_do_not(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    tool = {names.GENAI_OPERATION: "execute_tool", names.GENAI_TOOL: "grep", names.GENAI_TOOL_ARGUMENTS: '{"a":1}'}
    journal.span(None, "execute_tool grep", 2, attributes=tool, scope="pydantic-ai")
    agent = {names.GENAI_OPERATION: "invoke_agent", names.GENAI_AGENT: "a", names.GENAI_INPUT_TOKENS: 50}
    journal.span(None, "invoke_agent a", 3, attributes=agent, scope="pydantic-ai")
    journal.span(None, "GET", 4, attributes={"http.request.method": "GET"}, scope="http")
    journal.span(
        None, "chain", 5, attributes={"openinference.span.kind": "CHAIN", "input.value": "x"}, scope="openinference.x"
    )

    value = folded(run_dir)

    assert value["tool"][0]["arguments"] == {"a": 1}
    assert value["agent"][0]["usage"] == {"input_tokens": 50}
    assert [k for k in ("tool", "agent", "model_calls", "event") if k in value] == ["tool", "agent"]
    timed = [orjson.loads(line)["attributes"]["name"] for line in (run_dir / "timings.jsonl").read_bytes().splitlines()]
    assert timed == ["execute_tool grep", "invoke_agent a"]


@pytest.mark.case("C-070")
def test_the_usage_of_an_agent_is_not_added_to_that_of_its_calls(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.model_call(2, parent=1)
    journal.model_call(3, parent=1, attributes={names.GENAI_CACHE_READ: 5, names.GENAI_REASONING: 1})
    journal.span(
        "agent", "a", 1, attributes={names.STAGE: "M2", names.GENAI_INPUT_TOKENS: 24, names.GENAI_OUTPUT_TOKENS: 6}
    )

    value = folded(run_dir)

    assert value["run"]["totals"] == {
        "model_calls": 2,
        "failed": 0,
        "wrapped": 0,
        "usage": {"input_tokens": 24, "output_tokens": 6, "cache_read_tokens": 5, "reasoning_tokens": 1},
    }
    assert folded(run_dir, "M2/log.json")["agent"][0]["usage"] == {"input_tokens": 24, "output_tokens": 6}


@pytest.mark.case("C-070")
@pytest.mark.parametrize(
    "where",
    [
        {"parent": 1},
        {"parent": 9, "attributes": {names.RECORDED_PARENT: span_id(1)}},
        {"parent": 9, "attributes": {names.PARENT: "model_call"}},
    ],
    ids=["child", "recorded parent", "parent token"],
)
def test_a_provider_span_inside_a_model_call_of_ours_is_the_same_call(
    run_dir: Path, journal: JournalFile, where: dict[str, Any]
) -> None:
    journal.run_started()
    journal.started("model_call", "chat m", 1, stage="M2")
    attributes = {names.STAGE: "M2", **CALL, **where.pop("attributes", {})}
    journal.span(None, "chat m", 2, attributes=attributes, scope=OPENAI, **where)
    journal.model_call(1)

    inner, outer = folded(run_dir, "M2/log.json")["model_calls"]
    totals = folded(run_dir)["run"]["totals"]

    assert inner["wrapped"] is True
    assert "wrapped" not in outer
    assert totals == {
        "model_calls": 1,
        "failed": 0,
        "wrapped": 1,
        "usage": {"input_tokens": 12, "output_tokens": 3},
    }


@pytest.mark.case("C-070")
def test_a_framework_span_around_its_providers_span_is_the_same_call(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.span(
        None, "chat m", 3, parent=2, attributes={**CALL, names.ERROR_TYPE: "Timeout"}, scope=OPENAI, status_code=2
    )
    journal.span(None, "chat m", 4, parent=2, attributes=CALL, scope=OPENAI)
    # A step of the framework that is no model call stands between.
    journal.span(None, "step", 2, parent=1, attributes={"x": 1}, scope="openinference.langchain")
    journal.span(None, "ChatOpenAI", 1, attributes={"openinference.span.kind": "LLM", **CALL}, scope="openinference.x")

    value = folded(run_dir)

    assert [r.get("wrapped", False) for r in value["model_calls"]] == [False, False, True]
    assert value["run"]["totals"] == {
        "model_calls": 2,
        "failed": 1,
        "wrapped": 1,
        "usage": {"input_tokens": 20, "output_tokens": 4},
    }


def test_calls_that_only_share_a_stage_are_two_calls(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    journal.started("stage", "M2", 1, stage="M2")
    journal.span(None, "chat m", 3, parent=1, attributes={names.STAGE: "M2", names.PARENT: "m2", **CALL}, scope=OPENAI)
    journal.span(None, "chat m", 4, parent=1, attributes={names.STAGE: "M2", names.PARENT: "m2", **CALL}, scope=OPENAI)
    journal.stage("M2", 1)

    assert folded(run_dir)["run"]["totals"]["model_calls"] == 2


def test_foreign_values_of_odd_types_are_kept(run_dir: Path, journal: JournalFile) -> None:
    journal.run_started()
    line = journal.span(
        None,
        "chat m",
        2,
        attributes={**CALL, "blob": b"\xff\x00", "list": (1, 2), "json": json_text({"deep": [1]}), "x.ratio": 0.5},
        scope=OPENAI,
        write=False,
    )
    journal.put(line.replace(b'"doubleValue":0.5', b'"doubleValue":"NaN"'))

    (record,) = folded(run_dir)["model_calls"]

    assert record["otel_attributes"] == {
        "blob": {"$bytes": "/wA="},
        "list": [1, 2],
        "json": {"deep": [1]},
        "x.ratio": None,
    }
