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
    stored, _ = store(value)
    if type(stored) is JsonText:
        stored = load(str.__str__(stored))
        if type(stored) is str and type(value) in (decimal.Decimal, fractions.Fraction):
            stored = float(value)
    if type(stored) is float:
        return stored if math.isfinite(stored) else None
    # Beyond what a float holds it is no measurement, and nobody reads it back.
    return stored if type(stored) is bool or (type(stored) is int and stored.bit_length() <= 1_023) else None
