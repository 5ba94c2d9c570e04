"""The journal: records to OTLP JSON lines and back, one hash-chained file per writing process.

Format: docs/formats/journal-v1.md. Forms of values: docs/formats/values.md.
Reading needs no OpenTelemetry SDK.
"""

from spanfold.journal._decode import NotOtlp, any_value, content, decode_line, fields, line_seal, value_of
from spanfold.journal._encode import EMPTY, STRUCTURAL, AttributeValue, Encoder, Fragment, field_key, field_name
from spanfold.journal._heads import file_heads
from spanfold.journal._messages import encode_messages
from spanfold.journal._scrub import WITHHELD, Gate
from spanfold.journal._values import JsonText, Stored, clean_text, dump, load, store, to_json, to_tree
from spanfold.journal._writer import SUFFIX, Frame, Journal, Position, Stats, describe, genesis, writer_name

__all__ = [
    "EMPTY",
    "STRUCTURAL",
    "SUFFIX",
    "WITHHELD",
    "AttributeValue",
    "Encoder",
    "Fragment",
    "Frame",
    "Gate",
    "Journal",
    "JsonText",
    "NotOtlp",
    "Position",
    "Stats",
    "Stored",
    "any_value",
    "clean_text",
    "content",
    "decode_line",
    "describe",
    "dump",
    "encode_messages",
    "field_key",
    "field_name",
    "file_heads",
    "fields",
    "genesis",
    "line_seal",
    "load",
    "store",
    "to_json",
    "to_tree",
    "value_of",
    "writer_name",
]
