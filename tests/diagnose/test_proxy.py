"""The model's stand-in: what the caller sees is the model, what the logger sees is each call."""

import asyncio
import copy
import enum
import inspect
import json
import logging
import multiprocessing
import pickle
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import pytest
from evalrx.eval_agent.model_instrumentation import InstrumentedModel as SeedProxy

from spanfold.diagnose import InstrumentedModel, RunLogger


class Capability(enum.Enum):
    HIDDEN = "hidden_states"
    ATTENTION = "attention"


class Tensor:
    def __str__(self) -> str:
        raise AssertionError("a tensor was turned into text")

    __repr__ = __str__


class Model:
    """A model with everything the loop calls."""

    temperature = 0.5

    def generate(self, inputs: Any, **kwargs: Any) -> str:
        if kwargs.get("boom"):
            raise ValueError("boom")
        return f"out {kwargs}"

    def forward(self, inputs: Any, capture: Any, spec: Any = None) -> Any:
        provided = {Capability.HIDDEN, Capability.ATTENTION}
        return SimpleNamespace(tokens=["a", "b"], provided=provided, hidden=Tensor())

    def logprobs(self, inputs: Any, **kwargs: Any) -> Any:
        return [SimpleNamespace(token="a", logprob=-0.123456), SimpleNamespace(token="b", logprob=-1)]

    def chat(self, messages: Any, tools: Any = None) -> Any:
        return SimpleNamespace(text="hi", raw_tool_calls=["call"] if tools else None)

    def __repr__(self) -> str:
        return "Model(0.5)"


class CallsOnly:
    """A logger that knows model calls and nothing else."""

    preserve_full_model_io = False

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def log_model_call(self, **call: Any) -> None:
        self.calls.append(call)


class Log(CallsOnly):
    def log_model_exchange(self, stage: str, **exchange: Any) -> None:
        self.calls.append({"stage": stage, **exchange})


class WholeLog(Log):
    preserve_full_model_io = True


def inputs(**slots: Any) -> Any:
    return SimpleNamespace(**{"prompt": None, "image": None, "audio": None, "video": None, **slots})


def proxied(model: Any, log: Any, proxy_type: Any = InstrumentedModel, **options: Any) -> Any:
    return proxy_type(model, log, **{"cycle": 2, "analyzer": "an", **options})


def told(log: CallsOnly) -> list[dict[str, Any]]:
    for call in log.calls:
        assert call.pop("duration_sec") >= 0
    return log.calls


# -- what is recorded

CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("generate", ("p",), {"temperature": 0.5, "stop": ["a"]}),
    ("generate", ("q",), {}),
    ("generate", (), {"inputs": "p"}),
    ("generate", (123,), {}),
    ("generate", ({"prompt": "p"},), {}),
    ("generate", (inputs(prompt="p", image="i.png", audio=Path("a.wav"), video=b"x"),), {}),
    ("generate", (inputs(prompt=5),), {}),
    ("generate", (inputs(image="i"),), {}),
    ("generate", (None,), {}),
    ("generate", ("p",), {"boom": True}),
    ("generate", ("x" * 8000,), {}),
    ("generate", ("x" * 8001,), {"long": "k" * 8001}),
    ("generate", (inputs(prompt="y" * 8001),), {}),
    ("forward", ("p", {Capability.HIDDEN, Capability.ATTENTION}), {}),
    ("forward", (inputs(prompt="p"), [Capability.ATTENTION]), {"spec": 7}),
    ("forward", ("p",), {"capture": {Capability.HIDDEN}}),
    ("logprobs", ("p",), {"top": 3}),
    ("chat", ([{"role": "user", "content": "p"}],), {}),
    ("chat", (), {"messages": ["p"], "tools": [{"n": 1}]}),
]


@pytest.mark.contract("DL-113", "DL-114", "DL-115", "DL-116", "DL-117")
@pytest.mark.parametrize("stage", ["M1", "M5"])
@pytest.mark.parametrize("log_type", [CallsOnly, Log, WholeLog])
@pytest.mark.parametrize(("method", "args", "kwargs"), CALLS)
def test_a_call_is_recorded_as_the_seed_records_it(
    method: str, args: tuple[Any, ...], kwargs: dict[str, Any], log_type: type[CallsOnly], stage: str
) -> None:
    logs = log_type(), log_type()
    for log, proxy_type in zip(logs, (InstrumentedModel, SeedProxy), strict=True):
        batch = [f"c{number}" for number in range(25)]
        model = proxied(Model(), log, proxy_type, stage=stage, case_prompts={"p": "c1"}, batch_case_ids=batch)
        try:
            getattr(model, method)(*args, **kwargs)
        except ValueError as error:
            assert str(error) == "boom"

    assert len(logs[0].calls) == 1
    assert told(logs[0]) == told(logs[1])


