"""What two sides of a comparison must have in common for their times to mean the same.

Facts come from `run.json` beside the timings: `run` says where and with what a
run was made, `run_start` also what its program said about it. Models come from
the rows too. A `run.json` is free to lack any of them, so a fact is one of three:
the same on both sides, different, or unknown; unknown ones are listed, never
taken as same.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

import orjson

from spanfold.errors import SpanfoldError
from spanfold.fs import SafeRoot
from spanfold.timings.rows import TimingRow

RUN_JSON_LIMIT_BYTES: Final = 64 << 20
"""A larger `run.json` is not read for its facts."""

SETTINGS: Final = "settings"
"""The fact that is a table of its own: settings are compared one by one."""

_SPELLINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "model": ("model", "models", "served_model", "requested_model", "gen_ai.request.model", "gen_ai.response.model"),
    "host": ("host", "hostname", "host.name"),
    "commit": ("commit", "git_commit", "git.commit", "vcs.ref.head.revision"),
    "spanfold_version": ("spanfold_version", "spanfold.version"),
    "python_version": ("python_version", "python", "process.runtime.version"),
}
_TABLES: Final = ("settings", "config")
_SCALARS: Final = (str, int, float, bool)
_FACT_OF: Final[Mapping[str, str]] = {
    spelling: fact for fact, spellings in _SPELLINGS.items() for spelling in spellings
}
# What a recorder writes into every run_start of its own accord; everything else there is what the program told of itself.
_HOUSEKEEPING: Final = frozenset(
    [
        "event",
        "schema_version",
        "event_seq",
        "trace_id",
        "span_id",
        "stage",
        "cycle",
        "ts",
        "start",
        "end",
        "seconds",
        "self_seconds",
        "status",
        "name",
        "pid",
        "argv",
        "otel_trace_id",
        "otel_span_id",
        "otel_parent_span_id",
    ]
)

FACTS: Final = (*_SPELLINGS, SETTINGS)
"""Every fact that is compared."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of how one run was made."""

    values: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """Fact -> the values it had in the run; a run can use several models."""
    settings: Mapping[str, str] | None = None
    """Dotted name of each setting -> its value as text; None when the run does not tell."""


def read_facts(run_dir: Path | None, rows: Iterable[TimingRow]) -> RunFacts:
    """Collect the facts of one run.

    Args:
        run_dir: Where its `run.json` may be; None when there is nowhere to look.
        rows: Its timing rows, for the models they name.
    """
    document = _read_run_json(run_dir)
    values: dict[str, set[str]] = {}
    settings: dict[str, str] | None = {} if isinstance(document.get("run_start"), dict) else None
    for part in ("run", "run_start"):
        for names, value in _leaves(document.get(part)):
            table = next((at for at, name in enumerate(names) if name in _TABLES), None)
            if table is not None:
                settings = {} if settings is None else settings
                settings[".".join(names[table + 1 :])] = str(value)
            elif fact := _fact(names):
                values.setdefault(fact, set()).add(str(value))
            elif settings is not None and part == "run_start" and names and names[0] not in _HOUSEKEEPING:
                settings[".".join(names)] = str(value)
    models = {model for row in rows if (model := _model(row)) is not None}
    if models:
        values["model"] = models
    return RunFacts({fact: frozenset(found) for fact, found in values.items()}, settings)


def _model(row: TimingRow) -> str | None:
    """Return the model a row names: the one that answered, where that is known."""
    return next((m for key in ("served_model", "model") if isinstance(m := row.attributes.get(key), str)), None)


def _read_run_json(run_dir: Path | None) -> Mapping[str, object]:
    if run_dir is None:
        return {}
    try:
        root = SafeRoot(run_dir.resolve())
        if root.stat("run.json").st_size > RUN_JSON_LIMIT_BYTES:
            return {}
        document: object = orjson.loads(root.read_bytes("run.json"))
    except (OSError, SpanfoldError, orjson.JSONDecodeError):
        return {}
    return cast("dict[str, object]", document) if isinstance(document, dict) else {}


def _leaves(value: object) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield every scalar with the names that lead to it; the items of a list share the name of the list."""
    # A stack of our own: the depth of a document from outside must not become ours.
    todo: list[tuple[tuple[str, ...], object]] = [((), value)]
    while todo:
        names, item = todo.pop()
        if isinstance(item, dict):
            todo.extend(((*names, key), inner) for key, inner in cast("dict[str, object]", item).items())
        elif isinstance(item, list):
            todo.extend((names, inner) for inner in cast("list[object]", item))
        elif isinstance(item, _SCALARS):
            yield names, item


def _fact(names: Sequence[str]) -> str | None:
    """Return the fact a dotted name stands for: by its whole, or by its end below any group."""
    for start in range(len(names)):
        fact = _FACT_OF.get(".".join(names[start:]))
        if fact is not None:
            return fact
    return None
