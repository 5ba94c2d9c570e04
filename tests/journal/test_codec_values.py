"""Any Python value has a form: in bounded time, as strict JSON, and without running the host's code.

The forms are those of docs/formats/values.md; what had to be changed is noted.
"""

import abc
import asyncio
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import http.client
import io
import json
import logging
import math
import pathlib
import queue
import socket
import sys
import threading
import time
import types
import typing
import uuid
import zoneinfo
from collections.abc import Iterator
from typing import Any

import attrs
import numpy
import pandas
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.journal._values import (
    MAX_DEPTH,
    MAX_INT_BITS,
    MAX_NODES,
    MAX_PLAIN_CONTAINERS,
    MAX_PLAIN_VALUES,
    JsonText,
    load,
    store,
    to_json,
    to_tree,
)
from spanfold.journal._walk import SMALL_ARRAY
from tests.journal.steps import steps

A_WHILE_S = 5.0
"""Bound for what must not take quadratic time or forever; ordinary runs take a hundredth of it."""


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    start = time.perf_counter()
    yield
    assert time.perf_counter() - start < A_WHILE_S * 4


def form(value: Any) -> Any:
    """Return the stored form of a value as a JSON tree, parsed strictly."""
    stored, _ = store(value)
    assert type(stored) in (str, bool, int, float, JsonText)
    if type(stored) is not JsonText:
        return stored

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    text = str(stored)
    text.encode()
    tree = json.loads(text, parse_constant=refuse)
    assert repr(load(text)) == repr(tree)
    return tree


def note(value: Any) -> str | None:
    return store(value)[1]


# -- numbers, text, bytes


@pytest.mark.case("C-024")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_json_does_not_have_becomes_null_and_is_noted(value: float) -> None:
    for holder, expected in (
        (value, None),
        ([value], [None]),
        ({"a": {"b": (1, value)}}, {"a": {"b": [1, None]}}),
        (numpy.float64(value), None),
        (numpy.array([1.0, value]), [1.0, None]),
        ({value: 1}, {"null": 1}),
        (complex(value, 1), {"$complex": [None, 1.0]}),
    ):
        assert form(holder) == expected
        assert "nonfinite" in (note(holder) or "")


@given(st.integers())
def test_an_integer_of_any_size_is_kept(value: int) -> None:
    assert form(value) == form([value])[0] == value


def test_an_integer_no_json_parser_would_read_is_kept_in_hexadecimal() -> None:
    longest = (1 << MAX_INT_BITS) - 1
    assert form(longest) == form({"n": longest})["n"] == longest
    for huge in (longest + 1, -(10**100_000)):
        assert int(form(huge)["$int"], 16) == int(form([huge])[0]["$int"], 16) == huge


def test_integers_are_kept_when_the_host_lowered_the_digits_python_converts() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        for value in ((1 << MAX_INT_BITS) - 1, 1 << 64, 10**5000):
            assert form([value]) == [form(value)]
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.case("C-025")
def test_lone_surrogates_are_replaced_and_noted_wherever_they_stand() -> None:
    bad = "a\udcff"
    for value, expected in (
        ([bad], ["a\ufffd"]),
        ({bad: bad}, {"a\ufffd": "a\ufffd"}),
        ((bad, [bad]), ["a\ufffd", ["a\ufffd"]]),
    ):
        assert form(value) == expected
        assert note(value) == "surrogates"
    assert form(pathlib.Path("\udcff")) == "\ufffd"


@pytest.mark.case("C-026")
def test_bytes_are_base64_with_a_mark_of_their_type() -> None:
    for value in (b"\0\xff", bytearray(b"\0\xff"), memoryview(b"\0\xff"), memoryview(b"\0.\xff.")[::2]):
        assert form(value) == {"$bytes": "AP8="}
    assert form({"k": b""}) == {"k": {"$bytes": ""}}


@pytest.mark.case("C-026")
@given(st.lists(st.sampled_from(["\0", "\n", "\r\n", "\u2028", "\x1b[31m", "\x85", '"', "\\", "x"])).map("".join))
def test_control_characters_stay_inside_their_text(text: str) -> None:
    stored, _ = to_json([text])

    assert "\n" not in stored
    assert "\r" not in stored
    assert json.loads(stored) == [text]


# -- containers


