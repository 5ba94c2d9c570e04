"""Keep any object as the file that suits it best.

| Object | File |
|---|---|
| text | `.txt` |
| bytes | by what they begin with: `.png`, `.jpg` and other media; else `.bin` |
| a `Path` | a copy, with the suffix of the original |
| array, tensor, list of them | `.npy`, and a picture where the name says what it shows |
| Matplotlib figure, Pillow image | `.png` |
| numbers, dict, list and other plain data | `.json` |

Text passes the caller's `scrub` before it is written, whichever file it goes
to: as text, inside JSON, and in files and bytes that are no media.
"""

import io
import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from spanfold.artifacts.arrays import NotStorable, is_array, store_with_array
from spanfold.artifacts.figures import figure_bytes, render_figure
from spanfold.artifacts.media import MAX_MEDIA_BYTES, MEDIA_TYPES, NotCopied, file_name, read_chunks, sniffed_suffix
from spanfold.artifacts.placing import Chunks, place
from spanfold.artifacts.results import Kind, StoredArtifact, type_name, why
from spanfold.fs import SafeRoot, split_relative

Scrub: TypeAlias = Callable[[str], str]
"""Takes the secrets out of a text (`spanfold.redact`)."""
ToTree: TypeAlias = Callable[[Any], tuple[Any, str | None]]
"""Turns an object into a tree of JSON values and a note of what was changed (`spanfold.journal.to_tree`)."""

MAX_NODES: Final = 500_000
"""int. Most values one JSON file holds."""
MAX_SCRUBBED_BYTES: Final = 64 * 1024 * 1024
"""int, bytes. Largest file copied that is no media: it is searched for secrets in memory."""


def unchanged(text: str) -> str:
    """Return the text as it is: the default `scrub`."""
    return text


def as_it_is(value: Any) -> tuple[Any, str | None]:
    """Return built-in data as it is: the default `to_tree`, which refuses other objects later."""
    return value, None


def store(
    root: SafeRoot,
    folder: str,
    name: str,
    value: object,
    *,
    scrub: Scrub = unchanged,
    to_tree: ToTree = as_it_is,
    is_stem: bool = False,
) -> StoredArtifact:
    """Keep an object as a file of `folder`.

    Args:
        root: The run directory.
        folder: Folder in it, made when missing.
        name: What the object is; part of the file name, and decides on a picture. When it ends in the suffix of the file,
            the file has that once.
        value: The object.
        scrub: Takes the secrets out of a text.
        to_tree: Turns objects other than built-in ones into JSON values.
        is_stem: Put `.npy` behind the name of an array even if it ends so, as names of DL 9.1 do.

    Returns:
        The file, or the reason why there is none. Nothing that the object's
        own methods, `scrub` or the disk raise comes out.

    Raises:
        UnsafePathError: `folder` is no safe relative path.
    """
    split_relative(folder)
    try:
        return _store(root, folder, scrub(name), value, scrub, to_tree, is_stem)
    except (NotCopied, NotStorable) as error:
        reason = str(error)
    except Exception as error:
        reason = why(error)
    return StoredArtifact("none", type_name(value), reason=reason)


def _store(
    root: SafeRoot, folder: str, name: str, value: Any, scrub: Scrub, to_tree: ToTree, is_stem: bool
) -> StoredArtifact:
    if isinstance(value, str):
        return store_text(root, folder, name, value, scrub=scrub)
    if isinstance(value, bytes | bytearray | memoryview):
        return store_bytes(root, folder, name, bytes(cast("bytes", value)), scrub=scrub)
    if isinstance(value, os.PathLike):
        return _store_file(root, folder, name, cast("os.PathLike[str]", value), scrub)
    if is_array(value):
        return _store_array_and_figure(root, folder, name, value, is_stem)
    if picture := _picture(value):
        return _placed(root, folder, name, ".png", value, "figure", "image/png", lambda: (picture,))
    return store_json(root, folder, name, value, scrub=scrub, to_tree=to_tree)


def store_text(root: SafeRoot, folder: str, name: str, text: str, *, scrub: Scrub = unchanged) -> StoredArtifact:
    """Keep text as UTF-8 in `<name>.txt`; a lone surrogate becomes U+FFFD. Raises what `scrub` and the disk raise."""
    data = _utf8(scrub(text))
    return _placed(root, folder, name, ".txt", text, "text", "text/plain; charset=utf-8", lambda: (data,))


def store_bytes(root: SafeRoot, folder: str, name: str, data: bytes, *, scrub: Scrub = unchanged) -> StoredArtifact:
    """Keep bytes under the suffix of the media they are, else as `<name>.bin`. Raises what `scrub` and the disk raise."""
    suffix = sniffed_suffix(data)
    if suffix:
        return _placed(root, folder, name, suffix, data, "media", MEDIA_TYPES[suffix], lambda: (data,))
    clean = scrubbed(data, scrub)
    return _placed(root, folder, name, ".bin", data, "bytes", "application/octet-stream", lambda: (clean,))


