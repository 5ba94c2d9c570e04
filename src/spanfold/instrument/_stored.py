"""What callers hand over, in the form it is recorded in."""

import decimal
import fractions
import math
from collections.abc import Mapping
from typing import Any

from spanfold.instrument._guard import losing_only
from spanfold.journal import AttributeValue, JsonText, dump, field_key, load, store, to_tree

FIELD_KEYS: dict[str, str] = {}
"""Attribute keys of fields that were asked for, by field."""


def attribute_key(name: str) -> str:
    """Return the attribute key of a field. Remembered."""
    key = FIELD_KEYS.get(name)
    if key is None:
        key = field_key(name)
        if len(FIELD_KEYS) < 4096 and len(name) <= 256:
            FIELD_KEYS[name] = key
    return key


def as_text(value: Any) -> str:
    """Return a name, whatever it was given as: text as it is, a member of a text enum by its value, else JSON text."""
    if type(value) is str:
        return value
    tree, _ = to_tree(value, max_nodes=100, max_text=4_096)
    return tree if type(tree) is str else dump(tree)


def stored_attributes(attributes: Mapping[str, Any] | None) -> tuple[dict[str, AttributeValue], dict[str, str]]:
    """Return attributes of the OpenTelemetry API as they are recorded, and notes; what is no mapping is lost."""
    stored: dict[str, AttributeValue] = {}
    notes: dict[str, str] = {}
    if attributes:
        with losing_only("attribute values"):
            for given, value in attributes.items():
                key = as_text(given)
                stored[key], note = store(value)
                if note:
                    notes[key] = note
    return stored, notes


def as_number(value: Any) -> int | float | bool | None:
    """Return a number in Python's own type, also of numpy and of `decimal`; None for what is none, NaN included."""
    number = _python_number(value)
    return None if type(number) is float and not math.isfinite(number) else number


def as_not_finite(value: Any) -> str | None:
    """Return `NaN`, `Infinity` or `-Infinity` for a number that is that; None for anything else."""
    number = _python_number(value)
    if type(number) is not float or math.isfinite(number):
        return None
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _python_number(value: Any) -> int | float | bool | None:
    stored, note = store(value)
    if note == "nonfinite" and stored == "null":
        # Of other types it is numpy's own.
        return float.__float__(value) if issubclass(type(value), float) else float(value)
    if type(stored) is JsonText:
        stored = load(str.__str__(stored))
        if type(stored) is str and type(value) in (decimal.Decimal, fractions.Fraction):
            stored = float(value)
    if type(stored) is float or type(stored) is bool:
        return stored
    # Beyond what a float holds it is no measurement, and nobody reads it back.
    return stored if type(stored) is int and stored.bit_length() <= 1_023 else None