@pytest.mark.case("C-022")
def test_containers_inside_themselves_end_in_a_mark() -> None:
    own_dict: dict[str, Any] = {"x": 1}
    own_dict["me"] = own_dict
    own_list: list[Any] = [1]
    own_list.append(own_list)
    pair = Pair()
    pair.other = Pair(pair)
    model = Model(name="m")
    model.other = model
    for value, expected in (
        (own_dict, {"x": 1, "me": "<cycle>"}),
        (own_list, [1, "<cycle>"]),
        ((own_list,), [[1, "<cycle>"]]),
        (pair, {"other": {"other": "<cycle>"}}),
        (model, {"name": "m", "other": "<cycle>", "key": "**********"}),
    ):
        assert form(value) == expected
        assert "cycle" in (note(value) or "")


@pytest.mark.case("C-022")
def test_a_child_that_is_shared_is_shown_wherever_it_stands() -> None:
    child = {"deep": [1, 2]}

    assert form([child, child, {"again": child}]) == [child, child, {"again": child}]
    assert note([child, child]) is None


@pytest.mark.case("C-022")
@pytest.mark.parametrize(
    "make", [lambda inner: [inner], lambda inner: {"k": inner}, lambda inner: (inner, 1), lambda inner: Pair(inner)]
)
def test_nesting_of_100_000_is_cut_at_the_stated_depth(make: Any) -> None:
    value: Any = "end"
    for _ in range(100_000):
        value = make(value)

    tree = form(value)

    depth = 0
    while not isinstance(tree, str):
        tree = tree[0] if isinstance(tree, list) else next(iter(tree.values()))
        depth += 1
    assert depth == MAX_DEPTH + 1
    assert "nested deeper" in tree
    assert note(value) == "cut"


@pytest.mark.slow
@pytest.mark.case("C-022")
def test_a_dictionary_of_a_million_keys_is_kept_whole() -> None:
    value = {str(n): n for n in range(1_000_000)}

    start = time.perf_counter()
    stored, told = store(value)

    assert time.perf_counter() - start < A_WHILE_S
    assert told is None
    assert load(str(stored)) == value


@pytest.mark.case("C-022")
def test_a_wide_value_of_unusual_types_is_cut_at_the_stated_number_of_values() -> None:
    tree = form({n: n for n in range(1_000_000)})

    assert MAX_NODES // 3 <= len(tree) <= MAX_NODES
    assert tree["<more>"] == 1_000_000 - (len(tree) - 1)


@pytest.mark.slow
@pytest.mark.case("C-022")
def test_children_shared_so_often_that_the_tree_would_fill_the_memory_are_cut() -> None:
    doubled: Any = "x"
    for _ in range(80):
        doubled = [doubled, doubled]
    wide = [list(range(100_000))] * 100_000

    for value in (doubled, wide, {"a": wide}):
        start = time.perf_counter()
        stored, told = store(value)
        assert time.perf_counter() - start < A_WHILE_S
        assert told == "cut"
        assert len(stored) < 50_000_000  # type: ignore[arg-type]  # JsonText


@pytest.mark.case("C-029")
def test_keys_that_are_no_text_are_written_as_text_and_none_is_overwritten() -> None:
    class Color(enum.Enum):
        RED = "red"

    value = {
        1: "a",
        "1": "b",
        None: "c",
        "null": "d",
        (1, 2): "e",
        Color.RED: "f",
        "": "g",
        1.5: "i",
        b"k": "j",
    }

    tree = form(value)

    assert list(tree.values()) == list(value.values())
    assert (tree["1"], tree["1#2"]) == ("a", "b")
    assert list(tree) == ["1", "1#2", "null", "null#2", "[1,2]", "red", "", "1.5", '{"$bytes":"aw=="}']
    assert note(value) == "keys"


def test_a_fraction_too_long_to_be_written_is_named_and_the_rest_is_kept() -> None:
    value = {"ratio": fractions.Fraction(1 << 20_000, 3), "kept": fractions.Fraction(1, 3)}

    assert form(value) == {"ratio": "<fractions.Fraction>", "kept": "1/3"}
    assert note(value) == "opaque"


@pytest.mark.case("C-029")
def test_keys_that_all_become_the_same_text_take_steps_in_proportion_to_their_number() -> None:
    def keyed(n: int) -> dict[object, int]:
        return {object(): number for number in range(n)}

    assert list(form(keyed(3))) == ["<object>", "<object>#2", "<object>#3"]
    assert steps(lambda: form(keyed(400))) < 2.5 * steps(lambda: form(keyed(200)))