@pytest.mark.contract("DL-114")
def test_a_record_names_the_case_of_its_prompt_and_twenty_of_the_batch() -> None:
    log = Log()
    model = proxied(Model(), log, case_prompts={"p": "c1"}, batch_case_ids=[f"c{n}" for n in range(25)])

    model.generate("p")
    model.generate("p ")

    assert [call["case_id"] for call in log.calls] == ["c1", None]
    assert log.calls[0]["batch_case_ids"] == [f"c{n}" for n in range(20)]
    assert log.calls[0]["n_batch_cases"] == 25


@pytest.mark.contract("DL-182")
@pytest.mark.parametrize(
    "prompts", [{"same": ["c1", "c2"], "own": "c3"}, [("same", "c1"), ("own", "c3"), ("same", "c2")]]
)
def test_a_prompt_of_two_cases_is_given_to_neither(prompts: Any) -> None:
    log = Log()
    model = proxied(Model(), log, case_prompts=prompts)

    model.generate("same")
    model.generate("own")

    assert [call["case_id"] for call in log.calls] == [None, "c3"]


def test_a_record_holds_the_arguments_as_they_were_before_the_call() -> None:
    class Greedy(Model):
        def chat(self, messages: Any, tools: Any = None) -> Any:
            messages.clear()
            return super().chat(messages, tools)

    log = Log()

    proxied(Greedy(), log).chat(["hello"])

    assert log.calls[0]["inputs"] == "['hello']"


@pytest.mark.contract("DL-118")
def test_threads_lose_no_call_and_share_no_index() -> None:
    log = Log()
    models = [proxied(Model(), log, analyzer=f"a{n}") for n in range(8)]
    shared = proxied(Model(), log, analyzer="shared")
    barrier = threading.Barrier(8)

    def work(model: Any) -> None:
        barrier.wait()
        for _ in range(100):
            model.generate("p")
            shared.generate("p")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, models))

    found = {(call["analyzer"], call["call_index"]) for call in log.calls}
    expected = {(f"a{n}", i) for n in range(8) for i in range(1, 101)} | {("shared", i) for i in range(1, 801)}
    assert found == expected
    assert len(log.calls) == 1600


# -- what the caller sees


@pytest.mark.contract("DL-112")
def test_results_are_the_models_own_and_attributes_are_forwarded() -> None:
    class Own(Model):
        def forward(self, inputs: Any, capture: Any, spec: Any = None) -> Any:
            return self, inputs, capture, spec

    model, log = Own(), Log()
    stand_in = proxied(model, log)
    given = inputs(prompt="p")

    assert stand_in.forward(given, [1], spec=2)[0] is model
    assert stand_in.forward(given, [1], spec=2)[1:] == (given, [1], 2)
    assert stand_in.temperature == 0.5
    stand_in.temperature = 0.7
    assert model.temperature == 0.7
    del stand_in.temperature
    assert "temperature" not in vars(model)
    assert vars(stand_in) is vars(model)
    assert dir(stand_in) == dir(model)
    assert (repr(stand_in), str(stand_in)) == (repr(model), str(model))
    with pytest.raises(AttributeError, match="missing"):
        stand_in.missing  # noqa: B018 - it raises


@pytest.mark.contract("DL-112")
def test_a_method_the_model_has_not_is_not_there() -> None:
    stand_in = proxied(SimpleNamespace(generate=lambda inputs: "x", chat=None), Log())

    assert hasattr(stand_in, "generate")
    assert stand_in.chat is None
    assert not hasattr(stand_in, "forward")


@runtime_checkable
class CanGenerate(Protocol):
    def generate(self, inputs: Any, **kwargs: Any) -> str: ...


