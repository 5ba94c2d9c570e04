"""Read what became of a run's records at destinations: the files of `journal/.deliver` (docs/delivery.md).

Nothing is changed. A run that has no such files was sent nowhere so far.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import orjson

from spanfold.errors import SpanfoldError
from spanfold.fs import SafeRoot
from spanfold.journal import Tail, journal_files

_FOLDER: Final = "journal/.deliver"
_ACKED: Final = ".ack.jsonl"
_REFUSED: Final = ".refused.jsonl"
_SPAN: Final = b'{"resourceSpans"'


@dataclass(frozen=True, slots=True)
class Backlog:
    """What one destination has not got of one run."""

    key: str
    """Of the destination: its name, and eight digits that stand for its address."""
    refused: int
    """Spans it refused for good."""
    waiting: int
    """Spans it has neither acknowledged nor refused."""
    reason: str
    """Of the last refusal."""

    @property
    def destination(self) -> str:
        """Name of the destination."""
        return self.key.partition("-")[0]


def backlogs(run_dir: Path) -> list[Backlog]:
    """Return a backlog for each destination that was ever sent records of a run."""
    try:
        found = sorted(entry.name for entry in (run_dir / _FOLDER).iterdir())
    except OSError:
        return []
    keys = dict.fromkeys(name.removesuffix(end) for name in found for end in (_ACKED, _REFUSED) if name.endswith(end))
    return [_backlog(run_dir, key) for key in keys]


def _backlog(run_dir: Path, key: str) -> Backlog:
    refused, reason = refusals(run_dir, key)
    return Backlog(key, refused, _waiting(run_dir, key), reason)


def refusals(run_dir: Path, key: str) -> tuple[int, str]:
    """Return how many spans of a run a destination has refused for good so far, and why the last of them."""
    total, reason = 0, ""
    for line in _lines(run_dir, key + _REFUSED):
        spans, told = line.get("spans"), line.get("reason")
        total += spans if type(spans) is int else 1
        reason = told if type(told) is str else reason
    return total, reason


def _waiting(run_dir: Path, key: str) -> int:
    acked: dict[str, int] = {}
    for line in _lines(run_dir, key + _ACKED):
        file, offset = line.get("file"), line.get("offset")
        if type(file) is str and type(offset) is int:
            acked[file] = max(acked.get(file, 0), offset)
    try:
        return sum(
            line.data.startswith(_SPAN)
            for path in journal_files(run_dir / "journal")
            for line in Tail(path, acked.get(path.name, 0)).lines()
        )
    except (OSError, SpanfoldError):
        return 0  # `run verify` says what is wrong with the journal


def _lines(run_dir: Path, name: str) -> Iterator[dict[str, Any]]:
    try:
        content = SafeRoot(run_dir.resolve()).read_bytes(f"{_FOLDER}/{name}")
    except (OSError, SpanfoldError):
        return
    for line in content.split(b"\n"):
        try:
            found: Any = orjson.loads(line)
        except ValueError:
            continue  # the empty one at the end, or one that a crash has torn
        if isinstance(found, dict):
            yield cast("dict[str, Any]", found)
