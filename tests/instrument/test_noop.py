"""Outside of a run the recording functions give out an object that does nothing: nobody can tell it by its surface."""

import inspect
from pathlib import Path
from typing import Any

import pytest

import spanfold

CLASSES = {
    "run": spanfold.Run,
    "stage": spanfold.Span,
    "timed": spanfold.Span,
    "model_call": spanfold.ModelCallSpan,
    "agent": spanfold.AgentSpan,
    "tool": spanfold.ToolSpan,
}


@pytest.fixture
def unrecorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("SPANFOLD_DISABLED", "1")
    spanfold.configure()
    given = {name: getattr(spanfold, name)("x") for name in CLASSES}
    assert not any(isinstance(one, CLASSES[name]) for name, one in given.items())
    return given


def public(cls: type) -> list[str]:
    return [name for name in dir(cls) if not name.startswith("_")]


@pytest.mark.parametrize("function", CLASSES)
def test_what_a_recorded_object_can_do_can_be_asked_of_one_that_is_not_recorded(
    function: str, unrecorded: dict[str, Any]
) -> None:
    cls, noop = CLASSES[function], unrecorded[function]

    # What only says how a class is built: who a model call is, where its record is put, what the host is shown.
    built = {"identity", "frame", "mirrored", "hooks", "otel_kind", "run"}
    missing = [name for name in public(cls) if not hasattr(noop, name) and name not in built]

    assert missing == []


@pytest.mark.parametrize("function", CLASSES)
def test_a_call_that_fits_a_recorded_object_fits_one_that_is_not_recorded(
    function: str, unrecorded: dict[str, Any]
) -> None:
    cls, noop = CLASSES[function], unrecorded[function]
    methods = [name for name in public(cls) if inspect.isroutine(inspect.getattr_static(cls, name))]
    differing = {
        name: (recorded, unrecorded_)
        for name in methods
        if (recorded := parameters(getattr(cls, name))) != (unrecorded_ := parameters(getattr(type(noop), name)))
    }

    assert "set" in methods
    assert differing == {}


def parameters(method: Any) -> list[tuple[str, Any, Any]]:
    """Return name, kind and default of what a method takes besides its object."""
    found = list(inspect.signature(method).parameters.values())[1:]
    return [(p.name, p.kind, p.default) for p in found]


def test_every_method_of_an_unrecorded_call_returns_what_goes_on(unrecorded: dict[str, Any]) -> None:
    call = unrecorded["model_call"]
    tool = unrecorded["tool"]
    run = unrecorded["run"]

    with run as entered, call, tool:
        assert entered is run
        assert call.set(a=1).input("a").output("b").usage(input_tokens=1, prompt_tokens=2) is call
        assert call.served_model("m").response_id("r").finish_reasons("stop").finish_reasons(["stop"]) is call
        assert tool.arguments({}).result(1) is tool
        assert run.view() == Path() == run.dir
        assert (run.trace_id, run.losses, run.closed) == ("", {}, True)
    assert not call.is_recording()