@pytest.mark.contract("DL-182")
def test_it_counts_as_an_instance_of_the_models_class() -> None:
    stand_in = proxied(Model(), Log())

    assert isinstance(stand_in, Model)
    assert isinstance(stand_in, InstrumentedModel)
    assert isinstance(stand_in, CanGenerate)
    assert not isinstance(stand_in, dict)
    assert inspect.signature(stand_in.generate) == inspect.signature(Model().generate)
    assert stand_in.generate.__name__ == "generate"


@pytest.mark.contract("DL-133")
@pytest.mark.parametrize("exploding", ["log_model_call", "preserve_full_model_io"])
def test_a_logger_that_fails_changes_neither_answer_nor_error(exploding: str) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    log = type("Full", (Log,), {exploding: property(fail)})()
    stand_in = proxied(Model(), log)

    assert stand_in.generate("p") == "out {}"
    with pytest.raises(ValueError, match="boom"):
        stand_in.generate("p", boom=True)


@pytest.mark.contract("DL-133")
def test_arguments_and_answers_of_any_shape_pass_through() -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no text")

        __repr__ = __str__

    class OddModel(Model):
        def forward(self, inputs: Any, capture: Any = None, spec: Any = None) -> Any:
            return odd

        logprobs = chat = generate = forward

    odd, log = Odd(), Log()
    stand_in = proxied(OddModel(), log)

    for call in (stand_in.generate, stand_in.forward, stand_in.logprobs, stand_in.chat):
        assert call(odd) is odd
    assert [call["output"] for call in log.calls] == ["<Odd>"] * 4
    with pytest.raises(TypeError):
        stand_in.generate()


class Interrupted(Model):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def generate(self, inputs: Any, **kwargs: Any) -> str:
        raise self.error


@pytest.mark.contract("DL-182")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError(), ValueError("x")])
def test_an_interrupt_is_recorded_and_goes_on(error: BaseException) -> None:
    log = Log()

    with pytest.raises(type(error)) as caught:
        proxied(Interrupted(error), log).generate("p")

    assert caught.value is error
    assert log.calls[0]["error"] == repr(error)
    assert log.calls[0]["output"] is None


# -- answers that come later


class Streaming:
    def generate(self, inputs: str, **kwargs: Any) -> Any:
        received = []
        for item in inputs:
            try:
                received.append((yield item))
            except KeyError as error:
                received.append(repr(error))
        return received


def test_a_stream_reaches_its_reader_as_it_is_and_is_recorded_at_its_end() -> None:
    log = Log()
    stream = proxied(Streaming(), log).generate("abc")

    assert inspect.isgenerator(stream)
    assert next(stream) == "a"
    assert log.calls == []
    assert stream.send(1) == "b"
    assert stream.throw(KeyError("k")) == "c"
    with pytest.raises(StopIteration) as end:
        stream.send(2)
    assert end.value.value == [1, "KeyError('k')", 2]
    assert told(log)[0]["output"] == "abc"
    assert log.calls[0]["kwargs"] == {"stream": "3 items, read to its end"}


def test_a_stream_left_by_its_reader_is_recorded_with_what_came() -> None:
    log = Log()
    stream = proxied(Streaming(), log).generate("abc")
    next(stream)

    stream.close()

    assert (log.calls[0]["output"], log.calls[0]["error"]) == ("a", None)
    assert log.calls[0]["kwargs"] == {"stream": "1 items, left by its reader"}


def test_a_stream_that_fails_is_recorded_with_its_error() -> None:
    log = Log()
    stream = proxied(Streaming(), log).generate("abc")
    next(stream)

    with pytest.raises(ZeroDivisionError):
        stream.throw(ZeroDivisionError("z"))

    assert log.calls[0]["error"] == "ZeroDivisionError('z')"


class Asynchronous:
    async def generate(self, inputs: str, **kwargs: Any) -> str:
        await asyncio.sleep(0)
        if inputs == "boom":
            raise ValueError("boom")
        return inputs.upper()

    async def chat(self, messages: str, tools: Any = None) -> Any:
        for item in messages:
            await asyncio.sleep(0)
            yield item


