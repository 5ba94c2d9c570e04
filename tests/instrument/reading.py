"""Read back what a run wrote, line by line, from its files; and run whole programs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from spanfold.journal import decode_line
from spanfold.model import Event, Record, Span

Lost = Callable[[], dict[str, int]]


def records(run_dir: Path) -> list[Record]:
    """Return every record of a run: file by file in the order of their names, each in written order."""
    found: list[Record] = []
    for path in sorted((run_dir / "journal").glob("*.otlp.jsonl")):
        data = path.read_bytes()
        assert data.endswith(b"\n")
        for line in data.split(b"\n")[:-1]:
            found.extend(decode_line(line + b"\n", path))
    return found


def spans(run_dir: Path, name: str | None = None) -> list[Span]:
    """Return the ended spans of a run in the order they ended, all or those of one name."""
    return [r for r in records(run_dir) if isinstance(r, Span) and name in (None, r.name)]


def span(run_dir: Path, name: str) -> Span:
    """Return the only span of this name."""
    (found,) = spans(run_dir, name)
    return found


def events(run_dir: Path, name: str | None = None) -> list[Event]:
    """Return the events of a run in written order, all or those of one name."""
    return [r for r in records(run_dir) if isinstance(r, Event) and name in (None, r.name)]


def tree(run_dir: Path) -> dict[str, Any]:
    """Return the spans of a run as nested dictionaries of names; every name must be used once."""
    found = spans(run_dir)
    assert len({s.span_id for s in found}) == len(found) == len({s.name for s in found})
    known = {s.span_id for s in found}
    below: dict[str, list[Span]] = {}
    for s in found:
        assert not s.parent_span_id or s.parent_span_id in known, f"{s.name} has a parent that is not recorded"
        below.setdefault(s.parent_span_id, []).append(s)

    def nested(span_id: str) -> dict[str, Any]:
        return {s.name: nested(s.span_id) for s in sorted(below.get(span_id, []), key=lambda s: s.name)}

    return nested("")


def names_of(found: list[Span]) -> list[str]:
    return [s.name for s in found]


class Outcome(NamedTuple):
    """How a program ended."""

    code: int
    out: str
    err: str


def program(script: str, *, flags: tuple[str, ...] = (), **env: str) -> Outcome:
    """Run a script in an interpreter of its own, with the recorder alone: documents and delivery have their own tests."""
    alone = "import spanfold\nfrom spanfold.instrument import state\nstate.connector = None\n"
    result = subprocess.run(
        [sys.executable, *flags, "-c", alone + script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env},
    )
    return Outcome(result.returncode, result.stdout, result.stderr)
