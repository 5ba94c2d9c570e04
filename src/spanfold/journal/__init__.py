"""The journal: records to OTLP JSON lines and back, one hash-chained file per writing process.

Format: docs/formats/journal-v1.md. Forms of values: docs/formats/values.md.
Reading needs no OpenTelemetry SDK.
"""

from spanfold.journal._alive import boot_id, host_name, is_owner_alive, live_writer, process_start
from spanfold.journal._core import IS_NATIVE, Encoder
from spanfold.journal._decode import NotOtlp, Start, any_value, content, decode_line, fields, line_seal, value_of
from spanfold.journal._dialect import Dialect, dialect
from spanfold.journal._elsewhere import (
    OpenJournal,
    bring_home,
    claim_journal,
    journal_elsewhere,
    open_journals,
    release_journal,
    state_folders,
    take_along,
    tidy_open_journals,
)
from spanfold.journal._encode import EMPTY, STRUCTURAL, AttributeValue, Fragment, Place, field_key, field_name
from spanfold.journal._heads import file_heads
from spanfold.journal._messages import encode_messages
from spanfold.journal._reader import Damage, JournalRead, Tail, journal_files, journal_folder, merged, read_journal
from spanfold.journal._recover import EndedSpan, Recovery, SetAside, recover_run
from spanfold.journal._scrub import WITHHELD, Gate, scrub_bytes, scrub_tree
from spanfold.journal._values import JsonText, Stored, clean_text, dump, is_plain, load, store, to_json, to_tree
from spanfold.journal._verify import Finding, FindingCode, Head, JournalVerdict, combined_head, verify_journal
from spanfold.journal._witness import documented_run
from spanfold.journal._writer import SUFFIX, Frame, Journal, Position, Stats, describe, genesis, writer_name

__all__ = [
    "EMPTY",
    "IS_NATIVE",
    "STRUCTURAL",
    "SUFFIX",
    "WITHHELD",
    "AttributeValue",
    "Damage",
    "Dialect",
    "Encoder",
    "EndedSpan",
    "Finding",
    "FindingCode",
    "Fragment",
    "Frame",
    "Gate",
    "Head",
    "Journal",
    "JournalRead",
    "JournalVerdict",
    "JsonText",
    "NotOtlp",
    "OpenJournal",
    "Place",
    "Position",
    "Recovery",
    "SetAside",
    "Start",
    "Stats",
    "Stored",
    "Tail",
    "any_value",
    "boot_id",
    "bring_home",
    "claim_journal",
    "clean_text",
    "combined_head",
    "content",
    "decode_line",
    "describe",
    "dialect",
    "documented_run",
    "dump",
    "encode_messages",
    "field_key",
    "field_name",
    "fields",
    "file_heads",
    "genesis",
    "host_name",
    "is_owner_alive",
    "is_plain",
    "journal_elsewhere",
    "journal_files",
    "journal_folder",
    "line_seal",
    "live_writer",
    "load",
    "merged",
    "open_journals",
    "process_start",
    "read_journal",
    "recover_run",
    "release_journal",
    "scrub_bytes",
    "scrub_tree",
    "state_folders",
    "store",
    "take_along",
    "tidy_open_journals",
    "to_json",
    "to_tree",
    "value_of",
    "verify_journal",
    "writer_name",
]
