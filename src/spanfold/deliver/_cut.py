"""Make a span fit into a request: the largest values are cut inside their structure.

A list of messages stays a list of messages, JSON stays JSON: long texts in it
keep their head, long lists and objects their first entries, and each place that
was cut says how large it was and, for texts, the SHA-256 of the whole. Beside
it `spanfold.cut.<attribute>` tells the same of the whole attribute. The
journal keeps everything.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from spanfold import names
from spanfold.deliver._encode import Shown, ShownEvent

CUT: Final = "$cut"
"""Key of the object, or of the entry, that stands for what was left out of a list or an object."""
CUT_PREFIX: Final = "spanfold.cut."
"""Prefix of the attributes that say what was cut."""
_LEAST: Final = 192
"""Bytes a value is never cut below: a mark takes as many."""
_EVENT_BYTES: Final = 64
"""Bytes an event takes beside its values."""


def cut(shown: Shown, room: int) -> Shown:
    """Return what is shown of a span, in about `room` bytes."""
    events = _first(shown.events, room // 3)
    links = shown.links[: max(1, room // 1024)]
    values = [*shown.attributes.values(), *(v for event in events for v in event.attributes.values())]
    cap = _cap([*map(size_of, values), len(shown.status_message)], room - _overhead(shown, events))
    json_keys: frozenset[str] = frozenset(shown.attributes.get(names.JSON_FIELDS) or ())
    return replace(
        shown,
        attributes=_cut_all(shown.attributes, cap, json_keys),
        events=[event._replace(attributes=_cut_all(event.attributes, cap, frozenset())) for event in events],
        links=links,
        dropped_events=shown.dropped_events + len(shown.events) - len(events),
        dropped_links=len(shown.links) - len(links),
        status_message=cut_text(shown.status_message, max(cap, _LEAST)),
    )


def _first(events: Sequence[ShownEvent], room: int) -> list[ShownEvent]:
    """Return the first events whose frames alone fit."""
    return list(events[: max(1, room // (_EVENT_BYTES + _LEAST))])


def _overhead(shown: Shown, events: Sequence[ShownEvent]) -> int:
    """Return the bytes of what is not cut: keys, and what stands around a value."""
    keys = [*shown.attributes, *(key for event in events for key in event.attributes)]
    return sum(len(key) + 16 for key in keys) + len(events) * _EVENT_BYTES


def _cut_all(attributes: Mapping[str, Any], cap: int, json_keys: frozenset[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    marks: dict[str, str] = {}
    for key, value in attributes.items():
        if size_of(value) <= cap:
            out[key] = value
            continue
        out[key] = cut_value(value, max(cap, _LEAST), is_json=key in json_keys or None)
        raw = _bytes_of(value)
        marks[CUT_PREFIX + key] = f"{len(raw)} bytes, sha256 {hashlib.sha256(raw).hexdigest()}"
    return out | marks


def cut_value(value: Any, room: int, *, is_json: bool | None = None) -> Any:
    """Return a value in about `room` bytes, of the same type.

    Args:
        value: An attribute value.
        room: Bytes, at least 192.
        is_json: Whether a text is JSON; None to look.
    """
    if isinstance(value, bytes):
        return value[:room]
    if not isinstance(value, str):
        return cut_tree(value, room)
    if is_json or (is_json is None and value.lstrip()[:1] in ("[", "{")):
        try:
            tree = json.loads(value)
        except (ValueError, RecursionError):
            return cut_text(value, room)
        return _dump(cut_tree(tree, room))
    return cut_text(value, room)


def cut_text(text: str, room: int) -> str:
    """Return the head of a text in about `room` bytes of JSON, with the size and hash of the whole."""
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= room and _json_size(text) <= room + 2:
        return text
    mark = f"...[cut: {len(raw)} bytes, sha256 {hashlib.sha256(raw).hexdigest()}]"
    head = raw[: max(0, room - len(mark) - 2)].decode("utf-8", "ignore")
    while head and _json_size(head) > room - len(mark):
        # Quotes, backslashes and control characters take up to six times as much in JSON.
        head = head[: len(head) * (room - len(mark)) // _json_size(head)] if room > len(mark) else ""
    return head + mark


def cut_tree(tree: Any, room: int) -> Any:
    """Return a JSON value that is about `room` bytes as text."""
    sizes: dict[int, int] = {}
    try:
        _measure(tree, sizes)
        return _fit(tree, room, sizes)
    except RecursionError:
        return {CUT: {"size_bytes": len(_bytes_of(tree))}}


def _fit(tree: Any, room: int, sizes: Mapping[int, int]) -> Any:
    size = _size(tree, sizes)
    if size <= room:
        return tree
    if isinstance(tree, str):
        return cut_text(tree, max(room, _LEAST) - 2)
    if isinstance(tree, (list, tuple)):
        items = cast("Sequence[Any]", tree)
        n, cap = _share([_size(item, sizes) + 1 for item in items], room - 2)
        out: list[Any] = [_fit(item, cap, sizes) for item in items[:n]]
        return [*out, {CUT: {"items": len(items) - n, "size_bytes": size}}] if n < len(items) else out
    if isinstance(tree, dict):
        entries = list(cast("dict[str, Any]", tree).items())
        frames = [_json_size(key) + 2 for key, _ in entries]
        n, cap = _share([frame + _size(v, sizes) for frame, (_, v) in zip(frames, entries, strict=True)], room - 2)
        fitted = {
            key: _fit(v, max(_LEAST, cap - frame), sizes)
            for frame, (key, v) in zip(frames[:n], entries[:n], strict=True)
        }
        return fitted | {CUT: {"keys": len(entries) - n, "size_bytes": size}} if n < len(entries) else fitted
    return tree


def _share(sizes: Sequence[int], room: int) -> tuple[int, int]:
    """Return how many entries are kept, and to how many bytes each of them is cut at most."""
    if _cap(sizes, room) >= _LEAST:
        return len(sizes), _cap(sizes, room)
    used, kept = 128, 0  # room for the entry that says what is missing
    for size in sizes:
        used += min(size, _LEAST)
        if used > room:
            break
        kept += 1
    return kept, _LEAST


def _cap(sizes: Iterable[int], room: int) -> int:
    """Return the largest `c` with which sum(min(size, c)) <= room."""
    left = room
    ordered = sorted(sizes)
    for place, size in enumerate(ordered):
        share = left // (len(ordered) - place)
        if size > share:
            return max(0, share)
        left -= size
    return room


def _measure(tree: Any, sizes: dict[int, int]) -> int:
    """Note the bytes of JSON of every container and long text of a tree."""
    if isinstance(tree, dict):
        found = 2 + sum(
            _json_size(key) + 2 + _measure(value, sizes) for key, value in cast("dict[str, Any]", tree).items()
        )
    elif isinstance(tree, (list, tuple)):
        found = 2 + sum(1 + _measure(item, sizes) for item in cast("Sequence[Any]", tree))
    elif isinstance(tree, str):
        found = _json_size(tree)
    else:
        return _size(tree, sizes)
    sizes[id(cast("object", tree))] = found
    return found


def _size(tree: Any, sizes: Mapping[int, int]) -> int:
    found = sizes.get(id(cast("object", tree))) if isinstance(tree, (str, dict, list, tuple)) else None
    return len(_dump(tree)) if found is None else found


def _json_size(text: str) -> int:
    return len(_dump(text).encode("utf-8", "surrogatepass"))


def _dump(tree: Any) -> str:
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":"), default=repr)


def size_of(value: Any) -> int:
    """Return about how many bytes an attribute value takes in a request."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, (list, tuple)):
        return sum(size_of(item) + 4 for item in cast("Sequence[Any]", value))
    if isinstance(value, dict):
        return sum(len(key) + 8 + size_of(item) for key, item in cast("dict[str, Any]", value).items())
    return 9


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else _dump(value)).encode("utf-8", "surrogatepass")
