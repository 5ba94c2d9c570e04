"""What Langfuse's server reads from a span, said explicitly (facts, section 2).

Types, input and output, token usage in disjoint buckets, cost, prompt, and the
trace-level attributes on every span: its filters work on observations and do
not look at the root. Instrumentors of other libraries write older spellings;
both are read.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from spanfold import names
from spanfold.deliver._media import media_of, media_reference
from spanfold.journal import content, fields, value_of
from spanfold.model import Span

TYPES: Final = {"model_call": "generation", "agent": "agent", "tool": "tool", "run": "chain", "stage": "chain"}
"""Kind of span -> observation type; others are a plain `span`."""
OPERATION_TYPES: Final = {
    "embeddings": "embedding",
    "retrieval": "retriever",
    "invoke_agent": "agent",
    "create_agent": "agent",
    "execute_tool": "tool",
    "plan": "chain",
    "invoke_workflow": "chain",
}
"""`gen_ai.operation.name` -> observation type, for what its kind does not tell. The server would guess otherwise for some."""
TRACE_FIELDS: Final = {
    "session_id": "session.id",
    "user_id": "user.id",
    "release": "langfuse.release",
    "environment": "langfuse.environment",
    "version": "langfuse.version",
}
"""Fields of `spanfold.run(...)` -> the trace-level attribute they become."""
PARAMETERS: Final = (
    *("temperature", "top_p", "top_k", "max_tokens", "seed", "frequency_penalty", "presence_penalty"),
    *("stop_sequences", "reasoning.level", "choice.count", "stream"),
)
"""Settings of a model call: fields of these names, or `gen_ai.request.<name>`."""
MAX_TRACE_METADATA: Final = 8
MAX_TRACE_TEXT: Final = 200
"""Fields of a run repeated on every span, and the characters of each: more would be most of what is sent."""
_HOST_FACTS: Final = frozenset({"host", "pid", "python_version", "spanfold_version", "argv", "git_commit"})
_ENVIRONMENT: Final = re.compile(r"(?!langfuse)[a-z0-9_-]{1,40}")
_OLDER: Final[Mapping[str, tuple[str, ...]]] = {
    new: tuple(old for old, to in names.GENAI_OLDER.items() if to == new) for new in set(names.GENAI_OLDER.values())
}


def trace_attributes(root: Mapping[str, Any], name: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the trace-level attributes every span of a run carries.

    Args:
        root: Fields of the run.
        name: Its name.
        environ: For `LANGFUSE_TRACING_ENVIRONMENT` and `LANGFUSE_RELEASE`.
    """
    out: dict[str, Any] = {"langfuse.trace.name": name}
    for field, key in TRACE_FIELDS.items():
        if isinstance(root.get(field), str):
            out[key] = root[field]
    tags: Any = root.get("tags")
    if isinstance(tags, list):
        out["langfuse.trace.tags"] = [str(tag) for tag in cast("list[Any]", tags)]
    for variable, key in (
        ("LANGFUSE_TRACING_ENVIRONMENT", "langfuse.environment"),
        ("LANGFUSE_RELEASE", "langfuse.release"),
    ):
        if environ.get(variable):
            out.setdefault(key, environ[variable])
    if "langfuse.environment" in out:
        out["langfuse.environment"] = environment_of(out["langfuse.environment"])
    told = [
        (field, value)
        for field, value in root.items()
        if field not in _HOST_FACTS | TRACE_FIELDS.keys() and _is_short(value)
    ]
    out.update({f"langfuse.trace.metadata.{field}": value for field, value in told[:MAX_TRACE_METADATA]})
    return out


def environment_of(value: object) -> str:
    """Return an environment as the server takes it; it makes `default` of what it does not take."""
    text = value.lower() if isinstance(value, str) else ""
    return text if _ENVIRONMENT.fullmatch(text) else "default"


def _is_short(value: object) -> bool:
    return isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= MAX_TRACE_TEXT)


def observation_attributes(span: Span, attributes: Mapping[str, Any], *, with_media: bool = True) -> dict[str, Any]:
    """Return the attributes that describe one observation.

    Args:
        span: The record.
        attributes: What any destination is shown of it; content that stays here is not among them.
        with_media: Whether its media are sent too, so that it may refer to them.
    """
    observation = type_of(attributes)
    told = fields(span)
    if isinstance(attributes.get(names.STAGE), str):
        told = {"stage": attributes[names.STAGE], **told}
    out: dict[str, Any] = {"langfuse.observation.type": observation}
    if attributes.get(names.KIND) == "run" and span.parent_span_id:
        # Its parent is in a trace of somebody else, which this server may never see: nothing would be the root.
        out["langfuse.internal.as_root"] = True
    if attributes.get(names.CONTENT) != "local":
        given, returned = _content(span, observation)
        if given is not None:
            out["langfuse.observation.input"] = _text(given)
        if returned is not None:
            out["langfuse.observation.output"] = _text(returned)
    if observation in ("generation", "embedding"):
        out.update(_of_model(span, attributes, told))
    if span.status_code == 2:
        out["langfuse.observation.level"] = "ERROR"
        out["langfuse.observation.status_message"] = span.status_message
    elif attributes.get(names.OUTCOME):
        out["langfuse.observation.level"] = "WARNING"
        out["langfuse.observation.status_message"] = str(attributes[names.OUTCOME])
    for field, value in told.items():
        if field != "artifacts" and value is not None:
            # Only keys of the top level can be filtered by, so each field is one; what is no scalar is JSON text.
            out[f"langfuse.observation.metadata.{field}"] = (
                value if isinstance(value, (str, bool, int, float)) else _text(value)
            )
    if with_media:
        out.update(_media(span, told))
    return out


