import hashlib
import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spanfold.errors import UnsafePathError
from spanfold.fs import is_temporary, safe_name, split_relative
from spanfold.fs.paths import create_temporary, replace_temporary

ALLOWED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
# Lone surrogates included: such text reaches us from file names and broken decoders.
ANY_TEXT = st.text(st.characters(exclude_categories=()))


@pytest.mark.parametrize(
    "rel",
    [
        "",
        "/",
        "/etc/passwd",
        ".",
        "..",
        "../x",
        "a/../b",
        "a/./b",
        "a//b",
        "a/",
        "a\0b",
        "x" * 256,
        "é" * 128,
        "\ud800",
    ],
)
@pytest.mark.contract("DL-173", "AI-076")
def test_a_path_that_is_no_chain_of_plain_names_is_refused(rel: str) -> None:
    with pytest.raises(UnsafePathError):
        split_relative(rel)


@given(ANY_TEXT)
def test_a_path_that_is_accepted_stays_below_its_folder(rel: str) -> None:
    try:
        parts = split_relative(rel)
    except UnsafePathError:
        return
    assert "/".join(parts) == rel
    assert os.path.normpath(f"/anchor/{rel}") == f"/anchor/{rel}"


def test_the_refusal_of_a_path_shows_no_raw_control_character_and_is_short() -> None:
    with pytest.raises(UnsafePathError) as caught:
        split_relative("\x1b[31m/" + "x" * 10_000)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@given(ANY_TEXT, st.integers(16, 255))
@example("", 64)
@example("..", 64)
@example(".hidden", 64)
@example("a/b:c", 64)
@example("\ud800", 16)
@pytest.mark.contract("DL-151")
def test_any_text_becomes_one_plain_visible_file_name(text: str, limit: int) -> None:
    name = safe_name(text, limit=limit)

    assert set(name) <= ALLOWED
    assert 0 < len(name) <= limit
    assert not name.startswith(".")
    assert not name.endswith(".")
    assert split_relative(name) == (name,)
    assert not is_temporary(name)
    assert safe_name(text, limit=limit) == name


@given(ANY_TEXT, ANY_TEXT)
def test_texts_that_had_to_change_keep_names_apart_by_their_hash(one: str, other: str) -> None:
    for text in (one, other):
        name = safe_name(text)
        if name != text:
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            assert name.endswith(f"-{digest[:8]}")


@pytest.mark.parametrize("text", ["ok", "a.b-c_D9", "x" * 64, "-", "console", "nul1"])
def test_a_name_that_is_safe_already_stays_as_it_is(text: str) -> None:
    assert safe_name(text) == text


@pytest.mark.parametrize("text", ["CON", "nul", "Com1.txt", "LPT9", "aux.tar.gz", "con."])
def test_a_device_name_of_windows_is_not_used_for_a_file(text: str) -> None:
    assert safe_name(text).partition(".")[0].lower() not in {"con", "nul", "com1", "lpt9", "aux"}


def test_a_limit_without_room_for_the_hash_is_refused() -> None:
    with pytest.raises(ValueError, match="limit"):
        safe_name("x", limit=8)


@given(st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=255))
@example("é" * 127)
def test_a_temporary_name_fits_the_file_system_and_is_known_as_one(name: str) -> None:
    for temporary in (replace_temporary(name), create_temporary(name)):
        assert is_temporary(temporary)
        assert len(os.fsencode(temporary)) <= 255
        assert temporary.startswith(".")


@pytest.mark.parametrize("name", ["run.json", ".lock", ".x.tmp", "a.1.0123abcd.tmp", ".a.1.0123ABCD.tmp", ".a.tmp-12"])
def test_a_file_that_is_not_ours_is_not_taken_for_a_leftover(name: str) -> None:
    assert not is_temporary(name)
