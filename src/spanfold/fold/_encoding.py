"""Encode the pieces of a document so that they can be joined as bytes.

A document is written with an indent of 2 (DL section 6), but never encoded as
a whole: a record is encoded once, moved right to the depth where it stands,
and copied from then on. A newline inside a JSON string is escaped, so every
newline of the text is one of the layout.
"""

import json
from typing import Any, Final

import orjson

from spanfold.journal import to_tree

# Options are given by position: in a second interpreter of the process orjson does not know its own keywords.
_INDENT: Final = orjson.OPT_INDENT_2
_ITEM_BREAK: Final = b"\n    "
_NO_LIMIT: Final = 1 << 62


def encode(value: Any, depth: int = 0) -> bytes:
    """Return JSON text with an indent of 2, all lines but the first moved right by `depth` levels."""
    try:
        text = orjson.dumps(value, None, _INDENT)
    except TypeError:
        text = _encode_odd(value)
    return text.replace(b"\n", b"\n" + b"  " * depth) if depth else text


def item(record: dict[str, Any]) -> bytes:
    """Return a record as the next item of a list that is a value of the document: with the comma before it."""
    try:
        text = orjson.dumps(record, None, _INDENT)
    except TypeError:
        text = _encode_odd(record)
    return b",\n    " + text.replace(b"\n", _ITEM_BREAK)


def line(record: dict[str, Any]) -> bytes:
    """Return a record as one line of JSON."""
    try:
        return orjson.dumps(record, None, orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        return (
            json.dumps(_odd_tree(record), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        )


def _encode_odd(value: Any) -> bytes:
    return json.dumps(_odd_tree(value), ensure_ascii=False, indent=2, allow_nan=False).encode()


def _odd_tree(value: Any) -> Any:
    """Return a tree for what the fast encoder refuses: integers over 64 bits, bytes, deep nesting."""
    return to_tree(value, max_nodes=_NO_LIMIT)[0]
