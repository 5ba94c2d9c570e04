"""Spans of model calls, agents and tools: what the GenAI conventions let one say of each."""

from collections.abc import Sequence
from typing import Any, Final, Self

from spanfold import names
from spanfold.instrument._guard import losing_only, lost
from spanfold.instrument._span import RecordedSpan
from spanfold.instrument._stored import as_number, as_text
from spanfold.journal import AttributeValue

_INT64: Final = 1 << 63


class UsageSpan(RecordedSpan):
    """A span that can say how many tokens it used."""

    def usage(
        self,
        /,
        *,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cache_read_tokens: int | None = None,
        cache_write_tokens: int | None = None,
        reasoning_tokens: int | None = None,
        **others: int | None,
    ) -> Self:
        """Record token counts. None is skipped; a number that is no count (negative, NaN, a text) is refused, counted, noted.

        Args:
            input_tokens: All tokens that went in, those of a cache included.
            output_tokens: All tokens that came out, those of reasoning included.
            cache_read_tokens: The part of `input_tokens` that came from a cache.
            cache_write_tokens: The part of `input_tokens` that was put into a cache.
            reasoning_tokens: The part of `output_tokens` that is reasoning.
            others: Other names become `gen_ai.usage.<name>`; `prompt_tokens` and `completion_tokens` are the first two.
        """
        if self.ended:
            return self
        try:
            told = self._told
            # The two that every call has stand alone: a loop costs more than both.
            if type(input_tokens) is int and 0 <= input_tokens < _INT64 and names.GENAI_INPUT_TOKENS not in told:
                self._attributes[names.GENAI_INPUT_TOKENS] = input_tokens
            elif input_tokens is not None:
                self._count(names.GENAI_INPUT_TOKENS, input_tokens)
            if type(output_tokens) is int and 0 <= output_tokens < _INT64 and names.GENAI_OUTPUT_TOKENS not in told:
                self._attributes[names.GENAI_OUTPUT_TOKENS] = output_tokens
            elif output_tokens is not None:
                self._count(names.GENAI_OUTPUT_TOKENS, output_tokens)
            if cache_read_tokens is not None:
                self._count(names.GENAI_CACHE_READ, cache_read_tokens)
            if cache_write_tokens is not None:
                self._count(names.GENAI_CACHE_WRITE, cache_write_tokens)
            if reasoning_tokens is not None:
                self._count(names.GENAI_REASONING, reasoning_tokens)
            for name, count in others.items():
                if count is not None:
                    name = names.USAGE_ALIASES.get(name, name)
                    self._count(names.USAGE_KEYS.get(name) or f"gen_ai.usage.{name}", count)
        except Exception as error:
            lost("token counts", error)
        return self

    def _count(self, key: str, count: Any) -> None:
        if type(count) is int and 0 <= count < _INT64:
            self._put(key, count)
            return
        whole = _whole(count)
        if whole is None:
            lost("token counts that are no counts")
            self._note(key, "not a count")
        else:
            self._put(key, whole)


def _whole(count: Any) -> int | None:
    """Return a count as an int >= 0, or None when it is none."""
    number = as_number(count)
    if type(number) is float and number.is_integer():
        number = int(number)
    return number if type(number) is int and 0 <= number < _INT64 else None


class ModelCallSpan(UsageSpan):
    """One call of a model."""

    identity: tuple[Any, ...] = ("", "", None)
    """Operation, model and provider."""

    def _static_attributes(self) -> dict[str, AttributeValue]:
        return model_attributes(*self.identity)

    def served_model(self, name: str) -> Self:
        """Record the exact model that answered."""
        try:
            self.set_attribute(names.GENAI_SERVED_MODEL, as_text(name))
        except Exception as error:
            lost("served models", error)
        return self

    def response_id(self, response_id: str) -> Self:
        """Record the provider's id of the answer."""
        with losing_only("response ids"):
            self.set_attribute(names.GENAI_RESPONSE_ID, as_text(response_id))
        return self

    def finish_reasons(self, *reasons: str | Sequence[str]) -> Self:
        """Record why each choice ended: `stop`, `length`, `tool_call` ...; one by one, or as one list."""
        if len(reasons) == 1 and type(reasons[0]) in (list, tuple):
            reasons = tuple(reasons[0])
        with losing_only("finish reasons"):
            self.set_attribute(names.GENAI_FINISH_REASONS, [as_text(reason) for reason in reasons])
        return self


def model_attributes(operation: str, model: str, provider: str | None) -> dict[str, AttributeValue]:
    """Return the attributes every call of one model has."""
    attributes: dict[str, AttributeValue] = {names.GENAI_OPERATION: operation, names.GENAI_MODEL: model}
    if provider is not None:
        attributes[names.GENAI_PROVIDER] = provider
    return attributes


def agent_attributes(name: str, model: str | None, provider: str | None) -> dict[str, AttributeValue]:
    """Return the attributes every invocation of one agent has."""
    attributes: dict[str, AttributeValue] = {names.GENAI_OPERATION: "invoke_agent", names.GENAI_AGENT: name}
    if model is not None:
        attributes[names.GENAI_MODEL] = model
    if provider is not None:
        attributes[names.GENAI_PROVIDER] = provider
    return attributes


def tool_attributes(name: str) -> dict[str, AttributeValue]:
    """Return the attributes every execution of one tool has."""
    return {names.GENAI_OPERATION: "execute_tool", names.GENAI_TOOL: name}


class AgentSpan(UsageSpan):
    """One invocation of an agent."""

    identity: tuple[Any, ...] = ("", None, None)
    """Name, model and provider."""

    def _static_attributes(self) -> dict[str, AttributeValue]:
        return agent_attributes(*self.identity)


class ToolSpan(RecordedSpan):
    """One execution of a tool."""

    identity: tuple[Any, ...] = ("",)
    """Name."""

    def _static_attributes(self) -> dict[str, AttributeValue]:
        return tool_attributes(*self.identity)

    def arguments(self, value: Any) -> Self:
        """Record the arguments of the tool, as JSON text."""
        return self._tool(names.GENAI_TOOL_ARGUMENTS, value)

    def result(self, value: Any) -> Self:
        """Record what the tool returned, as JSON text."""
        return self._tool(names.GENAI_TOOL_RESULT, value)

    def output(self, value: Any) -> Self:
        """Record what the tool returned; the same as `result`."""
        return self.result(value)

    def input(self, value: Any) -> Self:
        """Record the arguments of the tool; the same as `arguments`."""
        return self.arguments(value)

    def _tool(self, key: str, value: Any) -> Self:
        if not self.ended and self.run.content != "none":
            self._store(key, value)
            if self.run.content == "local":
                self._put(names.CONTENT, "local")
        return self