@pytest.mark.case("C-029")
def test_a_long_key_is_kept() -> None:
    assert form({"k" * 10_000: 1}) == {"k" * 10_000: 1}


def test_sets_have_one_order_whatever_python_gave_them() -> None:
    assert form({3, 1, 2}) == form(frozenset([2, 3, 1])) == [1, 2, 3]
    assert form({"b", "a", 1, None, (2,)}) == form({(2,), None, 1, "a", "b"})


def test_a_value_that_changes_later_does_not_change_what_was_stored() -> None:
    value = {"list": [1]}
    stored, _ = store(value)
    value["list"].append(2)

    assert load(str(stored)) == {"list": [1]}


# -- known types


class Level(enum.IntEnum):
    HIGH = 3


class Named(typing.NamedTuple):
    x: int
    y: str = "d"


class Derived(collections.namedtuple("Derived", "a b")):
    pass


class Typed(typing.TypedDict):
    x: int


@dataclasses.dataclass(slots=True)
class Slotted:
    a: int
    b: Any = None


@dataclasses.dataclass
class Pair:
    other: Any = None


class Model(pydantic.BaseModel):
    name: str
    other: Any = None
    key: pydantic.SecretStr = pydantic.SecretStr("hidden")


@attrs.define
class Defined:
    x: int
    y: str = "z"


