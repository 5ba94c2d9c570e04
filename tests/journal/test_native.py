"""The C core writes what the Python core writes, byte for byte, and nothing a host does while it runs brings it down."""

import errno
import gc
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.errors import JournalSealed
from spanfold.journal import IS_NATIVE, Encoder, Fragment, Journal, Place
from spanfold.journal._core import Tip
from spanfold.journal._encode import EMPTY, NO_NOTES, PythonEncoder
from spanfold.journal._values import JsonText
from spanfold.redact import Gate, Redactor
from tests.journal import kernel, raw

pytestmark = pytest.mark.skipif(not IS_NATIVE, reason="needs the C core, which was not built or is switched off")

ROOT = Path(__file__).resolve().parents[2]
TRACE, SPAN, PARENT = b"0af7651916cd43dd8448eb211c80319c", b"00f067aa0ba902b7", b"b7ad6b7169203331"
SECRET = "hunter2-hunter2"


class Text(str):
    """A subclass of str such as hosts have."""


class Broken(Exception):
    """What the host's own gate raises."""


class Asked:
    """A gate that notes what it is asked, and answers or raises by what that is and a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.questions: list[Any] = []

    def is_sensitive(self, key: str) -> bool:
        self.questions.append(str(key))
        return "password" in key

    def is_clean(self, part: bytes) -> bool:
        self.questions.append(part)
        chance = zlib.crc32(part, self.seed) % 12 if self.seed else 5
        if chance == 0:
            raise Broken
        return SECRET.encode() not in part and chance > 1


class Pair:
    """Both encoders, asked the same; they must answer the same and remember the same."""

    def __init__(self, seed: int = 0) -> None:
        self.gates = Asked(seed), Asked(seed)
        self.c = Encoder(self.gates[0].is_sensitive, self.gates[0].is_clean)
        self.python = PythonEncoder(self.gates[1].is_sensitive, self.gates[1].is_clean)

    def ask(self, method: str, *arguments: Any) -> Any:
        answers = [outcome(getattr(encoder, method), *arguments) for encoder in (self.c, self.python)]
        assert answers[0] == answers[1]
        assert type(answers[0]) is type(answers[1])
        assert self.gates[0].questions == self.gates[1].questions
        assert self.c._keys == self.python._keys
        assert self.c._n_texts == self.python._n_texts
        assert self.c._json_fields == self.python._json_fields
        return answers[0]


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception as error:
        return type(error).__name__


any_text = st.text(st.characters(), max_size=80)
texts = (
    any_text
    | st.sampled_from(
        ["", "ok", "é" * 64, "é" * 65, "😀", "\ud800", "a\x00\x1f\x7f\u2028", SECRET, f"my {SECRET}", "x" * 20_000]
    )
    | st.builds(lambda part, n: part * n, st.sampled_from(["a", "ü", "𝄞", '"']), st.integers(60, 70))
)
numbers = (
    st.integers()
    | st.integers(-9, 9)
    | st.sampled_from([10**7, 10**7 - 1, -(10**7), 1 - 10**7, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**30])
)
floats = st.floats() | st.sampled_from([0.0, -0.0, 0.1, 1e300, 123456.7, 1e-7])
json_texts = st.builds(
    JsonText,
    st.sampled_from(["[]", '{"a":1}', "null", '"\ud800"', f'["{SECRET}"]', "[" + "1," * 9_000 + "1]"]) | any_text,
)
values: st.SearchStrategy[Any] = st.recursive(
    texts
    | numbers
    | st.booleans()
    | floats
    | json_texts
    | st.binary(max_size=20)
    | st.builds(Text, any_text)
    | st.none(),
    lambda inner: st.lists(inner, max_size=5).map(tuple),
    max_leaves=8,
)
keys = (
    st.sampled_from(["a", "b", "c", "spanfold.x", "gen_ai.usage", "password", SECRET, "k" * 256, "k" * 257, "\ud800"])
    | st.builds("n{}".format, st.integers(0, 60))
    | st.builds(Text, st.sampled_from(["a", "b", "text"]))
    | any_text
)
attributes = st.dictionaries(keys, values, max_size=12) | st.dictionaries(
    st.builds("n{}".format, st.integers(0, 220)), st.sampled_from(["", "t", JsonText("[]"), 1, "u" * 64]), max_size=200
)
notes: st.SearchStrategy[Any] = (
    st.none() | st.just({}) | st.dictionaries(keys, st.sampled_from(["surrogates", "cut"]), min_size=1, max_size=2)
)
links = st.sampled_from([None, [], (), [("ab" * 16, "cd" * 8, {"a": 1})]])


@given(seed=st.integers(0, 5), steps=st.lists(st.tuples(attributes, notes), min_size=1, max_size=4), data=st.data())
def test_both_cores_encode_whatever_attributes_the_same_again_and_again(
    seed: int, steps: list[tuple[dict[str, Any], dict[str, str] | None]], data: st.DataObject
) -> None:
    pair = Pair(seed)
    made: list[Fragment] = [EMPTY]
    for found, noted in steps * 3:
        answer = pair.ask("fragment", found, noted)
        if isinstance(answer, Fragment):
            made.append(answer)
        if data.draw(st.sampled_from(range(8))) == 0:
            pair.c.forget()
            pair.python.forget()
    for _ in range(2):
        before, after = data.draw(st.sampled_from(made)), data.draw(st.sampled_from(made))
        times = [data.draw(numbers) for _ in range(3)]
        code, message, linked = data.draw(st.sampled_from([0, 0, 1, 2])), data.draw(texts), data.draw(links)
        place = Place(b'"flags":1,"name":"n","kind":1', b'{"key":"k","value":{"intValue":"1"}}')
        for _ in range(2):
            pair.ask("join", before, after)
            pair.ask("own_span", place, TRACE, SPAN, PARENT, *times, before, after, code, message, linked)
            pair.ask(
                "started", TRACE, SPAN, times[0], place.attributes, data.draw(st.sampled_from([PARENT, b""])), after
            )


@given(data=st.data())
def test_both_cores_refuse_the_same_arguments(data: st.DataObject) -> None:
    pair = Pair()
    anything: st.SearchStrategy[Any] = (
        st.none() | st.integers() | st.just(b"x") | st.just(EMPTY) | st.just({}) | st.just((b"a", b"b")) | st.just([])
    )
    method = data.draw(st.sampled_from(["fragment", "own_span", "started", "join"]))
    pair.ask(method, *data.draw(st.lists(anything, max_size=15)))


def test_both_cores_forget_after_the_same_number_of_texts() -> None:
    pair = Pair()
    for number in range(0, 4500, 25):
        pair.ask("fragment", {f"k{n % 40}": f"text {number + n}" for n in range(25)})
    assert pair.c._n_texts < 4096


@pytest.mark.parametrize("none", [None, {}, [], (), "", 0])
def test_whatever_stands_for_no_notes_becomes_the_dictionary_of_none(none: Any) -> None:
    pair = Pair()
    for _ in range(2):
        assert pair.ask("fragment", {"a": 1}, none).notes == {}


def test_a_dictionary_of_no_notes_is_not_kept_by_a_fragment() -> None:
    mine: dict[str, str] = {}
    pair = Pair()
    pair.ask("fragment", {"a": 1})
    fragment = pair.ask("fragment", {"a": 1}, mine)
    mine["a"] = "cut"
    assert fragment.notes == {}


@pytest.mark.slow
def test_values_of_a_hundred_megabytes_are_encoded_and_appended_like_small_ones(tmp_path: Path) -> None:
    pair = Pair()
    large = JsonText('"' + "ü" * 50_000_000 + '"')
    for _ in range(2):
        fragment = pair.ask("fragment", {"a": 1, "large": large})
    body = pair.ask("started", TRACE, SPAN, 1, b'{"key":"k","value":{"intValue":"1"}}', PARENT, Fragment(fragment.data))
    journal = opened(tmp_path)
    journal.event(started(1), True)
    journal.event(body, True)
    journal.event(started(2), True)
    journal.close()
    assert [r["timeUnixNano"] for r in raw.journal(tmp_path)] == ["1", "1", "2"]
    assert journal.stats.problem == ""


# -- what a host does meanwhile


def opened(folder: Path) -> Journal:
    return Journal(folder / "journal", gate=Gate(Redactor()), resource=lambda: {"service.name": "sample"})


def started(number: int) -> bytes:
    return b'{"timeUnixNano":"%d","eventName":"e","attributes":[],"traceId":"","spanId":""}' % number


def ready(is_clean: Callable[[bytes], bool] = lambda part: True, *more: str) -> Encoder:
    """Return an encoder that knows the keys `a`, `b` and `c`, so that C walks dictionaries of them."""
    encoder = Encoder(lambda key: False, lambda part: True)
    encoder.fragment(dict.fromkeys(("a", "b", "c", *more), 1))
    encoder.passes = is_clean
    return encoder


def told(fragment: Fragment) -> dict[str, Any]:
    return {p["key"]: p["value"] for p in json.loads(b"[%b]" % fragment.data)}


def test_a_gate_may_change_the_very_dictionary_it_is_asked_about() -> None:
    found: dict[str, Any] = {}

    def is_clean(part: bytes) -> bool:
        found.clear()
        found.update((f"n{n}", "new") for n in range(100))
        gc.collect()
        return True

    encoder = ready(is_clean)
    for number in range(10):
        found.clear()
        found.update({"a": f"text {number}", "b": JsonText(f"[{number}]"), "c": f"long {number}" * 20})
        fragment = encoder.fragment(found)
        assert told(fragment) == {
            "a": {"stringValue": f"text {number}"},
            "b": {"stringValue": f"[{number}]"},
            "c": {"stringValue": f"long {number}" * 20},
        }
        assert fragment.json_keys == ("b",)


def test_what_a_gate_passed_while_it_made_the_encoder_forget_is_not_remembered() -> None:
    def is_clean(part: bytes) -> bool:
        encoder.forget()
        encoder.passes = lambda part: False
        return True

    encoder = ready(is_clean)
    assert encoder.fragment({"a": "some text"}).is_clean
    assert not encoder.fragment({"a": "some text"}).is_clean


def test_a_gate_may_be_asked_from_within_itself() -> None:
    def is_clean(part: bytes) -> bool:
        if b"outer" in part:
            inner.append(encoder.fragment({"a": "inner", "b": "c" * 5_000}))
        return True

    inner: list[Fragment] = []
    encoder = ready(is_clean)
    fragment = encoder.fragment({"a": "outer", "b": "b" * 200})
    assert told(fragment) == {"a": {"stringValue": "outer"}, "b": {"stringValue": "b" * 200}}
    assert [told(one) for one in inner] == [{"a": {"stringValue": "inner"}, "b": {"stringValue": "c" * 5_000}}]


def test_what_a_gate_raises_comes_out_and_leaves_nothing_remembered() -> None:
    def is_clean(part: bytes) -> bool:
        raise KeyboardInterrupt

    encoder = ready(is_clean)
    with pytest.raises(KeyboardInterrupt):
        encoder.fragment({"a": "text", "b": JsonText("[]")})
    encoder.passes = lambda part: False
    assert not encoder.fragment({"a": "text"}).is_clean


def test_a_gate_may_record_into_the_journal_that_asks_it(tmp_path: Path) -> None:
    class Recording(Gate):
        def is_clean(self, line: bytes) -> bool:
            if b"outer" in line:
                journal.event(started(2), True)
            return super().is_clean(line)

    journal = Journal(tmp_path / "journal", gate=Recording(Redactor()), resource=dict)
    for _ in range(3):
        journal.encoder.forget()
        fragment = journal.encoder.fragment({"a": "outer"})
        journal.event(
            journal.encoder.started(TRACE, SPAN, 1, b'{"key":"k","value":{"intValue":"1"}}', b"", fragment), True
        )
    journal.close()
    assert [r["timeUnixNano"] for r in raw.journal(tmp_path)] == ["2", "1"] * 3


class Finalized:
    """Garbage that acts when it is collected."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act
        self.itself = self

    def __del__(self) -> None:
        self.act()


