"""What is too large is cut inside its structure: still of its type, still JSON, and with the size and hash of the whole."""

import hashlib
import json

from hypothesis import given
from hypothesis import strategies as st

from spanfold.deliver._cut import CUT, cut, cut_text, cut_value, size_of
from spanfold.deliver._encode import Shown, ShownEvent

TEXTS = st.text(max_size=30) | st.builds(lambda text, n: text * n, st.text(min_size=1, max_size=8), st.integers(1, 600))
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=12), inner, max_size=12),
    max_leaves=60,
)


@given(tree=TREES.filter(lambda tree: isinstance(tree, (list, dict))), room=st.integers(400, 4000))
def test_json_stays_json_in_about_the_room_there_is(tree, room):
    text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
    found = cut_value(text, room)
    if len(text.encode()) <= room:
        assert json.loads(found) == tree
    else:
        assert type(json.loads(found)) is type(tree)
        # Room is shared out from above: what a level leaves over is not handed down again, and marks take theirs.
        assert len(found.encode()) <= room + 256
        assert is_part(json.loads(found), tree)


def is_part(found, whole) -> bool:
    """Whether everything in a tree stands in the other one at the same place, whole or cut."""
    if isinstance(whole, dict) and isinstance(found, dict):
        return all(key == CUT or (key in whole and is_part(value, whole[key])) for key, value in found.items())
    if isinstance(whole, list) and isinstance(found, list):
        kept = found[:-1] if found and isinstance(found[-1], dict) and CUT in found[-1] else found
        return all(is_part(one, other) for one, other in zip(kept, whole, strict=False))
    if isinstance(whole, str) and found != whole:
        raw = whole.encode()
        head, mark, rest = found.rpartition("...[cut: ")
        told = f"{len(raw)} bytes, sha256 {hashlib.sha256(raw).hexdigest()}]"
        return whole.startswith(head) and bool(mark) and rest == told
    return found == whole


@given(text=st.text(min_size=1, max_size=2000), times=st.integers(1, 20), room=st.integers(192, 3000))
def test_a_text_keeps_its_head_and_tells_its_size_and_hash(text, times, room):
    whole = text * times
    found = cut_text(whole, room)
    assert found == whole or is_part(found, whole)
    assert found == whole or len(found.encode()) <= room + 8


def test_a_conversation_keeps_its_messages_and_loses_only_the_long_text():
    messages = [
        {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
        {"role": "user", "parts": [{"type": "text", "content": "x" * 100_000}]},
        {"role": "assistant", "parts": [{"type": "text", "content": "yes"}], "finish_reason": "stop"},
    ]
    found = json.loads(cut_value(json.dumps(messages), 5000))
    assert [found[0], found[2]] == [messages[0], messages[2]]
    assert (found[1]["role"], found[1]["parts"][0]["type"]) == ("user", "text")
    content = found[1]["parts"][0]["content"]
    assert content.startswith("x" * 3000) and "[cut: 100000 bytes, sha256 " in content


def test_small_values_stay_whole_beside_a_large_one_and_the_mark_tells_what_was_cut():
    large = json.dumps({"rows": list(range(100_000))})
    shown = Shown(
        attributes={"small": "kept", "n": 7, "large": large, "data": b"\0" * 50_000, "list": ["y" * 9000] * 9},
        events=[ShownEvent(1, "exception", {"exception.stacktrace": "z" * 90_000, "exception.type": "E"})] * 3,
        links=[],
        status_message="m" * 40_000,
    )
    found = cut(shown, 16_000)
    assert (found.attributes["small"], found.attributes["n"]) == ("kept", 7)
    assert found.attributes["spanfold.cut.large"] == (
        f"{len(large)} bytes, sha256 {hashlib.sha256(large.encode()).hexdigest()}"
    )
    assert isinstance(found.attributes["data"], bytes) and isinstance(found.attributes["list"], list)
    assert len(found.events) == 3 and found.events[0].attributes["exception.type"] == "E"
    total = sum(map(size_of, found.attributes.values())) + sum(
        size_of(value) for event in found.events for value in event.attributes.values()
    )
    assert total + len(found.status_message) < 18_000


def test_events_beyond_the_room_are_counted_and_the_first_are_kept():
    shown = Shown({}, [ShownEvent(i, f"e{i}", {"i": i}) for i in range(50_000)], [], "")
    found = cut(shown, 100_000)
    assert len(found.events) + found.dropped_events == 50_000
    assert [event.name for event in found.events[:3]] == ["e0", "e1", "e2"]


def test_a_tree_deeper_than_the_stack_is_cut_too():
    deep = "[" * 100_000 + "]" * 100_000
    assert len(cut_value(deep, 500)) < 1000