UTC = datetime.UTC
FORMS: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    ("text", "text"),
    (1.5, 1.5),
    ((1, (2, 3)), [1, [2, 3]]),
    (Level.HIGH, 3),
    (Named(1), {"x": 1, "y": "d"}),
    (Derived(1, 2), {"a": 1, "b": 2}),
    (Typed(x=1), {"x": 1}),
    (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    (collections.Counter("aab"), {"a": 2, "b": 1}),
    (Slotted(1, [2]), {"a": 1, "b": [2]}),
    (Pair(Pair(1)), {"other": {"other": 1}}),
    (Model(name="n"), {"name": "n", "other": None, "key": "**********"}),
    (Defined(1), {"x": 1, "y": "z"}),
    (decimal.Decimal("1.10"), "1.10"),
    (fractions.Fraction(1, 3), "1/3"),
    (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    (pathlib.Path("/a/b"), "/a/b"),
    (pathlib.PurePosixPath("c"), "c"),
    (datetime.date(2026, 3, 1), "2026-03-01"),
    (datetime.time(12, 30), "12:30:00"),
    (datetime.datetime(2026, 3, 1, 12, 30, 0, 5), "2026-03-01T12:30:00.000005"),  # noqa: DTZ001 - naive on purpose
    (datetime.datetime(2026, 3, 1, tzinfo=UTC), "2026-03-01T00:00:00+00:00"),
    (datetime.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo("America/St_Johns")), "2026-07-01T00:00:00-02:30"),
    (datetime.timedelta(seconds=90, microseconds=5), 90.000005),
    (pandas.Timestamp("2026-03-01T12:00:00Z"), "2026-03-01T12:00:00+00:00"),
    (complex(1, -2), {"$complex": [1.0, -2.0]}),
    (numpy.int64(5), 5),
    (numpy.float32(0.5), 0.5),
    (numpy.bool_(True), True),
    (numpy.str_("s"), "s"),
    (numpy.array(3), 3),
    (numpy.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
    (numpy.array([True, False]), [True, False]),
    (numpy.zeros((1000, 3)), {"$array": {"shape": [1000, 3], "dtype": "<f8"}}),
    (numpy.array([object()], dtype=object), {"$array": {"shape": [1], "dtype": "|O"}}),
    (
        pandas.DataFrame({"a": [1, 2]}),
        {"$array": {"type": f"{pandas.DataFrame.__module__}.DataFrame", "shape": [2, 1], "dtype": ""}},
    ),
    (ValueError("secret"), "<ValueError>"),
    (int, "<type int>"),
    (json.dumps, "<function dumps>"),
    (len, "<builtin_function_or_method len>"),
    (json, "<module json>"),
]


@pytest.mark.case("C-028")
@pytest.mark.parametrize(
    ("value", "expected"), FORMS, ids=[f"{n}-{type(v).__name__}" for n, (v, _) in enumerate(FORMS)]
)
def test_a_known_type_has_its_documented_form(value: Any, expected: Any) -> None:
    assert repr(form(value)) == repr(expected)
    assert repr(form({"in": [value]})) == repr({"in": [expected]})


def test_the_type_of_a_frame_is_named() -> None:
    assert form(pandas.Series([1.0, 2.0]))["$array"]["shape"] == [2]
    assert form(pandas.Series([1.0, 2.0]))["$array"]["dtype"] == "float64"


@pytest.mark.case("C-028")
def test_an_array_of_ten_million_elements_is_summed_up() -> None:
    start = time.perf_counter()

    assert form(numpy.zeros(10_000_000, dtype="<f4")) == {"$array": {"shape": [10_000_000], "dtype": "<f4"}}
    assert time.perf_counter() - start < 1.0


def test_a_time_zone_that_only_the_host_can_compute_is_left_out_and_noted() -> None:
    asked: list[str] = []

    class Zone(datetime.tzinfo):
        def utcoffset(self, dt: Any) -> datetime.timedelta:
            asked.append("utcoffset")
            raise RuntimeError

    class Stamp(datetime.datetime):
        def __new__(cls, *args: Any, **more: Any) -> "Stamp":
            asked.append("new")
            return super().__new__(cls, *args, **more)

        def isoformat(self, *args: Any, **more: Any) -> str:
            asked.append("isoformat")
            return ""

    stamp = Stamp(2026, 3, 1, 12, tzinfo=Zone())
    asked.clear()

    assert form(stamp) == "2026-03-01T12:00:00"
    assert note(stamp) == "zone"
    assert form(datetime.time(1, 2, tzinfo=Zone())) == "01:02:00"
    assert asked == []


# -- the host's code


@pytest.mark.case("C-023")
def test_live_objects_are_named_and_left_as_they_are() -> None:
    steps: list[int] = []

    def generator() -> Iterator[int]:
        steps.append(1)
        yield 1

    running, lock, waiting, loop = generator(), threading.Lock(), queue.Queue[int](), asyncio.new_event_loop()
    waiting.put(7)
    left, right = socket.socketpair()
    connection = http.client.HTTPConnection("localhost")
    text = io.StringIO("abc")
    try:
        for value in (
            running,
            lock,
            waiting,
            loop,
            left,
            connection,
            text,
            logging.getLogger("x"),
            map(str, [1]),
            iter([1]),
        ):
            shown = form({"in": value})["in"]
            assert shown.startswith("<")
            assert shown.endswith(">")
            assert " at 0x" not in shown
            assert note(value) == "opaque"
        assert steps == []
        assert lock.acquire(blocking=False)
        assert waiting.get_nowait() == 7
        assert text.read() == "abc"
    finally:
        loop.close()
        left.close()
        right.close()


called: list[str] = []


def trap(name: str) -> Any:
    def method(self: Any, *args: Any, **more: Any) -> Any:
        called.append(name)
        raise RuntimeError(f"{name} of the host was called")

    return method


TRAPS = [
    "__repr__", "__str__", "__bytes__", "__format__", "__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__", "__hash__",
    "__bool__", "__getattr__", "__getattribute__", "__dir__", "__len__", "__length_hint__", "__getitem__", "__iter__",
    "__reversed__", "__contains__", "__call__", "__int__", "__float__", "__complex__", "__index__", "__abs__", "__neg__",
    "__add__", "__radd__", "__mul__", "__enter__", "__exit__", "__next__", "__array__", "__array_interface__", "__fspath__",
    "__reduce__", "__reduce_ex__", "__getstate__", "__copy__", "__deepcopy__", "__sizeof__", "__round__", "__trunc__",
    "__instancecheck__", "__subclasscheck__", "__buffer__", "keys", "values", "items", "isoformat", "total_seconds", "tolist",
    "model_dump", "dict", "to_dict", "json", "encode", "decode", "_asdict",
]  # fmt: skip


def trapped(*bases: type, **more: Any) -> Any:
    """Return a class every method of which raises, and says that it was called."""
    body: dict[str, Any] = {name: trap(name) for name in TRAPS}
    body["__class__"] = property(trap("__class__"))
    return types.new_class("Trapped", bases, {}, lambda space: space.update({**body, **more}))


@pytest.mark.parametrize(
    "base",
    [object, int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset, datetime.timedelta, BaseException],
)
def test_no_method_of_a_value_is_called(base: type) -> None:
    value = object.__new__(trapped()) if base is object else base.__new__(trapped(base))
    called.clear()

    for holder in ([value], {"k": value}, (value,), value):
        stored, _ = store(holder)
        assert stored is not None
    to_tree(value, max_nodes=5, max_text=3)

    assert called == []


def test_no_method_of_a_metaclass_is_called() -> None:
    traps: dict[str, Any] = {name: trap(name) for name in TRAPS}
    traps |= {name: property(trap(name)) for name in ("__module__", "__name__", "__mro__", "__dict__", "__class__")}
    meta: Any = types.new_class("Meta", (type,), {}, lambda space: space.update(traps))
    kind = meta("Odd", (), {})
    value = object.__new__(kind)
    called.clear()

    stored, _ = store([value, kind])

    assert called == []
    assert "Odd" in str(stored)


def test_properties_and_slots_of_a_data_class_are_read_without_running_code() -> None:
    kind = trapped(object, __slots__=("a", "b"))
    type.__setattr__(kind, "__dataclass_fields__", {"a": None, "b": None, "c": None})
    type.__setattr__(kind, "c", property(trap("c")))
    value = object.__new__(kind)
    kind.__dict__["a"].__set__(value, 5)
    called.clear()

    assert form(value) == {"a": 5}
    assert called == []


def test_keys_with_methods_of_their_own_are_written_without_calling_them() -> None:
    class Key(str):
        __slots__ = ()

    odd = Key("k")
    value = {odd: 1, 5: 2}

    Key.__str__ = trap("__str__")  # type: ignore[assignment,method-assign]  # set after the dictionary was made
    Key.__repr__ = trap("__repr__")  # type: ignore[assignment,method-assign]
    Key.__hash__ = trap("__hash__")  # type: ignore[assignment,method-assign]
    Key.__eq__ = trap("__eq__")  # type: ignore[assignment,method-assign]
    called.clear()

    assert form(value) == {"k": 1, "5": 2}
    assert called == []


def test_abstract_and_partial_and_weird_classes_have_a_name() -> None:
    class Abstract(abc.ABC):
        @abc.abstractmethod
        def method(self) -> None: ...

    nameless = type("", (), {"__module__": 5})
    for value in (functools.partial(int, "5"), nameless(), Abstract, object()):
        assert form(value).startswith("<")


def test_a_class_called_secret_shows_nothing() -> None:
    class SecretStr:
        def __init__(self) -> None:
            self.value = "hidden"

    assert form({"key": SecretStr()}) == {"key": "**********"}


def test_a_walk_near_the_recursion_limit_of_the_host_names_the_type_instead_of_raising() -> None:
    value = {1: [{2: [3]}]}

    def deeper(left: int) -> Any:
        return deeper(left - 1) if left else store(value)

    for left in range(sys.getrecursionlimit() - 150, sys.getrecursionlimit()):
        try:
            stored, _ = deeper(left)
        except RecursionError as error:
            # There was no room to begin; who records catches that.
            frames = []
            trace = error.__traceback__
            while trace is not None:
                frames.append(trace.tb_frame.f_code.co_name)
                trace = trace.tb_next
            assert frames[-1] in ("deeper", "store", "to_json", "to_tree", "is_plain"), frames[-3:]
            break
        assert isinstance(stored, JsonText)


# -- limits on request


def test_a_preview_is_cut_inside_the_structure() -> None:
    tree, told = to_tree({"text": "x" * 100, "raw": b"y" * 100, "list": list(range(100))}, max_nodes=20, max_text=10)

    assert tree["text"] == "xxxxxxxxxx...[100 characters]"
    assert tree["raw"] == {"$bytes": None, "size_bytes": 100}
    assert tree["list"][-1] == f"<{100 - (len(tree['list']) - 1)} more>"
    assert told == "cut"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_the_two_ways_through_the_codec_agree(value: Any) -> None:
    """The C encoder takes what it can, the walk the rest; a reader cannot tell which it was."""
    text, told = to_json(value)
    tree, _ = to_tree(value)

    assert repr(load(text)) == repr(tree) == repr(value)
    assert told is None


def test_every_note_and_limit_is_on_the_page_of_forms() -> None:
    page = (pathlib.Path(__file__).parents[2] / "docs" / "formats" / "values.md").read_text("utf-8")

    for word in ("nonfinite", "surrogates", "keys", "cycle", "cut", "opaque", "zone"):
        assert f"| `{word}` |" in page
    for limit in (MAX_DEPTH, MAX_NODES, MAX_PLAIN_CONTAINERS, MAX_PLAIN_VALUES, SMALL_ARRAY):
        assert f"{limit:,}" in page
    assert f"{len(str(1 << MAX_INT_BITS))} digits" in page