def test_a_coroutine_is_awaited_and_recorded_with_its_answer() -> None:
    async def work() -> None:
        stand_in = proxied(Asynchronous(), log)
        assert inspect.iscoroutinefunction(stand_in.generate)
        assert await stand_in.generate("p") == "P"
        with pytest.raises(ValueError, match="boom"):
            await stand_in.generate("boom")
        task = asyncio.ensure_future(stand_in.generate("q"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    log = Log()
    asyncio.run(work())

    found = [(call["inputs"], call["output"], call["error"]) for call in log.calls]
    assert found == [("p", "P", None), ("boom", None, "ValueError('boom')"), ("q", None, "CancelledError()")]


def test_an_asynchronous_stream_is_recorded_at_its_end() -> None:
    async def work() -> None:
        stand_in = proxied(Asynchronous(), log)
        assert [item async for item in stand_in.chat("abc")] == ["a", "b", "c"]
        stream = stand_in.chat("abc")
        assert await stream.__anext__() == "a"
        await stream.aclose()

    log = Log()
    asyncio.run(work())

    assert [call["output"] for call in log.calls] == ["abc", "a"]
    assert [call["kwargs"]["stream"] for call in log.calls] == [
        "3 items, read to its end",
        "1 items, left by its reader",
    ]


# -- copies and other processes


@pytest.mark.contract("DL-182")
def test_a_copy_stands_for_a_copy_of_the_model_and_records_in_the_same_place() -> None:
    model, log = Model(), Log()
    model.settings = {"a": [1]}  # type: ignore[attr-defined]
    stand_in = proxied(model, log)

    shallow, deep = copy.copy(stand_in), copy.deepcopy(stand_in)
    shallow.temperature = 1.0
    deep.settings["a"].append(2)
    shallow.generate("p")
    deep.generate("p")

    assert (type(shallow), type(deep)) == (InstrumentedModel, InstrumentedModel)
    assert model.temperature == 0.5
    assert model.settings == {"a": [1]}  # type: ignore[attr-defined]
    assert [call["call_index"] for call in log.calls] == [1, 2]


def _generate(stand_in: Any) -> tuple[str, str]:
    return stand_in.generate("p"), repr(stand_in)


@pytest.mark.contract("DL-182")
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_stand_in_is_the_model_elsewhere_and_says_that_it_is_not_recorded(
    protocol: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()
    log.lock = threading.Lock()  # type: ignore[attr-defined]  # what no pickle holds

    with caplog.at_level(logging.WARNING, logger="spanfold"):
        elsewhere = pickle.loads(pickle.dumps(proxied(Model(), log), protocol))

    assert _generate(elsewhere) == ("out {}", "Model(0.5)")
    assert log.calls == []
    assert "not recorded" in caplog.text


@pytest.mark.slow
@pytest.mark.contract("DL-182")
def test_a_process_pool_calls_the_model_through_its_stand_in() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_generate, (proxied(Model(), Log()),)) == ("out {}", "Model(0.5)")
        pool.close()
        pool.join()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.contract("DL-113", "DL-116")
def test_a_loop_of_evalrx_with_our_stand_in_logs_the_calls_it_logs_with_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tests.diagnose.loops import LOOPS

    def calls(name: str, proxy_type: Any) -> list[Any]:
        users = [
            module
            for key, module in sys.modules.items()
            if key.startswith("evalrx.")
            and getattr(module, "InstrumentedModel", None) in (SeedProxy, InstrumentedModel)
        ]
        assert users
        for module in users:
            monkeypatch.setattr(module, "InstrumentedModel", proxy_type)
        log = RunLogger(tmp_path / name, observability_mode="offline")
        LOOPS["fixed"](log)
        log.close()
        documents = [json.loads(path.read_text()) for path in sorted((tmp_path / name).glob("M*/log.json"))]
        rows = [row for document in documents for row in document.get("model_calls", [])]
        keys = ("stage", "analyzer", "role", "method", "operation", "inputs", "output", "kwargs", "error", "case_id")
        return sorted(json.dumps({key: row.get(key) for key in keys}) for row in rows)

    monkeypatch.setenv("SPANFOLD_STATE_DIR", str(tmp_path / "state"))
    ours, seed = calls("ours", InstrumentedModel), calls("seed", SeedProxy)

    assert len(ours) > 10
    assert ours == seed


def test_a_method_that_is_replaced_on_the_model_is_the_one_that_is_called_and_recorded() -> None:
    model, log = Model(), Log()
    stand_in = proxied(model, log)
    stand_in.generate("p")

    model.generate = lambda inputs, **kwargs: "replaced"  # type: ignore[method-assign]

    assert stand_in.generate("p") == "replaced"
    assert [call["output"] for call in log.calls] == ["out {}", "replaced"]