def test_a_finalizer_may_empty_the_dictionary_that_is_encoded() -> None:
    encoder = ready()
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()  # what is there already is not looked at then
    gc.set_threshold(1)
    try:
        for number in range(300):
            # The lone surrogate makes an exception, and making that can run the collector.
            found: dict[str, Any] = {
                "a": "text",
                "b": "\ud800" + str(number) * 9,
                "c": ("x", "\udfff" + str(number) * 9),
            }
            gc.disable()
            Finalized(found.clear)
            gc.enable()
            try:
                fragment = encoder.fragment(found)
            except RuntimeError:  # as Python says when a dictionary changes in the middle of a walk
                continue
            assert set(told(fragment)) <= {"a", "b", "c"}
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def test_a_key_that_compares_itself_is_not_asked_in_the_middle_of_a_walk() -> None:
    class Key(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            asked.append(other)
            found.clear()
            return str.__eq__(self, other)

    asked: list[object] = []
    found: dict[str, Any] = {}
    encoder = Encoder(lambda key: False, lambda part: True)
    encoder.fragment({Key("spanfold.mine"): 1})
    encoder.fragment({"b": 1})
    for number in range(20):
        found.update({"".join(("spanfold.", "mine")): f"{number}" * 70, "b": f"{number}" * 80})
        assert set(told(encoder.fragment(found))) == {"spanfold.mine", "b"}
    assert not asked


def test_a_dictionary_that_another_thread_changes_is_encoded_or_refused_but_never_misread() -> None:
    encoder = ready(lambda part: True, *(f"n{n}" for n in range(40)))
    found: dict[str, Any] = {"a": "first"}
    stop = threading.Event()

    def change() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            found[f"n{number % 40}"] = f"value {number}" * (number % 9)
            found.pop(f"n{(number + 20) % 40}", None)
            if number % 50 == 0:
                found.clear()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(3_000):
            try:
                fragment = encoder.fragment(found)
            except RuntimeError:  # as Python says when a dictionary changes in the middle of a walk
                continue
            for value in told(fragment).values():
                assert re.fullmatch(r"first|(?:(value \d+)\1*)?", value["stringValue"])
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_eight_threads_append_to_one_chain(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    # From 2 KiB on the hash lets other threads in.
    sizes = [0, 100, 1_900, 2_100, 10_000]

    def record(thread: int) -> None:
        for n in range(150):
            fragment = journal.encoder.fragment({"a": thread, "n": n, "text": "x" * sizes[n % 5]})
            body = journal.encoder.started(TRACE, SPAN, n, b'{"key":"k","value":{"intValue":"1"}}', PARENT, fragment)
            journal.event(body, fragment.is_clean)

    threads = [threading.Thread(target=record, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    found = [(r["attributes"]["a"], r["attributes"]["n"]) for r in raw.journal(tmp_path)]
    assert sorted(found) == [(thread, n) for thread in range(8) for n in range(150)]
    for number in range(8):
        assert [n for one, n in found if one == number] == list(range(150))


@pytest.mark.parametrize("act", ["raises", "returns"])
def test_a_signal_handler_may_run_while_a_record_waits_for_another_thread(tmp_path: Path, act: str) -> None:
    journal = opened(tmp_path)
    journal.event(started(1), True)
    asked, answered = threading.Event(), threading.Event()

    def handler(number: int, frame: object) -> None:
        answered.set()
        if act == "raises":
            raise Broken

    def hold() -> None:
        with journal._lock:
            asked.set()
            os.kill(os.getpid(), signal.SIGUSR1)
            answered.wait(30)

    before = signal.signal(signal.SIGUSR1, handler)
    other = threading.Thread(target=hold)
    try:
        with suppress(Broken):
            other.start()
            asked.wait(30)
            journal.event(started(2), True)
    finally:
        answered.set()
        other.join()
        signal.signal(signal.SIGUSR1, before)
    journal.event(started(3), True)
    journal.close()
    found = [r["timeUnixNano"] for r in raw.journal(tmp_path)]
    assert found in ([["1", "3"], ["1", "2", "3"]] if act == "raises" else [["1", "2", "3"]])


# -- the file


class Line(Tip):
    """A tip of a file that the test opened itself."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        self.device, self.inode = path.stat().st_dev, path.stat().st_ino
        self.next_check = float("inf")
        self.head = b"0" * 64

    def state(self) -> tuple[Any, ...]:
        return self.seq, self.size, self.head, self.next_check


FRAME = (b"<", b">", b"</>\n")


@pytest.mark.parametrize(
    "arguments",
    [
        *[(), (FRAME,), (FRAME, b"x", b"y"), (FRAME, "x"), (FRAME, bytearray(b"x")), (list(FRAME), b"x")],
        *[(FRAME[:2], b"x"), ((b"<", b">", ""), b"x"), ((*FRAME, b""), b"x"), (None, None)],
    ],
)
def test_what_is_no_line_is_left_to_python_and_changes_nothing(tmp_path: Path, arguments: tuple[Any, ...]) -> None:
    tip = Line(tmp_path / "file")
    before = tip.state()
    assert tip.append(*arguments) is False
    assert tip.state() == before
    assert (tmp_path / "file").read_bytes() == b""
    os.close(tip.descriptor)


@pytest.mark.parametrize(
    "break_it",
    [lambda t: os.close(t.descriptor), lambda t: delattr(t, "head"), lambda t: setattr(t, "next_check", float("nan"))],
)
def test_a_file_that_cannot_be_written_to_is_left_to_python(tmp_path: Path, break_it: Callable[[Tip], None]) -> None:
    tip = Line(tmp_path / "file")
    break_it(tip)
    assert tip.append(FRAME, b"body") is False
    assert (tip.seq, tip.size) == (0, 0)
    assert (tmp_path / "file").read_bytes() == b""


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Have the system take no byte of any file behind `size`: what a full disk does, a short write first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_of_which_the_disk_took_a_part_is_taken_back_and_no_byte_of_others_with_it(tmp_path: Path) -> None:
    tip = Line(tmp_path / "file")
    assert tip.append(FRAME, b"a" * 50)
    first = (tmp_path / "file").read_bytes()
    with (tmp_path / "file").open("ab") as other:
        other.write(b"of others")
    before = tip.state()
    with largest_file(len(first) + 50):
        assert tip.append(FRAME, b"b" * 100) is False
    assert tip.state() == before
    assert (tmp_path / "file").read_bytes() == first + b"of others"
    os.close(tip.descriptor)


def test_a_part_of_a_line_that_cannot_be_taken_back_at_first_is_when_the_disk_lets_us(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.event(started(1), True)
    size = journal.position.size
    with largest_file(size + 50):
        kernel.refused(["ftruncate"], errno.EIO, lambda: journal.event(started(2), True))
        torn = raw.files(tmp_path)[0].stat().st_size
        held = journal.stats.held
    assert journal.sync()
    journal.event(started(3), True)
    journal.close()
    assert (torn, held, journal.stats.problem) == (size + 50, 1, f"OSError: {os.strerror(errno.EIO)}")
    assert [r["timeUnixNano"] for r in raw.journal(tmp_path)] == ["1", "2", "3"]
    assert len(raw.files(tmp_path)) == 1


LIFE = """
import json, os, random, resource, sys
from pathlib import Path
from spanfold.errors import JournalSealed
from spanfold.journal import IS_NATIVE, Journal, JsonText
from spanfold.redact import Gate, Redactor

assert IS_NATIVE == (sys.argv[1] == "C"), IS_NATIVE
SOFT, HARD = resource.getrlimit(resource.RLIMIT_FSIZE)
TRACE, SPAN = b"0af7651916cd43dd8448eb211c80319c", b"00f067aa0ba902b7"
SECRET = "secret-7-secret"


def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, HARD))


def live(folder, seed):
    chance = random.Random(seed)
    redactor = Redactor()
    journal = Journal(folder / "journal", gate=Gate(redactor), resource=lambda: {"service.name": "sample"})
    redactor.on_registration(journal.encoder.forget)
    number = 0
    rare = ["sync", "release", "close", "secret", "remove", "replace", "cut", "fork", "full", "full", "room"]
    for _ in range(chance.randrange(20, 80)):
        step = chance.choice(["span"] * 10 + ["event"] * 8 + rare)
        if step in ("span", "event"):
            number += 1
            found = {"n": number, "text": "x" * chance.choice([0, 10, 70, 2_000, 5_000, 70_000])}
            for key in chance.sample(["a", "b", "password", "c", "d"], chance.randrange(4)):
                found[key] = chance.choice(["ok", SECRET, 1, 2**70, 0.5, True, JsonText('{"a":1}'), ("x", 1), "\\ud800"])
            encoder = journal.encoder
            fragment = encoder.fragment(found)
            place = encoder.place("n", 1, {"k": 1})
            if step == "event":
                body = encoder.started(TRACE, SPAN, number, place.attributes, b"", fragment)
                journal.event(body, fragment.is_clean)
            else:
                before = encoder.fragment({"early": number})
                code = number % 3
                body = encoder.own_span(place, TRACE, SPAN, SPAN, 1, 2, number, before, fragment, code, "said", None)
                journal.span(body, fragment.is_clean)
        elif step in ("sync", "release", "close"):
            getattr(journal, step)()
        elif step == "secret":
            redactor.register_literal(SECRET)
        elif step in ("remove", "replace", "cut"):
            if journal._file.handle is not None and not journal._waiting:
                path = journal.folder / journal._file.name
                if path.exists():
                    if step == "remove":
                        path.unlink()
                    elif step == "replace":
                        path.rename(path.with_suffix(".old"))
                    else:
                        os.truncate(path, max(path.stat().st_size - 10, 0))
                journal._file.next_check = 0.0  # so that it is noticed with the next record, and not by the clock
        elif step == "fork":
            child = os.fork()
            if not child:
                limit(SOFT)
                journal.event(b'{"timeUnixNano":"7","eventName":"child","attributes":[]}', True)
                journal.close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        else:
            limit(chance.choice([3_000, 40_000]) if step == "full" else SOFT)
            journal.sync()  # tries again now, and not by the clock
    limit(SOFT)
    assert journal.sync()
    if chance.random() < 0.5:
        assert journal.seal({})
        try:
            journal.event(b"{}", True)
        except JournalSealed:
            pass
    journal.close()
    print(json.dumps([number, {**vars(journal.stats), "written": journal.written}]))


for seed in range(int(sys.argv[3])):
    live(Path(sys.argv[2]) / str(seed), seed)
"""


def python(code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(run_dir: Path) -> list[list[dict[str, Any]]]:
    """Return the records of each file, without what differs from one life to the next."""
    found = [raw.records(path, may_be_torn=True) for path in raw.files(run_dir)]
    for record in (r for file in found for r in file if r.get("eventName", "").startswith("spanfold.journal.")):
        record.clear()
    return sorted(found, key=json.dumps)


@pytest.mark.slow
def test_a_journal_through_full_disks_forks_and_lost_files_is_the_same_with_both_cores(tmp_path: Path) -> None:
    lives = 40
    with_c = python(LIFE, "C", str(tmp_path / "C"), str(lives)).splitlines()
    without = python(LIFE, "Python", str(tmp_path / "Python"), str(lives), SPANFOLD_NATIVE="0").splitlines()
    assert len(with_c) == lives
    for seed in range(lives):
        assert with_c[seed] == without[seed], seed
        found = files(tmp_path / "C" / str(seed))
        assert found == files(tmp_path / "Python" / str(seed)), seed
        number, stats = json.loads(with_c[seed])
        assert (stats["lost"], stats["held"]) == (0, 0), seed
        recorded = [r["attributes"]["n"] for file in found for r in file if "n" in r.get("attributes", {})]
        assert len(recorded) == len(set(recorded)), seed
        assert set(recorded) <= set(range(1, number + 1)), seed


def test_a_second_interpreter_of_the_process_goes_without_c_and_harms_nobody() -> None:
    answer = python("""
try:
    import _interpreters as interpreters
    inner, run = interpreters.create("legacy"), interpreters.exec
except ImportError:
    import _xxsubinterpreters as interpreters
    inner, run = interpreters.create(isolated=False), interpreters.run_string
import spanfold.journal as journal
failed = run(inner, '''
import spanfold.journal as journal
assert not journal.IS_NATIVE
assert journal.Encoder(lambda key: False, lambda part: True).fragment({"a": 1}).is_clean
''')
assert failed is None, failed
interpreters.destroy(inner)
assert journal.IS_NATIVE
encoder = journal.Encoder(lambda key: False, lambda part: True)
for number in range(1000):
    assert encoder.fragment({"a": f"text {number}", "b": journal.JsonText("[]")}).json_keys == ("b",)
print("done")
""")
    assert answer == "done\n"


def test_nothing_is_made_before_the_module_was_told_what_belongs_to_python() -> None:
    answer = python("""
import importlib.machinery, importlib.util
[package] = importlib.util.find_spec("spanfold").submodule_search_locations
spec = importlib.machinery.PathFinder.find_spec("_native", [package + "/journal"])
native = importlib.util.module_from_spec(spec)
for kind in native.Encoder, native.Tip, native.Writer:
    try:
        kind()
    except RuntimeError as error:
        print(error)
""")
    assert answer == "spanfold.journal._native: `setup` comes first.\n" * 3


# -- what stays behind


def refusing(part: bytes) -> bool:
    raise Broken


def ways() -> dict[str, Callable[[], object]]:
    """Return calls that go each way through the encoder once, with the same objects every time."""
    clean, doubtful, broken = ready(), ready(lambda part: False), ready(refusing)
    short, long, large = "text", "text" * 50, "text" * 5_000
    place = Place(b'"flags":1,"name":"n","kind":1', b'{"key":"k","value":{"intValue":"1"}}')
    plain, with_json = clean.fragment({"a": 1}), clean.fragment({"a": JsonText("[]")})
    noted = clean.fragment({"a": 1}, {"a": "cut"})
    ids = TRACE, SPAN, PARENT
    numbered = count()
    clean.own_span(place, *ids, 1, 2, 3, plain, with_json, 1, "", None)

    def caught(call: Callable[..., object], *arguments: Any) -> Callable[[], object]:
        def run() -> None:
            with suppress(Broken, TypeError, AttributeError):
                call(*arguments)

        return run

    def forgotten() -> None:
        clean.forget()
        clean.fragment({"a": short, "b": 1, "c": 1})
        clean.fragment({"a": long})

    def unseen() -> None:
        number = next(numbered)
        if not number % 100:
            forgotten()
        clean.fragment({"a": str(number)})

    return {
        "cached": lambda: clean.fragment({"a": short, "b": 7, "c": True}),
        "numbers": lambda: clean.fragment({"a": 10**12, "b": 0.1, "c": float("nan")}),
        "texts": lambda: clean.fragment({"a": long, "b": long, "c": JsonText("[1]")}),
        "grown": lambda: clean.fragment({"a": long * 20, "b": long * 20, "c": long * 20}),
        "tuples": lambda: clean.fragment({"a": (1, "x", True, long), "b": ()}),
        "unseen": unseen,
        "forgotten": forgotten,
        "notes": lambda: clean.fragment({"a": short}, {"a": "cut"}),
        "doubtful": lambda: doubtful.fragment({"a": short, "b": long, "c": JsonText("[1]")}),
        "refused": caught(broken.fragment, {"a": short, "b": long, "c": JsonText("[1]")}),
        "key not known": lambda: clean.fragment({"a": short, "k" * 300: 1}),
        "surrogate": lambda: clean.fragment({"a": long, "b": "\ud800"}),
        "surrogate in a tuple": lambda: clean.fragment({"a": short, "c": ("x", "\ud800")}),
        "long number": lambda: clean.fragment({"a": long, "b": 2**70}),
        "large text": lambda: clean.fragment({"a": JsonText("[1]"), "b": large}),
        "many texts": lambda: clean.fragment(dict.fromkeys(map(str, range(40)), JsonText("[]"))),
        "no dictionary": caught(clean.fragment, [1]),
        "no arguments": caught(clean.fragment),
        "too many arguments": caught(clean.fragment, *range(20)),
        "span": lambda: clean.own_span(place, *ids, 1, 2, 3, plain, plain, 0, "", None),
        "span with JSON": lambda: clean.own_span(place, *ids, 1, 2, 3, plain, with_json, 0, "", []),
        "span with notes": lambda: clean.own_span(place, *ids, 1, 2, 3, noted, with_json, 2, "said", None),
        "no span": caught(clean.own_span, place, *ids, None, 2, 3, plain, plain, 0, "", None),
        "joined": lambda: clean.join(with_json, plain),
        "joined to nothing": lambda: clean.join(EMPTY, plain),
        "joined with notes": lambda: clean.join(noted, plain),
        "not joined": caught(clean.join, plain, None),
        "started": lambda: clean.started(*ids[:2], 1, place.attributes, PARENT, plain),
        "started with JSON": lambda: clean.started(*ids[:2], 1, place.attributes, b"", with_json),
        "not started": caught(clean.started, *ids[:2], 1, None, b"", plain),
        "an encoder": lambda: Encoder(bool, bool).fragment({}),
    }


SHARED = [Fragment, JsonText, NO_NOTES, EMPTY, TRACE, SPAN, PARENT, *FRAME, Encoder, Tip, True, False, None, b""]


@pytest.mark.slow
@pytest.mark.parametrize("way", ways() if IS_NATIVE else [])
def test_a_call_of_the_encoder_leaves_no_object_and_no_reference_behind(way: str) -> None:
    assert_leaves_nothing(ways()[way])


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"", b"x" * 100, b"x" * 5_000, "no bytes"])
def test_an_append_leaves_no_object_and_no_reference_behind(tmp_path: Path, body: Any) -> None:
    tip = Line(tmp_path / "file")
    assert_leaves_nothing(lambda: tip.append(FRAME, body))
    with largest_file(os.fstat(tip.descriptor).st_size + 3):
        assert_leaves_nothing(lambda: tip.append(FRAME, body))
    os.close(tip.descriptor)


@pytest.mark.slow
def test_a_record_leaves_no_object_and_no_reference_behind(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    frame = journal.frame("span", scope_name="other")
    long = b'{"name":"%b","attributes":[]}' % (b"x" * 3_000)
    doubtful = b'{"name":"n","attributes":[]}'
    misuses: list[Any] = [(), (long,), (long, True, frame, 1)]

    def record() -> None:
        journal.event(started(1), True)
        journal.span(long, True)
        journal.span(long, True, frame)
        journal.span(long, True, None)
        journal.span(doubtful, False)
        for wrong in misuses:
            with suppress(TypeError):
                journal.span(*wrong)

    assert_leaves_nothing(record, 500)
    journal.seal({})

    def refuse() -> None:
        with suppress(JournalSealed):
            journal.event(started(1), True)

    assert_leaves_nothing(refuse)
    journal.close()


@pytest.mark.slow
def test_records_the_disk_refuses_leave_nothing_behind_once_it_takes_them(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.event(started(1), True)

    def refuse_and_write() -> None:
        with largest_file(journal.position.size + 3):
            journal.event(started(2), True)
        journal.sync()

    assert_leaves_nothing(refuse_and_write, 300)
    journal.close()
    assert journal.stats.held == journal.stats.lost == 0
    assert len(raw.journal(tmp_path)) == 701


def assert_leaves_nothing(call: Callable[[], object], times: int = 2_000) -> None:
    for _ in range(times):  # what is remembered, up to a limit, is no leak
        call()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(100):
            call()
        memory, references = tracemalloc.get_traced_memory()[0], list(map(sys.getrefcount, SHARED))
        for _ in range(times):
            call()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - memory
        drift = [now - then for then, now in zip(references, map(sys.getrefcount, SHARED), strict=True)]
    finally:
        tracemalloc.stop()
    # A leak is one of every call; the interpreter's own comings and goings are a handful.
    assert max(map(abs, drift)) < times / 20, drift
    assert grown < times * 8