def store_json(
    root: SafeRoot,
    folder: str,
    name: str,
    value: object,
    *,
    scrub: Scrub = unchanged,
    to_tree: ToTree = as_it_is,
) -> StoredArtifact:
    """Keep data as strict JSON in `<name>.json`: ASCII, indented by two, NaN and infinities as null.

    Args:
        root: The run directory.
        folder: Folder in it, made when missing.
        name: Stem of the file; a `.json` at its end is the suffix.
        value: The data.
        scrub: Takes the secrets out of each text in it, keys included.
        to_tree: Turns objects other than built-in ones into JSON values.

    Raises:
        NotStorable: It holds an object that has no form in JSON.
        Exception: What `scrub`, `to_tree` and the disk raise.
    """
    tree, note = to_tree(value)
    if _says_only_its_type(tree, value):
        raise _formless(value)
    walk = _Walk(scrub)
    text = json.dumps(walk.visit(tree), indent=2, allow_nan=False)
    data = f"{text}\n".encode("ascii")
    stored = _placed(root, folder, name, ".json", value, "json", "application/json", lambda: (data,))
    return replace(stored, note=note or walk.note)


def _formless(value: object) -> NotStorable:
    return NotStorable(
        f"a {type_name(value)} has no file form: give its data as text, bytes, a dict or list, an array or a Path"
    )


def _says_only_its_type(tree: object, value: object) -> bool:
    if isinstance(tree, str):
        return tree.startswith("<") and not isinstance(value, str)
    return isinstance(tree, dict) and "$array" in tree


class _Walk:
    """Copy a JSON tree with every text scrubbed and every number one that JSON has."""

    def __init__(self, scrub: Scrub) -> None:
        self._scrub = scrub
        self._left = MAX_NODES
        self.note: str | None = None

    def visit(self, value: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise NotStorable(f"it holds more than {MAX_NODES} values: store it as bytes or as an array")
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, str):
            return _utf8(self._scrub(value)).decode()
        if isinstance(value, float):
            if math.isfinite(value):
                return value
            self.note = "nonfinite"
            return None
        if isinstance(value, dict):
            return {self._key(key): self.visit(item) for key, item in cast("dict[Any, Any]", value).items()}
        if isinstance(value, list | tuple):
            return [self.visit(item) for item in cast("list[Any]", value)]
        raise _formless(value)

    def _key(self, key: object) -> str:
        if isinstance(key, str):
            return _utf8(self._scrub(key)).decode()
        raise NotStorable(f"it has a key of type {type_name(key)}; JSON has only text")


def _store_file(root: SafeRoot, folder: str, name: str, source: "os.PathLike[str]", scrub: Scrub) -> StoredArtifact:
    # The caller names this very file, so links to it are followed, to what they lead to now.
    real = Path(os.path.realpath(source))
    suffix = file_name(f"x{real.suffix}")[1:]
    with SafeRoot(real.parent).open_read(real.name) as file:
        media_type = MEDIA_TYPES.get(suffix.lower())
        if media_type:
            return _placed(
                root, folder, name, suffix, source, "file", media_type, lambda: read_chunks(file, MAX_MEDIA_BYTES)
            )
        data = scrubbed(b"".join(read_chunks(file, MAX_SCRUBBED_BYTES)), scrub)
    return _placed(root, folder, name, suffix, source, "file", "application/octet-stream", lambda: (data,))


def _store_array_and_figure(root: SafeRoot, folder: str, name: str, value: object, is_stem: bool) -> StoredArtifact:
    stem = name if is_stem else _without(".npy", name)
    stored, array, file_stem = store_with_array(root, folder, stem, value)
    if array is None:
        return stored
    figure = render_figure(root, folder, name, array, file_stem=file_stem)
    return replace(stored, figure=figure.path, figure_sha256=figure.sha256) if figure else stored


def _picture(value: Any) -> bytes | None:
    """Return the PNG of a figure or image; None when the object is neither. Loads neither library."""
    figure_module = sys.modules.get("matplotlib.figure")
    if figure_module is not None and isinstance(value, figure_module.FigureBase):
        return figure_bytes(value.figure)
    image_module = sys.modules.get("PIL.Image")
    if image_module is not None and isinstance(value, image_module.Image):
        picture = io.BytesIO()
        value.save(picture, format="PNG")
        return picture.getvalue()
    return None


def _placed(
    root: SafeRoot, folder: str, name: str, suffix: str, value: object, kind: Kind, media_type: str, chunks: Chunks
) -> StoredArtifact:
    placed = place(root, folder, _without(suffix, name), suffix, chunks)
    return StoredArtifact(
        kind, type_name(value), placed.path, media_type, sha256=placed.sha256, size_bytes=placed.size_bytes
    )


def _without(suffix: str, name: str) -> str:
    """Return a name without the suffix that its file gets, in any case; a name that is nothing else stays."""
    return name[: -len(suffix)] if suffix and name.lower().endswith(suffix.lower()) and name[: -len(suffix)] else name


def scrubbed(data: bytes, scrub: Scrub) -> bytes:
    """Scrub bytes as the text they are; as Latin-1, which loses no byte, when they are no UTF-8."""
    try:
        text, encoding = data.decode(), "utf-8"
    except UnicodeDecodeError:
        text, encoding = data.decode("latin-1"), "latin-1"
    clean = scrub(text)
    return data if clean == text else clean.encode(encoding, "replace")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Through UTF-16 because halves of one character that a C library split come together again there.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
