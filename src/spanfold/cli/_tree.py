"""Draw a run directory as a tree, with what each part is for."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from spanfold.cli._table import Cell, Column, Row
from spanfold.cli._text import count, size
from spanfold.fs import SafeRoot

COLUMNS: Final = (Column("file", least=24), Column("size", ">"), Column("what it is", least=20, drop=1))

_WHAT: Final = (
    (r"journal", "every record, chained by hash: the truth"),
    (r"run\.json", "the run: facts, totals, what is still open"),
    (r"M1", "probe: what do the failures look like?"),
    (r"M2", "screen: which signals tell failures from successes?"),
    (r"M3", "propose: what would explain that?"),
    (r"M4", "verify: does it hold on fresh cases?"),
    (r"M5", "repair: does what should help, help?"),
    (r"(M[1-5]|stages/[^/]+)/log\.json", "its model calls, agents, scores, events"),
    (r".*artifacts", "arrays, pictures and data, with their hashes in the records"),
    (r"timings\.jsonl", "one row for each span that ended"),
    (r"langfuse_trace\.json", "the trace for an import into Langfuse"),
)


class _Node(NamedTuple):
    path: str
    is_dir: bool
    n_files: int
    size_bytes: int


def tree_rows(run_dir: Path) -> list[Row]:
    """Return the two upper levels of a run directory; hidden entries are left out."""
    nodes = list(_nodes(run_dir))
    tops = sorted((node for node in nodes if "/" not in node.path), key=lambda node: (_order(node.path), node.path))
    rows: list[Row] = [(Cell(f"{run_dir}/", "bold"), size(sum(top.size_bytes for top in tops)), "")]
    for place, top in enumerate(tops):
        last = place == len(tops) - 1
        branch = "└── " if last else "├── "
        below = [node for node in nodes if node.path.startswith(f"{top.path}/")] if top.path != "journal" else []
        if len(below) == 1 and not below[0].is_dir:
            rows.append((f"{branch}{below[0].path}", size(top.size_bytes), _what(top.path)))
            continue
        rows.append(_row(top, branch))
        for number, node in enumerate(below):
            twig = "└── " if number == len(below) - 1 else "├── "
            rows.append(_row(node, ("    " if last else "│   ") + twig))
    return rows


def _order(path: str) -> int:
    return next((place for place, (pattern, _) in enumerate(_WHAT) if re.fullmatch(pattern, path)), len(_WHAT))


def _what(path: str) -> str:
    return next((told for pattern, told in _WHAT if re.fullmatch(pattern, path)), "")


def _row(node: _Node, branch: str) -> Row:
    name = node.path.rpartition("/")[2]
    files = f" ({count(node.n_files, 'file')})" if node.is_dir else ""
    return f"{branch}{name}{'/' if node.is_dir else ''}{files}", size(node.size_bytes), _what(node.path)


def _nodes(run_dir: Path) -> Iterator[_Node]:
    """Yield files and folders of the two upper levels, folders with what is in them at any depth."""
    files: dict[str, tuple[int, int]] = {}
    folders: dict[str, tuple[int, int]] = {}
    for entry in SafeRoot(run_dir.resolve()).walk():
        parts = entry.path.split("/")
        if parts[-1].startswith("."):
            entry.skip = True
        elif not entry.is_dir:
            if len(parts) <= 2:
                files[entry.path] = 1, entry.st.st_size
            for depth in range(1, min(len(parts), 3)):
                folder = "/".join(parts[:depth])
                n_files, n_bytes = folders.get(folder, (0, 0))
                folders[folder] = n_files + 1, n_bytes + entry.st.st_size
    for path in sorted({*files, *folders}):
        is_dir = path in folders
        yield _Node(path, is_dir, *(folders[path] if is_dir else files[path]))
