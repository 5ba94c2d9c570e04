"""Stand for a model and record its calls, while the model stays what it is (DL 13).

`InstrumentedModel` gives back what the model gives back and raises what it
raises; nothing the recording does, or fails to do, reaches the caller. Calls of
`generate`, `forward`, `logprobs` and `chat` are recorded: when they return, when
the answer of a coroutine is there, when a stream of items ends, and also when an
interrupt ends them. Every other attribute is the model's.
"""

import copy
import inspect
import itertools
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping
from functools import wraps
from pathlib import PurePath
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MethodType
from typing import Any, Final, cast

from spanfold.instrument import losing_only

log = logging.getLogger("spanfold")

METHODS: Final = frozenset({"generate", "forward", "logprobs", "chat"})
"""Methods of a model whose calls are recorded."""
BATCH_IDS: Final = 20
"""Ids of a batch that stand on each record; the true number stands beside them."""
LONGEST_TEXT: Final = 8_000
"""Characters of a text, for a logger that does not keep texts whole."""

CasePrompts = Mapping[str, Any] | Iterable[tuple[str, str]]
"""Prompt -> id of its case, or several ids; or pairs of both, in which a prompt may come again."""


class InstrumentedModel:
    """A model whose calls are recorded.

    It is an instance of the model's class as far as `isinstance` goes, has its
    attributes, methods and text, and is copied like it. Setting an attribute
    sets it on the model. In another process, to where it was pickled, calls go
    through unrecorded: the logger stays where it is.
    """

    __slots__ = ("__weakref__", "_spanfold_calls", "_spanfold_model")

    _spanfold_model: Any
    _spanfold_calls: "_Calls | None"

    def __init__(
        self,
        model: Any,
        run_logger: Any,
        *,
        cycle: int,
        analyzer: str,
        stage: str = "M1",
        case_prompts: CasePrompts | None = None,
        batch_case_ids: Iterable[str] | None = None,
    ) -> None:
        """Stand for a model.

        Args:
            model: The model.
            run_logger: Where calls are recorded: it has `log_model_call`, and `log_model_exchange` for stages other than
                M1 where it knows those. None records nothing.
            cycle: Iteration of the loop the calls belong to.
            analyzer: Who calls; in stages other than M1 the role of the exchange.
            stage: Stage of the calls. `M1` makes model calls of them, any other stage exchanges.
            case_prompts: Which case a prompt belongs to. A prompt of several cases belongs to none of them.
            batch_case_ids: The cases that are worked on.
        """
        _set(self, "_spanfold_model", model)
        calls = None
        if run_logger is not None:
            calls = _Calls(run_logger, cycle, analyzer, stage, _one_case_each(case_prompts), list(batch_case_ids or ()))
        _set(self, "_spanfold_calls", calls)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_spanfold_"):  # half-made by a copy or unpickling
            raise AttributeError(name)
        value = getattr(self._spanfold_model, name)
        calls = self._spanfold_calls
        if calls is None or name not in METHODS or not callable(value):
            return value
        return calls.recorded(value, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._spanfold_model, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._spanfold_model, name)

    def __dir__(self) -> Iterable[str]:
        return dir(self._spanfold_model)

    @property  # type: ignore[misc]  # data, as every class has it; here it is the model's
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cast("type", self._spanfold_model.__class__)

    def __repr__(self) -> str:
        # Keys of experiment caches are made of it.
        return repr(self._spanfold_model)

    def __str__(self) -> str:
        return str(self._spanfold_model)

    def __copy__(self) -> "InstrumentedModel":
        return _twin(copy.copy(self._spanfold_model), self._spanfold_calls)

    def __deepcopy__(self, memo: dict[int, Any]) -> "InstrumentedModel":
        return _twin(copy.deepcopy(self._spanfold_model, memo), self._spanfold_calls)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _unpickled, (self._spanfold_model, os.getpid())


_set: Final = object.__setattr__


def _twin(model: Any, calls: "_Calls | None") -> InstrumentedModel:
    """Return a proxy of a copy of a model that records where the first one does."""
    twin = InstrumentedModel.__new__(InstrumentedModel)
    _set(twin, "_spanfold_model", model)
    _set(twin, "_spanfold_calls", calls)
    return twin


def _unpickled(model: Any, pid: int) -> InstrumentedModel:
    log.warning(
        "A recorded model was pickled in process %d and is used in process %d, where its calls are not recorded: the logger "
        "stays in the process that made it. Wrap the model where it is called.",
        pid,
        os.getpid(),
    )
    return InstrumentedModel(model, None, cycle=-1, analyzer="")


def _one_case_each(prompts: CasePrompts | None) -> dict[str, str]:
    """Return the prompts that belong to exactly one case."""
    found: dict[Any, set[Any]] = {}
    if isinstance(prompts, Mapping):
        for prompt, given in cast("Mapping[Any, Any]", prompts).items():
            found[prompt] = (
                {given} if isinstance(given, str) or not isinstance(given, Iterable) else set(cast("Any", given))
            )
    else:
        for prompt, given in prompts or ():
            found.setdefault(prompt, set()).add(given)
    return {prompt: ids.pop() for prompt, ids in found.items() if len(ids) == 1}


