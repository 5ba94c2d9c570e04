"""What is on disk when the call returns: events, scores and artifacts of the current span."""

import enum
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from spanfold import names
from spanfold.fs import SafeRoot
from spanfold.instrument._current import Near, current_parent
from spanfold.instrument._guard import losing_only, lost
from spanfold.instrument._span import RecordedSpan
from spanfold.instrument._state import state
from spanfold.instrument._stored import as_not_finite, as_number, as_text
from spanfold.journal import AttributeValue, field_key, store, to_tree
from spanfold.routing import place

_INT64: Final = 1 << 63
_LONGEST_NAME: Final = 200
"""Characters of a name in a line of the log."""


def score(name: str, value: float | bool | str, *, comment: str | None = None, **fields: Any) -> None:
    """Record a score of the current span, on disk when this returns.

    Args:
        name: What is scored.
        value: A number or boolean; a text is a label, and so are `NaN`, `Infinity` and `-Infinity`, since no JSON number is.
        comment: Why.
        fields: Further facts.
    """
    with losing_only("scores"):
        near, parent_id = current_parent()
        if near is None:
            return
        attributes: dict[str, AttributeValue] = {names.SCORE_NAME: as_text(name)}
        number = as_number(value)
        if number is not None:
            attributes[names.SCORE_VALUE] = number if -_INT64 <= number < _INT64 else float(number)
        elif issubclass(type(value), (str, enum.Enum)):
            attributes[names.SCORE_LABEL] = as_text(value)
        elif (label := as_not_finite(value)) is not None:
            attributes[names.SCORE_LABEL] = label
        else:
            called = as_text(name)[:_LONGEST_NAME]
            lost(
                "scores that are no number, boolean or text",
                name=state.gate.scrub_text(called) if state.gate else called,
            )
            return
        if comment is not None:
            attributes[names.SCORE_COMMENT] = comment
        _write_event(near, parent_id, names.EVENT_SCORE, attributes, fields)


def event(name: str, /, **fields: Any) -> None:
    """Record a moment of the current span, on disk when this returns."""
    with losing_only("events"):
        near, parent_id = current_parent()
        if near is not None:
            _write_event(near, parent_id, as_text(name), {}, fields)


def _write_event(
    near: Near, parent_id: bytes, name: str, attributes: dict[str, AttributeValue], fields: Mapping[str, Any]
) -> None:
    placed: dict[str, AttributeValue] = {}
    if near.stage is not None:
        placed[names.STAGE] = near.stage
    if near.cycle is not None:
        placed[names.CYCLE] = near.cycle
    notes: dict[str, str] = {}
    for field, value in fields.items():
        key = field_key(field)
        attributes[key], note = store(value)
        if note:
            notes[key] = note
    recording = near.run
    body, is_clean = recording.journal.encoder.event(
        trace_id=recording.trace_hex,
        span_id=parent_id or near._id,  # pyright: ignore[reportPrivateUsage]  # same room
        name=name,
        time_ns=time.time_ns(),
        attributes={**placed, **attributes},
        notes=notes,
    )
    recording.journal.event(body, is_clean)
    recording.recorded("event")


def artifact(name: str, value: Any) -> Path | None:
    """Store an object as a file of the run, with its hash on the current span.

    Arrays and tensors become `.npy` (without pickle) and, where the name says
    what they show, a figure; figures become PNG; dict and list JSON; text and
    bytes files; a `Path` is copied. Anything else is recorded as not stored.

    Args:
        name: What it is; part of the file name.
        value: The object.

    Returns:
        The file, None when nothing was stored.
    """
    with losing_only("artifacts"):
        near, parent_id = current_parent()
        if near is None:
            return None
        return _store_artifact(near, parent_id, as_text(name), value)
    return None


def _store_artifact(near: Near, parent_id: bytes, name: str, value: Any) -> Path | None:
    from spanfold.artifacts import store as store_file

    assert state.gate is not None
    recording = near.run
    gate = state.gate
    # As the record of the stage has it: a folder name is read like any text.
    folder = f"{place(near.stage and gate.scrub_text(near.stage)).folder}artifacts"
    stem = name if near.cycle is None else f"c{near.cycle}_{name}"

    def to_clean_tree(data: Any) -> tuple[Any, str | None]:
        tree, note = to_tree(data)
        return gate.scrub_value(tree), note

    root = SafeRoot(recording.dir, create=True)
    stored = store_file(root, folder, stem, value, scrub=gate.scrub_text, to_tree=to_clean_tree)
    facts = stored.to_dict()
    if isinstance(near, RecordedSpan) and not near.ended:
        near.add_artifact({"name": name, **facts})
        if recording.content != "all":
            near.set_attribute(names.CONTENT, "local")  # or a destination would be told of a file it never gets
    stays: dict[str, AttributeValue] = {} if recording.content == "all" else {names.CONTENT: "local"}
    _write_event(near, parent_id, names.EVENT_ARTIFACT, stays, {"artifact": name, **facts})
    return recording.dir / stored.path if stored.path else None
