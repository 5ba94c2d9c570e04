import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.artifacts import StoredArtifact, store
from spanfold.fs import SafeRoot
from spanfold.journal import to_tree
from tests.artifacts.tensors import HostileTensor

SECRET = "sk-live-0123456789"


def scrub(text: str) -> str:
    return text.replace(SECRET, "(REDACTED)")


def everything(root: SafeRoot) -> bytes:
    """Every name and every byte below the run."""
    paths = list(root.path.rglob("*"))
    return b"\n".join(
        [*(os.fsencode(path) for path in paths), *(path.read_bytes() for path in paths if path.is_file())]
    )


def content(root: SafeRoot, stored: StoredArtifact) -> bytes:
    assert stored.path is not None, stored.reason
    return (root.path / stored.path).read_bytes()


def refuse_constants(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


class TestForms:
    @pytest.mark.parametrize(
        ("value", "path", "kind", "media_type", "raw"),
        [
            ("text é\n", "a/x.txt", "text", "text/plain; charset=utf-8", "text é\n".encode()),
            ("half \ud83d", "a/x.txt", "text", "text/plain; charset=utf-8", "half \ufffd".encode()),
            (b"\x00\xff", "a/x.bin", "bytes", "application/octet-stream", b"\x00\xff"),
            (bytearray(b"ab"), "a/x.bin", "bytes", "application/octet-stream", b"ab"),
            (memoryview(b"ab"), "a/x.bin", "bytes", "application/octet-stream", b"ab"),
            (b"\x89PNG\r\n\x1a\n...", "a/x.png", "media", "image/png", b"\x89PNG\r\n\x1a\n..."),
            (b"\xff\xd8\xff...", "a/x.jpg", "media", "image/jpeg", b"\xff\xd8\xff..."),
            ({"a": [1, None]}, "a/x.json", "json", "application/json", b'{\n  "a": [\n    1,\n    null\n  ]\n}\n'),
            ("", "a/x.txt", "text", "text/plain; charset=utf-8", b""),
            (["é"], "a/x.json", "json", "application/json", b'[\n  "\\u00e9"\n]\n'),
            (None, "a/x.json", "json", "application/json", b"null\n"),
            (np.float64(0.5), "a/x.json", "json", "application/json", b"0.5\n"),
        ],
    )  # fmt: skip
    def test_an_object_becomes_the_file_that_suits_it(
        self, root: SafeRoot, value: Any, path: str, kind: str, media_type: str, raw: bytes
    ) -> None:
        stored = store(root, "a", "x", value)
        assert (stored.path, stored.kind, stored.media_type) == (path, kind, media_type)
        assert content(root, stored) == raw
        assert stored.size_bytes == len(raw)

    @pytest.mark.parametrize(
        ("name", "value", "path"),
        [
            ("x.txt", "text", "a/x.txt"),
            ("x.TXT", "text", "a/x.txt"),
            ("x.md", "text", "a/x.md.txt"),
            ("x.json", [1, None], "a/x.json"),
            ("x.bin", b"\0", "a/x.bin"),
            ("x.png", b"\x89PNG\r\n\x1a\n...", "a/x.png"),
            ("x.npy", np.arange(3), "a/x.npy"),
        ],
    )
    def test_a_name_that_ends_in_the_suffix_of_its_file_has_it_once(
        self, root: SafeRoot, name: str, value: Any, path: str
    ) -> None:
        assert store(root, "a", name, value).path == path

    def test_a_copied_file_has_its_suffix_once(self, root: SafeRoot, tmp_path: Path) -> None:
        (tmp_path / "model.pkl").write_bytes(b"\x80\x04.")
        assert store(root, "a", "best.pkl", tmp_path / "model.pkl").path == "a/best.pkl"

    def test_a_name_that_is_only_a_suffix_stays(self, root: SafeRoot) -> None:
        stored = store(root, "a", ".txt", "text")
        assert stored.path is not None
        assert stored.path.startswith("a/_txt-")

    def test_other_bytes_under_a_name_with_a_suffix_get_a_name_of_their_own(self, root: SafeRoot) -> None:
        one, other, same = (store(root, "a", name, text) for name, text in (("x", "1"), ("x.txt", "2"), ("x.txt", "1")))
        assert (one.path, same.path) == ("a/x.txt", "a/x.txt")
        assert other.path is not None
        assert other.path.startswith("a/x-")
        assert content(root, one) == b"1"

    @pytest.mark.contract("DL-077")
    def test_an_array_of_a_diagnose_loop_gets_its_suffix_behind_any_name(self, root: SafeRoot) -> None:
        assert store(root, "a", "c0_x_map.npy", np.eye(2), is_stem=True).path == "a/c0_x_map.npy.npy"

    @given(JSON_VALUES.filter(lambda value: not isinstance(value, str)))
    def test_plain_data_comes_back_from_its_json(self, tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
        root = SafeRoot(tmp_path_factory.mktemp("run"))
        assert json.loads(content(root, store(root, "a", "x", value))) == json.loads(
            json.dumps(value).encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        )

    @pytest.mark.contract("DL-148")
    @pytest.mark.case("C-024")
    def test_nan_and_infinities_become_null_with_a_note(self, root: SafeRoot) -> None:
        stored = store(root, "a", "x", {"a": [math.nan, math.inf, (-math.inf, 1.5)]})
        assert json.loads(content(root, stored), parse_constant=refuse_constants) == {"a": [None, None, [None, 1.5]]}
        assert stored.note == "nonfinite"

    @pytest.mark.contract("DL-148")
    def test_other_objects_take_the_form_the_journal_gives_them(self, root: SafeRoot) -> None:
        value = {"n": np.int64(3), "b": np.bool_(True), "path": Path("p"), "a": np.arange(3), 1: {2, 1}}
        stored = store(root, "a", "x", value, to_tree=to_tree)
        assert json.loads(content(root, stored)) == {"n": 3, "b": True, "path": "p", "a": [0, 1, 2], "1": [1, 2]}
        assert stored.note == "keys"

    def test_a_matplotlib_figure_becomes_a_png(self, root: SafeRoot) -> None:
        from matplotlib.figure import Figure

        figure = Figure()
        figure.add_subplot().plot([1, 2])
        stored = store(root, "a", "curve", figure)
        assert (stored.path, stored.kind, stored.media_type) == ("a/curve.png", "figure", "image/png")
        assert content(root, stored).startswith(b"\x89PNG")

    def test_a_pillow_image_becomes_a_png(self, root: SafeRoot) -> None:
        from PIL import Image

        stored = store(root, "a", "cat", Image.new("RGB", (2, 2)))
        assert (stored.path, stored.media_type) == ("a/cat.png", "image/png")
        with Image.open(root.path / str(stored.path)) as image:
            assert image.size == (2, 2)

    @pytest.mark.parametrize("name", ["report.csv", "weights.PT", "film.mp4", "plain", "odd.näme", "a.tar.gz"])
    def test_a_path_becomes_a_copy_with_its_suffix(self, root: SafeRoot, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b"\xffcontent")
        stored = store(root, "a", "x", tmp_path / name)
        suffix = {"report.csv": ".csv", "weights.PT": ".PT", "film.mp4": ".mp4", "a.tar.gz": ".gz"}.get(name, "")
        assert stored.kind == "file"
        if name == "odd.näme":
            assert str(stored.path).isascii()
        else:
            assert stored.path == f"a/x{suffix}"
        assert content(root, stored) == b"\xffcontent"

    def test_a_link_named_by_the_caller_is_copied_as_what_it_leads_to(self, root: SafeRoot, tmp_path: Path) -> None:
        (tmp_path / "blob").write_bytes(b"content")
        (tmp_path / "model.bin").symlink_to("blob")
        stored = store(root, "a", "x", tmp_path / "model.bin")
        assert content(root, stored) == b"content"
        assert not (root.path / str(stored.path)).is_symlink()

    def test_an_array_gets_its_picture(self, root: SafeRoot) -> None:
        stored = store(root, "a", "attn_map", np.eye(3))
        assert (stored.path, stored.figure) == ("a/attn_map.npy", "a/attn_map.png")
        assert stored.to_dict()["figure"] == "a/attn_map.png"


class Hostile:
    """Raises from everything an encoder might call."""

    def _raise(self, *_: object) -> Any:
        raise RuntimeError(SECRET)

    __str__ = __repr__ = __iter__ = __len__ = __bool__ = __eq__ = __hash__ = __array__ = __fspath__ = _raise  # type: ignore[assignment]
    shape = dtype = property(_raise)


class HostileStr(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError(SECRET)

    def encode(self, *_: Any) -> bytes:
        raise RuntimeError(SECRET)


class HostileDict(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError(SECRET)


def cycle() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def wide_from_little() -> list[Any]:
    level: list[Any] = []
    for _ in range(60):
        level = [level, level]
    return level


class TestWhatCannotBeKept:
    @pytest.mark.parametrize(
        "value",
        [
            object(),
            Hostile(),
            HostileTensor([1]),
            HostileStr("x"),
            HostileDict(a=1),
            {"a": object()},
            {1: 2},
            lambda: None,
            (n for n in range(3)),
            np.array([object()]),
            Path("/nowhere/at/all"),
            Path("/"),
            Path("a\0b"),
            cycle(),
            pytest.param(wide_from_little(), marks=pytest.mark.slow, id="wide"),
            10**5_000,
            ValueError(SECRET),
        ],
        ids=lambda value: type(value).__name__,
    )
    @pytest.mark.parametrize("journal_forms", [False, True])
    @pytest.mark.case("C-028")
    def test_an_object_without_a_file_leaves_a_reason_and_raises_nothing(
        self, root: SafeRoot, value: Any, journal_forms: bool
    ) -> None:
        stored = store(root, "a", "x", value, **({"to_tree": to_tree} if journal_forms else {}))
        if stored.path is None:
            assert stored.kind == "none"
            assert stored.reason
            assert stored.type == f"{type(value).__module__}.{type(value).__qualname__}"
            assert stored.to_dict() == {"kind": "none", "type": stored.type, "reason": stored.reason}
            assert not [path for path in root.path.rglob("*") if path.is_file()]
        else:
            # Some of them have a form once the journal has made built-in data of them.
            assert journal_forms or isinstance(value, HostileStr | HostileDict)
            json.loads(content(root, stored)) if stored.kind == "json" else content(root, stored)
        assert SECRET not in repr(stored)

    def test_a_special_file_is_not_copied_and_not_waited_for(self, root: SafeRoot, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        for path in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
            assert store(root, "a", "x", path).path is None

    def test_a_huge_file_is_refused_without_reading_it(self, root: SafeRoot, tmp_path: Path) -> None:
        for name in ("film.mp4", "weights.pt"):
            (tmp_path / name).touch()
            os.truncate(tmp_path / name, 1 << 40)
            assert "bytes" in str(store(root, "a", "x", tmp_path / name).reason)


class TestSecrets:
    @pytest.mark.parametrize(
        "value",
        [
            f"key {SECRET}",
            {"key": SECRET, "deep": [{"x": f"Bearer {SECRET}"}]},
            {SECRET: 1},
            f"key {SECRET}".encode(),
            b"\xff\xfe\x00" + SECRET.encode() + b"\x80",
            bytearray(SECRET.encode()),
        ],
        ids=["text", "json", "json key", "utf-8", "binary", "bytearray"],
    )
    def test_no_secret_reaches_the_disk_in_whatever_form_it_comes(self, root: SafeRoot, value: Any) -> None:
        stored = store(root, "a", "x", value, scrub=scrub)
        assert b"(REDACTED)" in content(root, stored)
        assert SECRET.encode() not in everything(root)

    def test_a_secret_in_the_name_reaches_neither_path_nor_picture(self, root: SafeRoot) -> None:
        stored = store(root, "a", f"map_{SECRET}", np.eye(3), scrub=scrub)
        assert stored.figure
        assert SECRET.encode() not in everything(root)
        assert SECRET not in repr(stored)

    def test_a_copied_file_is_scrubbed_and_the_rest_of_it_is_kept(self, root: SafeRoot, tmp_path: Path) -> None:
        (tmp_path / "run.log").write_bytes(b"\x00\xffbegin " + SECRET.encode() + b" end\r\n\xfe")
        stored = store(root, "a", "log", tmp_path / "run.log", scrub=scrub)
        assert content(root, stored) == b"\x00\xffbegin (REDACTED) end\r\n\xfe"

    @given(st.binary(max_size=500))
    def test_bytes_without_a_secret_are_kept_exactly(
        self, tmp_path_factory: pytest.TempPathFactory, data: bytes
    ) -> None:
        root = SafeRoot(tmp_path_factory.mktemp("run"))
        assert content(root, store(root, "a", "x", data, scrub=scrub)) == data

    @pytest.mark.parametrize("value", ["text", b"bytes", {"a": "b"}])
    def test_when_the_gate_fails_nothing_is_written(self, root: SafeRoot, value: Any) -> None:
        def broken(text: str) -> str:
            raise RuntimeError(text)

        stored = store(root, "a", "x", value, scrub=broken)
        assert (stored.path, stored.reason) == (None, "RuntimeError")
        assert list(root.path.rglob("*")) == []


@pytest.mark.contract("DL-142")
def test_every_kind_of_file_leaves_earlier_ones_alone(root: SafeRoot, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("1")
    (tmp_path / "two.csv").write_text("2")
    pairs: list[tuple[Any, Any]] = [
        ("1", "2"),
        (b"1", b"2"),
        ({"a": 1}, {"a": 2}),
        (np.zeros(1), np.ones(1)),
        (tmp_path / "one.csv", tmp_path / "two.csv"),
    ]
    for first, second in pairs:
        one = store(root, "a", "x", first)
        before = content(root, one)
        two = store(root, "a", "x", second)
        again = store(root, "a", "x", first)
        assert one.path != two.path
        assert again.path == one.path
        assert content(root, one) == before


@pytest.mark.slow
def test_the_thousandth_use_of_a_name_costs_no_more_than_the_second(root: SafeRoot) -> None:
    for n in range(1_000):
        store(root, "a", "x", f"{n}")
    names = sorted(path.name for path in (root.path / "a").iterdir())
    assert len(names) == 1_000
    # Not x-2, x-3 ... which would have to be tried one after the other.
    assert {len(name) for name in names} == {len("x.txt"), len("x-0123456789ab.txt")}
