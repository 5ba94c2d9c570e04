"""Message content: recorded as the caller passed it, and kept to where the policy allows it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.trace import SpanContext

import spanfold
from spanfold import names
from spanfold.instrument import SpanfoldTracerProvider
from spanfold.journal import content, value_of
from spanfold.redact import Redactor
from tests.instrument.hosts import OPENAI, Host
from tests.instrument.reading import events, span, spans

CANARY = "canary-of-the-content"
EVERYWHERE = {
    "gen_ai.input.messages": f'[{{"role":"user","parts":[{{"type":"text","content":"{CANARY}"}}]}}]',
    "gen_ai.output.messages": CANARY,
    "gen_ai.system_instructions": CANARY,
    "gen_ai.tool.definitions": CANARY,
    "gen_ai.tool.call.arguments": CANARY,
    "gen_ai.tool.call.result": CANARY,
    "gen_ai.prompt": CANARY,
    "gen_ai.prompt.0.content": CANARY,
    "gen_ai.prompt.variable.name": CANARY,
    "gen_ai.completion.0.content": CANARY,
    "gen_ai.completion.0.tool_calls.0.arguments": CANARY,
    "gen_ai.retrieval.query.text": CANARY,
    "gen_ai.retrieval.documents": CANARY,
    "gen_ai.memory.records": CANARY,
    "input.value": CANARY,
    "output.value": CANARY,
    "llm.prompts": CANARY,
    "llm.input_messages.0.message.content": CANARY,
    "llm.output_messages.0.message.content": CANARY,
    "llm.prompt_template.template": CANARY,
    "tool.parameters": CANARY,
    "retrieval.documents.0.document.content": CANARY,
    "embedding.embeddings.0.embedding.text": CANARY,
    "traceloop.entity.input": CANARY,
    "traceloop.entity.output": CANARY,
    "langfuse.observation.input": CANARY,
    "langfuse.trace.output": CANARY,
    "pydantic_ai.all_messages": CANARY,
    "all_messages_events": CANARY,
    "final_result": CANARY,
}
ELSE = {
    "gen_ai.operation.name": "chat",
    "gen_ai.prompt.name": "greeting",
    "gen_ai.prompt.version": "3",
    "gen_ai.output.type": "text",
    "gen_ai.usage.input_tokens": 3,
    "gen_ai.completion_tokens": 4,
    "llm.model_name": "m",
    "llm.token_count.prompt": 3,
    "input.mime_type": "text/plain",
    "tool.name": "grep",
}


@pytest.fixture(params=["all", "local", "none"])
def policy(request: pytest.FixtureRequest) -> Iterator[str]:
    spanfold.configure(content=request.param)
    return request.param  # type: ignore[return-value]  # a fixture


def journal_text(where: Path) -> str:
    return b"".join(p.read_bytes() for p in (where / "journal").iterdir()).decode()


REDACTOR = Redactor()


def is_no_secret(text: str) -> bool:
    """Whether it stays as it is. Hypothesis finds names of secrets in the sources of the tests, and tries them."""
    return not REDACTOR.is_sensitive_name(text) and REDACTOR.redact(text) == text


texts = st.text(max_size=20).filter(is_no_secret)
messages = st.lists(st.fixed_dictionaries({"role": texts, "content": texts}), min_size=1, max_size=4)
odd_messages = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "content", "name"]), st.one_of(texts, st.none(), st.lists(texts, max_size=2))
    )
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)
whole_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(is_no_secret)


@given(
    given_=st.one_of(whole_texts, messages, odd_messages, anything), returned=st.one_of(whole_texts, messages, anything)
)
def test_content_comes_back_exactly_as_the_caller_passed_it(
    tmp_path_factory: pytest.TempPathFactory, given_: Any, returned: Any
) -> None:
    where = tmp_path_factory.mktemp("r") / "run"
    with spanfold.run("r", dir=where):
        with spanfold.model_call("m", input=given_) as call:
            call.output(returned)
        with spanfold.agent("a") as agent:
            agent.input(given_).output(returned)
        with spanfold.tool("t", arguments=given_) as tool:
            tool.result(returned)

    model, invoked, used, _ = spans(where)
    for recorded in (model, invoked):
        if given_ is not None or recorded is invoked:
            assert content(recorded, output=False) == given_
        assert content(recorded, output=True) == returned
    if given_ is not None:
        assert value_of(used, names.GENAI_TOOL_ARGUMENTS) == given_
    assert value_of(used, names.GENAI_TOOL_RESULT) == returned


def record_everything(host: Host) -> None:
    """Pass content in every way there is."""
    with spanfold.model_call("m", input=CANARY) as call:
        call.output([{"role": "assistant", "content": CANARY}])
        call.set_attributes(EVERYWHERE)
        call.set_attributes(ELSE)
    with spanfold.agent("a", input={"odd": CANARY}) as agent:
        agent.output(CANARY)
    with spanfold.tool("t", arguments={"a": CANARY}) as tool:
        tool.result(CANARY)
    spanfold.traced(lambda a: a)(CANARY)
    spanfold.traced(kind="tool", name="traced tool")(lambda a: a)(CANARY)
    list(spanfold.traced(passing_on)(CANARY))
    with SpanfoldTracerProvider().get_tracer("x").start_as_current_span("api", attributes={**EVERYWHERE, **ELSE}):
        pass
    with host.get_tracer(OPENAI).start_as_current_span("foreign", attributes={**EVERYWHERE, **ELSE}) as foreign:
        for name in ("gen_ai.user.message", "gen_ai.choice", "gen_ai.content.prompt"):
            foreign.add_event(name, {"content": CANARY, "gen_ai.prompt": CANARY})
        foreign.add_event("first token", {"at": 3})
        foreign.add_link(SpanContext(1, 2, True), {"gen_ai.prompt": CANARY})


def passing_on(a: str) -> Iterator[str]:
    yield a


def test_the_policy_decides_where_content_goes(where: Path, policy: str) -> None:
    host = Host()
    spanfold.configure(content=policy, provider=host)  # type: ignore[arg-type]  # one of three
    with spanfold.run("r", dir=where):
        record_everything(host)

    text = journal_text(where)
    assert (CANARY in text) is (policy != "none")
    seen = host.seen()
    shown = "\n".join(s.to_json() for name, s in seen.items() if name != "foreign")
    assert (CANARY in shown) is (policy == "all")
    # What is no content is everywhere.
    for name in ("chat m", "api", "foreign"):
        assert {k: v for k, v in span(where, name).attributes.items() if k in ELSE} == ELSE
        assert {k: v for k, v in (seen[name].attributes or {}).items() if k in ELSE} == ELSE
    marked = {s.name for s in spans(where) if s.attributes.get(names.CONTENT) == "local"}
    if policy == "local":
        assert marked == {s.name for s in spans(where)} - {"r"}
    else:
        assert marked == set()
    foreign = span(where, "foreign")
    kept = [e.name for e in foreign.events]
    if policy == "none":
        assert kept == ["first token"]
    else:
        assert kept == ["gen_ai.user.message", "gen_ai.choice", "gen_ai.content.prompt", "first token"]
        assert {k: v for k, v in foreign.attributes.items() if k in EVERYWHERE} == EVERYWHERE


def test_no_event_that_announces_a_span_holds_its_content(where: Path) -> None:
    with spanfold.run("r", dir=where), spanfold.agent("a", input=CANARY), spanfold.model_call("m", input=[CANARY]):
        pass

    assert len(events(where, "spanfold.span.started")) == 3
    assert all(CANARY not in str(e.attributes) for e in events(where, "spanfold.span.started"))


def test_the_policy_of_a_run_is_the_one_it_was_opened_with(where: Path) -> None:
    spanfold.configure(content="none")
    with spanfold.run("r", dir=where), spanfold.stage("s"):
        spanfold.configure(content="all")
        with spanfold.model_call("m", input=CANARY):
            pass

    assert CANARY not in journal_text(where)


def test_captured_arguments_and_results_are_bounded(where: Path) -> None:
    @spanfold.traced(name="f")
    def f(many: list[str], deep: Any) -> list[int]:
        return list(range(1_000_000))

    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    with spanfold.run("r", dir=where):
        assert len(f(["x" * 60_000] * 500, deep)) == 1_000_000

    assert len(journal_text(where)) < 1_000_000
    recorded = span(where, "f")
    assert "cut" in recorded.attributes[names.NOTES]


def test_secrets_among_arguments_are_not_recorded(where: Path) -> None:
    @spanfold.traced(name="f")
    def f(prompt: str, *, api_key: str, default_headers: dict[str, str], azure_ad_token: str) -> None: ...

    with spanfold.run("r", dir=where):
        f(
            "hello",
            api_key="hunter2hunter2",
            default_headers={"Authorization": "Bearer hunter3hunter3"},
            azure_ad_token="hunter4hunter4",
        )

    text = journal_text(where)
    assert "hello" in text
    assert not [s for s in ("hunter2hunter2", "hunter3hunter3", "hunter4hunter4") if s in text]


def test_content_attributes_set_on_the_current_span_obey_the_policy(where: Path) -> None:
    spanfold.configure(content="none")
    with spanfold.run("r", dir=where), spanfold.stage("s"):
        trace.get_current_span().set_attribute("gen_ai.prompt.0.content", CANARY)
        trace.get_current_span().set_attribute("gen_ai.prompt.name", "kept")

    assert CANARY not in journal_text(where)
    assert span(where, "s").attributes["gen_ai.prompt.name"] == "kept"
