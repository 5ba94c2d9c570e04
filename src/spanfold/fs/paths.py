"""Turn names from outside into names that cannot leave their folder.

Pure functions over text: nothing here touches a disk. `split_relative` is the
door every relative path of `spanfold.fs` goes through; `safe_name` makes one
file name out of any text.
"""

import hashlib
import os
import re
from typing import Final

from spanfold.errors import UnsafePathError

NAME_MAX_BYTES: Final = 255
"""int, bytes. Longest name of one component on the file systems we know."""

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_TEMPORARY: Final = re.compile(r"\..*(\.\d+\.[0-9a-f]{8}\.tmp|\.tmp-[0-9a-f]{16})", re.DOTALL)
# Windows opens a device for these, whatever follows the first dot.
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9]|conin\$|conout\$)(\..*)?", re.IGNORECASE)


def split_relative(rel: str) -> tuple[str, ...]:
    r"""Split a relative path into its components, or refuse it.

    Args:
        rel: Components separated by `/`, on every platform.

    Returns:
        At least one component, each a plain file name.

    Raises:
        UnsafePathError: The path is empty or absolute, or a component is
            empty, `.`, `..`, longer than 255 bytes, not encodable, or holds
            NUL (on Windows also `\` or `:`).
    """
    parts = tuple(rel.split("/"))
    for part in parts:
        problem = _problem_of(part)
        if problem:
            raise UnsafePathError(
                f"{printable(rel)}: expected a relative path of plain names, found {problem}. "
                "Use names joined by '/', without '..', inside the folder."
            )
    return parts


def _problem_of(part: str) -> str:
    if not part:
        return "an empty component"
    if part in (".", ".."):
        return f"the component {part!r}"
    if "\0" in part:
        return "a NUL character"
    if os.name == "nt" and re.search(r"[\\:]", part):
        return "a drive or separator character"
    try:
        length = len(os.fsencode(part))
    except UnicodeEncodeError:
        return "text that is no file name"
    if length > NAME_MAX_BYTES:
        return f"a component of {length} bytes (at most {NAME_MAX_BYTES})"
    return ""


def printable(text: str) -> str:
    """Quote a path for a message: control characters escaped, at most about 200 characters."""
    shown = text if len(text) <= 200 else f"{text[:120]}...{text[-60:]}"
    return ascii(shown)


def safe_name(text: str, *, limit: int = 64) -> str:
    """Make a file name out of any text, the same one for the same text.

    Keeps ASCII letters, digits, `.`, `_` and `-`. When anything had to change
    or to be cut, `-` and the first 8 hex digits of the text's SHA-256 follow,
    so that different texts get different names.

    Args:
        text: Anything; empty is allowed.
        limit: Longest result in characters, at least 16.

    Returns:
        A name that is no `.` or `..`, is not hidden, does not end in a dot and
        is no device on Windows.
    """
    if limit < 16:
        raise ValueError(f"limit: expected at least 16 characters, found {limit}.")
    name = _UNSAFE.sub("_", text)
    if name.startswith("."):
        name = f"_{name[1:]}"
    if _RESERVED.fullmatch(name):
        name = f"_{name}"
    if name == text and name and len(name) <= limit and not name.endswith("."):
        return name
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name[: limit - 9] or '_'}-{digest}"


def replace_temporary(name: str) -> str:
    """Name the temporary file that will replace `name`: `.<name>.<pid>.<8 hex>.tmp`."""
    return _hidden(name, f".{os.getpid()}.{os.urandom(4).hex()}.tmp")


def create_temporary(name: str) -> str:
    """Name the temporary file that will be linked to `name`: `.<name>.tmp-<16 hex>`."""
    return _hidden(name, f".tmp-{os.urandom(8).hex()}")


def is_temporary(name: str) -> bool:
    """Tell whether a file name is one that an interrupted write of ours may have left behind."""
    return _TEMPORARY.fullmatch(name) is not None


def _hidden(name: str, suffix: str) -> str:
    # A name of 255 bytes leaves no room for the suffix; the random part keeps a shortened one unique.
    room = NAME_MAX_BYTES - 1 - len(suffix)
    return f".{os.fsdecode(os.fsencode(name)[:room])}{suffix}"
