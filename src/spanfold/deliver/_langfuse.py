"""What Langfuse's server reads from a span, said explicitly (facts, section 2).

Types, input and output, token usage in disjoint buckets, and the trace-level
attributes on every span: its filters work on observations and do not look at
the root.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from spanfold import names
from spanfold.journal import content, fields, value_of
from spanfold.model import Span

TYPES: Final = {"model_call": "generation", "agent": "agent", "tool": "tool", "run": "chain", "stage": "chain"}
"""Kind of span -> observation type; others are a plain `span`."""
TRACE_FIELDS: Final = {
    "session_id": "session.id",
    "user_id": "user.id",
    "release": "langfuse.release",
    "environment": "langfuse.environment",
    "version": "langfuse.version",
}
"""Fields of `spanfold.run(...)` -> the trace-level attribute they become."""


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
    return out


def observation_attributes(span: Span, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that describe one observation.

    Args:
        span: The record.
        attributes: What any destination is shown of it; content that stays here is not among them.
    """
    kind = str(attributes.get(names.KIND) or _foreign_kind(attributes))
    out: dict[str, Any] = {"langfuse.observation.type": TYPES.get(kind, "span")}
    is_shown = attributes.get(names.CONTENT) != "local"
    if is_shown:
        given, returned = _content(span, kind)
        if given is not None:
            out["langfuse.observation.input"] = _text(given)
        if returned is not None:
            out["langfuse.observation.output"] = _text(returned)
    model = attributes.get(names.GENAI_SERVED_MODEL) or attributes.get(names.GENAI_MODEL)
    if kind == "model_call":
        if isinstance(model, str):
            out["langfuse.observation.model.name"] = model
        usage = usage_details(attributes)
        if usage:
            out["langfuse.observation.usage_details"] = json.dumps(usage)
    if span.status_code == 2:
        out["langfuse.observation.level"] = "ERROR"
        out["langfuse.observation.status_message"] = span.status_message
    elif attributes.get(names.OUTCOME):
        out["langfuse.observation.level"] = "WARNING"
        out["langfuse.observation.status_message"] = str(attributes[names.OUTCOME])
    for field, value in fields(span).items():
        if isinstance(value, (str, bool, int, float)):
            out[f"langfuse.observation.metadata.{field}"] = value
    return out


def _foreign_kind(attributes: Mapping[str, Any]) -> str:
    operation = attributes.get(names.GENAI_OPERATION)
    if operation in names.INFERENCE_OPERATIONS:
        return "model_call"
    return {"invoke_agent": "agent", "execute_tool": "tool"}.get(str(operation), "span")


def _content(span: Span, kind: str) -> tuple[Any, Any]:
    if kind == "tool":
        return value_of(span, names.GENAI_TOOL_ARGUMENTS), value_of(span, names.GENAI_TOOL_RESULT)
    return content(span, output=False), content(span, output=True)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def usage_details(attributes: Mapping[str, Any]) -> dict[str, int]:
    """Return token counts in buckets that do not overlap: the server adds them up.

    The conventions' totals include cached and reasoning tokens (facts 1.6).
    """

    def count(key: str) -> int:
        value = attributes.get(key)
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