# -- one call


def _recorded(method: Callable[..., Any], name: str, calls: "_Calls") -> Callable[..., Any]:
    """Return the method, its calls recorded."""
    if inspect.iscoroutinefunction(method):

        @wraps(method, updated=())
        async def asked(*args: Any, **kwargs: Any) -> Any:
            return await _Call(calls, name, args, kwargs).coroutine(method(*args, **kwargs))

        return asked

    @wraps(method, updated=())
    def called(*args: Any, **kwargs: Any) -> Any:
        call = _Call(calls, name, args, kwargs)
        try:
            result = method(*args, **kwargs)
        except BaseException as error:
            call.failed(error)
            raise
        later = _LATER.get(cast("Any", type(result)))
        if later is not None:
            return later(call, result)
        call.returned(result)
        return result

    return called


class _Calls:
    """What the calls of one proxy have in common."""

    def __init__(
        self, logger: Any, cycle: int, analyzer: str, stage: str, cases: dict[str, str], batch: list[str]
    ) -> None:
        self.logger, self.cycle, self.analyzer, self.stage = logger, cycle, analyzer, stage
        self.cases, self.batch, self.n_batch = cases, batch[:BATCH_IDS], len(batch)
        self.indices = itertools.count(1)  # its step is one operation, so that threads never get the same
        self._known: dict[str, tuple[MethodType, Callable[..., Any]]] = {}

    def recorded(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a method, its calls recorded."""
        known = self._known.get(name)
        # Only methods: what `==` means for other callables is theirs to say.
        if known is not None and isinstance(method, MethodType) and known[0] == method:
            return known[1]
        made = _recorded(method, name, self)
        if isinstance(method, MethodType):
            self._known[name] = method, made
        return made

    @property
    def keeps_texts_whole(self) -> bool:
        return bool(getattr(self.logger, "preserve_full_model_io", False))

    def log(self, call: "_Call", output: Any, error: str | None, seconds: float) -> None:
        facts: dict[str, Any] = {
            "call_index": call.index,
            "case_id": call.case_id,
            "batch_case_ids": list(self.batch),
            "n_batch_cases": self.n_batch,
            "kwargs": call.kwargs,
        }
        told = {"cycle": self.cycle, "inputs": call.inputs, "output": output, "duration_sec": seconds, "error": error}
        exchange = None if self.stage == "M1" else getattr(self.logger, "log_model_exchange", None)
        if callable(exchange):
            exchange(self.stage, role=self.analyzer, operation=call.method, metadata=facts, **told)
        else:
            self.logger.log_model_call(analyzer=self.analyzer, method=call.method, **facts, **told)


class _Call:
    """One call of a model, from its arguments, as they were before it, to its end."""

    def __init__(self, calls: _Calls, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._calls = calls
        self.method = method
        self.index = next(calls.indices)
        self.inputs: Any = None
        self.kwargs: dict[str, str] = {}
        self.case_id: str | None = None
        self._longest: int | None = None
        self._items: list[Any] = []
        with losing_only("arguments of model calls"):
            self._longest = None if calls.keeps_texts_whole else LONGEST_TEXT
            self._take(args, dict(kwargs))
        self._begun = time.perf_counter()
        self._seconds = 0.0

    def _take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[0] if args else kwargs.pop("messages" if self.method == "chat" else "inputs", None)
        if self.method == "chat":
            self.inputs = self._cut(str(given))
            self.kwargs = {"tools": str(args[1] if len(args) > 1 else kwargs.pop("tools", None))}
        else:
            prompt = given if isinstance(given, str) else getattr(given, "prompt", None)
            self.case_id = self._calls.cases.get(prompt) if isinstance(prompt, str) else None
            self.inputs = self._asked(given, prompt)
        if self.method == "forward":
            capture = args[1] if len(args) > 1 else kwargs.pop("capture", ())
            self.kwargs = {"capture": str(_values(capture))}
            kwargs.pop("spec", None)
        elif len(args) > 1 and self.method != "chat":
            self.kwargs = {"args": str(args[1:])}
        self.kwargs.update({name: str(value) for name, value in kwargs.items()})

    def _asked(self, given: Any, prompt: Any) -> Any:
        if isinstance(given, str):
            return self._cut(given)
        if prompt is None:
            return self._cut(str(given))
        media = {
            slot: value for slot in ("image", "audio", "video") if (value := getattr(given, slot, None)) is not None
        }
        shown = {slot: _media_text(value) for slot, value in media.items()}
        return {"prompt": self._cut(str(prompt)), **shown}

    def _cut(self, text: str) -> str:
        if self._longest is None or len(text) <= self._longest:
            return text
        return f"{text[: self._longest]}...[truncated, {len(text)} chars total]"

    # -- how it ends

    def returned(self, result: Any) -> None:
        """Record an answer."""
        seconds = time.perf_counter() - self._begun
        with losing_only("model calls"):
            self._calls.log(self, self._shown(result), None, seconds)

    def failed(self, error: BaseException, *, seconds: float | None = None) -> None:
        """Record what a call raised, an interrupt included."""
        seconds = time.perf_counter() - self._begun if seconds is None else seconds
        with losing_only("model calls"):
            self._calls.log(self, None, _told(error), seconds)

    def streamed(self, *, is_closed: bool) -> None:
        """Record a stream that was read to its end, or left by its reader."""
        with losing_only("model calls"):
            end = "left by its reader" if is_closed else "read to its end"
            self.kwargs["stream"] = f"{len(self._items)} items, {end}"
            is_text = all(isinstance(item, str) for item in self._items)
            output = self._cut("".join(self._items)) if is_text else [self._cut(str(item)) for item in self._items]
            self._calls.log(self, output, None, self._seconds)

    def _shown(self, result: Any) -> Any:
        try:
            return _OUTPUTS[self.method](result, self._cut)
        except Exception:  # an answer of another shape
            return f"<{type(result).__name__}>"

    # -- answers that come later: PEP 380 spelled out, with a clock around each step

    async def coroutine(self, inner: Coroutine[Any, Any, Any]) -> Any:
        """Wait for the answer of a coroutine and record it."""
        self._begun = time.perf_counter()
        try:
            result = await inner
        except BaseException as error:
            self.failed(error)
            raise
        self.returned(result)
        return result

    def generator(self, inner: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Pass on the items of a generator, and what its reader sends, and record them at the end."""
        step: Callable[[Any], Any] = inner.send
        sent: Any = None
        try:
            while True:
                begun = time.perf_counter()
                try:
                    item = step(sent)
                except StopIteration as stop:
                    result = stop.value
                    break
                finally:
                    self._seconds += time.perf_counter() - begun
                self._items.append(item)
                try:
                    step, sent = inner.send, (yield item)
                except BaseException as error:  # thrown in by the reader: the generator's to handle
                    step, sent = inner.throw, error
        except GeneratorExit:
            self.streamed(is_closed=True)
            raise
        except BaseException as error:
            self.failed(error, seconds=self._seconds)
            raise
        self.streamed(is_closed=False)
        return result

    async def async_generator(self, inner: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
        """Pass on the items of an asynchronous generator, and what its reader sends, and record them at the end."""
        step: Callable[[Any], Any] = inner.asend
        sent: Any = None
        try:
            while True:
                begun = time.perf_counter()
                try:
                    item = await step(sent)
                except StopAsyncIteration:
                    break
                finally:
                    self._seconds += time.perf_counter() - begun
                self._items.append(item)
                try:
                    step, sent = inner.asend, (yield item)
                except BaseException as error:  # thrown in by the reader: the generator's to handle
                    step, sent = inner.athrow, error
        except GeneratorExit:
            self.streamed(is_closed=True)
            raise
        except BaseException as error:
            self.failed(error, seconds=self._seconds)
            raise
        self.streamed(is_closed=False)


def _media_text(value: Any) -> str:
    return str(value) if isinstance(value, str | PurePath) else f"<{type(value).__name__}>"


_LATER: Final[Mapping[type, Callable[[_Call, Any], Any]]] = {
    GeneratorType: _Call.generator,
    AsyncGeneratorType: _Call.async_generator,
    CoroutineType: _Call.coroutine,
}
"""Answers that come later."""


def _told(error: BaseException) -> str:
    try:
        return repr(error)
    except Exception:
        return type(error).__name__


def _values(capabilities: Iterable[Any]) -> list[str]:
    """Return the values of members of an enum, sorted."""
    return sorted(str(getattr(capability, "value", capability)) for capability in capabilities)


# -- answers, as they are recorded

_Cut = Callable[[str], str]


def _generated(result: Any, cut: _Cut) -> Any:
    return cut(result if isinstance(result, str) else str(result))


def _captured(result: Any, cut: _Cut) -> Any:
    """Return the facts of a forward pass, never its tensors."""
    tokens = [token if isinstance(token, str | int | float) else str(token) for token in result.tokens]
    return {"tokens": tokens, "provided": _values(result.provided)}


def _log_probabilities(result: Any, cut: _Cut) -> Any:
    return [{"token": row.token, "logprob": round(row.logprob, 4)} for row in result]


def _chatted(result: Any, cut: _Cut) -> Any:
    calls = getattr(result, "raw_tool_calls", None) or getattr(result, "tool_calls", None)
    return {"text": cut(str(getattr(result, "text", result))), **({"tool_calls": cut(str(calls))} if calls else {})}


_OUTPUTS: Final[Mapping[str, Callable[[Any, _Cut], Any]]] = {
    "generate": _generated,
    "forward": _captured,
    "logprobs": _log_probabilities,
    "chat": _chatted,
}
