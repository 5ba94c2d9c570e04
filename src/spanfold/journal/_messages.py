"""Carry a model's input and output in the conventions' message form, and get the caller's own form back.

`gen_ai.input.messages` wants a list of messages with parts (GenAI conventions,
section "messages"). Callers pass a text, or a list of `{"role", "content"}`.
Both fit that form exactly and are rebuilt exactly; `form` says which it was.
Anything else is kept in the caller's form under `spanfold.input` instead of
being bent into a form it does not have.
"""

from typing import Any, Literal, cast

import orjson

from spanfold.journal._values import JsonText

Form = Literal["text", "messages"]


def encode_messages(value: Any, role: str) -> tuple[JsonText, Form] | None:
    """Return `value` as convention messages and its form, or None when it has neither form exactly.

    Args:
        value: What the caller passed.
        role: Role of a plain text: `user` for an input, `assistant` for an output.
    """
    try:
        if type(value) is str:
            text = orjson.dumps(value).decode()
            return JsonText(f'[{{"role":"{role}","parts":[{{"type":"text","content":{text}}}]}}]'), "text"
        if type(value) is list and value and all(_is_simple(m) for m in cast("list[Any]", value)):
            return JsonText(orjson.dumps([_parts(m) for m in cast("list[dict[str, str]]", value)]).decode()), "messages"
    except TypeError:  # a lone surrogate: the general path repairs and notes it
        pass
    return None


def decode_messages(tree: Any, form: str) -> Any:
    """Return what the caller passed, from the convention form `encode_messages` made."""
    if form == "text":
        return tree[0]["parts"][0]["content"]
    return [{"role": m["role"], "content": m["parts"][0]["content"]} for m in tree]


def _is_simple(message: Any) -> bool:
    if type(message) is not dict:
        return False
    pairs = cast("dict[Any, Any]", message)
    return list(pairs) == ["role", "content"] and type(pairs["role"]) is str and type(pairs["content"]) is str


def _parts(message: dict[str, str]) -> dict[str, Any]:
    return {"role": message["role"], "parts": [{"type": "text", "content": message["content"]}]}
