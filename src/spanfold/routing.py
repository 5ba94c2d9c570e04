"""Which document and folder a stage name leads to (DL section 5).

The letter m and a digit 1 to 5 name a stage only as a word of their own, with
anything but a letter or digit around it: `m1_probe`, `codegen_m2_stats` and
`M4_SURGERY` do, `team5`, `llm3` and `m12` do not (DL-036).
"""

import re
from typing import Final, Literal, NamedTuple

from spanfold.fs import safe_name

Stage = Literal["M1", "M2", "M3", "M4", "M5"]
STAGES: Final[tuple[Stage, ...]] = ("M1", "M2", "M3", "M4", "M5")
RUN_DOCUMENT: Final = "run.json"
RUN_FACTS: Final = "spanfold.json"
"""Document of what spanfold knows of a run whose run.json has only what a contract of others says."""
RUN_LABEL: Final = "RUN"
OTHER_STAGES: Final = "stages/"
"""Begins the path of the document of every stage that is none of M1 to M5."""

_STAGE: Final = re.compile(r"(?<![^\W_])m([1-5])(?![^\W_])", re.IGNORECASE)
_ALIASES: Final[dict[str, Stage]] = {"fix_pipeline": "M5", "fix": "M5", "explore": "M2"}


class Place(NamedTuple):
    """Where the records of a stage name go."""

    document: str
    """Path in the run directory."""
    label: str
    """`stage` of the records: `RUN`, `M1` to `M5`, or the name as it was given."""

    @property
    def folder(self) -> str:
        """What stands before the name of a file of the stage in the run directory: `M1/`, and nothing under no stage."""
        return "".join(self.document.rpartition("/")[:2])


RUN: Final = Place(RUN_DOCUMENT, RUN_LABEL)


def route(tag: str | None) -> Stage | None:
    """Return the diagnose stage a tag names, None when it names none."""
    if not tag:
        return None
    found = _STAGE.search(tag)
    if found:
        return STAGES[int(found[1]) - 1]
    return _ALIASES.get(tag.strip().lower())


def place(stage: str | None) -> Place:
    """Return the document and label of records that stand under a stage name, or under none."""
    if not stage:
        return RUN
    routed = route(stage)
    if routed:
        return Place(f"{routed}/log.json", routed)
    return Place(f"{OTHER_STAGES}{safe_name(stage)}/log.json", stage)