def type_of(attributes: Mapping[str, Any]) -> str:
    """Return the observation type of a span."""
    operation = str(_get(attributes, names.GENAI_OPERATION))
    if operation in OPERATION_TYPES:
        return OPERATION_TYPES[operation]
    kind = str(attributes.get(names.KIND) or "")
    if not kind and operation in names.INFERENCE_OPERATIONS:
        return "generation"
    return TYPES.get(kind, "span")


def _of_model(span: Span, attributes: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    model = _get(attributes, names.GENAI_SERVED_MODEL) or _get(attributes, names.GENAI_MODEL)
    if isinstance(model, str):
        out["langfuse.observation.model.name"] = model
    usage = usage_details(attributes)
    if usage:
        out["langfuse.observation.usage_details"] = json.dumps(usage)
    cost = next((c for c in (told.get("cost_usd"), *map(attributes.get, _COSTS)) if type(c) in (int, float)), None)
    if cost is not None:
        out["langfuse.observation.cost_details"] = json.dumps({"total": cost})
    parameters = {
        name: found
        for name in PARAMETERS
        if (found := told.get(name, attributes.get(f"gen_ai.request.{name}"))) is not None
    }
    if parameters:
        out["langfuse.observation.model.parameters"] = json.dumps(parameters, ensure_ascii=False)
    prompt, version = attributes.get("gen_ai.prompt.name"), attributes.get("gen_ai.prompt.version")
    prompt, version = told.get("prompt_name", prompt), told.get("prompt_version", version)
    if isinstance(prompt, str):
        out["langfuse.observation.prompt.name"] = prompt
        if str(version).isdecimal():
            out["langfuse.observation.prompt.version"] = int(str(version))
    first_s = attributes.get("gen_ai.response.time_to_first_chunk")
    if type(first_s) in (int, float) and 0 <= cast("float", first_s) < 1e6:
        begun = datetime.fromtimestamp(span.start_ns / 1e9 + cast("float", first_s), UTC)
        out["langfuse.observation.completion_start_time"] = begun.isoformat(timespec="milliseconds")
    return out


_COSTS: Final = ("gen_ai.usage.cost", "llm.cost.total")


def _media(span: Span, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reference for each file of the span that Langfuse is sent; it shows the file in its place."""
    artifacts: Any = told.get("artifacts")
    if not isinstance(artifacts, list) or span.attributes.get(names.CONTENT) == "local":
        return {}
    found = (media_of(cast("dict[str, Any]", one)) for one in cast("list[Any]", artifacts) if isinstance(one, dict))
    return {f"langfuse.observation.metadata.{media['name']}": media_reference(media) for media in found if media}


def _get(attributes: Mapping[str, Any], key: str) -> Any:
    if key in attributes:
        return attributes[key]
    return next((attributes[old] for old in _OLDER.get(key, ()) if old in attributes), None)


def _content(span: Span, observation: str) -> tuple[Any, Any]:
    if observation == "tool":
        return value_of(span, names.GENAI_TOOL_ARGUMENTS), value_of(span, names.GENAI_TOOL_RESULT)
    return content(span, output=False), content(span, output=True)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def usage_details(attributes: Mapping[str, Any]) -> dict[str, int]:
    """Return token counts in buckets that do not overlap: the server adds them up.

    The conventions' totals include cached and reasoning tokens (facts 1.6).
    """

    def count(key: str) -> int:
        value = _get(attributes, key)
        return value if type(value) is int and value >= 0 else 0

    cached, written, reasoning = (
        count(names.GENAI_CACHE_READ),
        count(names.GENAI_CACHE_WRITE),
        count(names.GENAI_REASONING),
    )
    buckets = {
        "input": max(0, count(names.GENAI_INPUT_TOKENS) - cached - written),
        "output": max(0, count(names.GENAI_OUTPUT_TOKENS) - reasoning),
        "input_cached_tokens": cached,
        "input_cache_creation": written,
        "output_reasoning_tokens": reasoning,
    }
    return (
        {name: number for name, number in buckets.items() if number or name in ("input", "output")}
        if any(buckets.values())
        else {}
    )
