"""Take secrets out of texts, argument lists and nested data.

See `docs/redaction.md` for what is recognised and what is left alone. `Redactor` does the work, `Gate` stands before the
journal. The functions here are methods of `default_redactor`, the one of the process.
"""

from spanfold.redact._engine import (
    Redactor,
    default_redactor,
    redact,
    redact_argv,
    redact_dict,
    register_literal,
)
from spanfold.redact._gate import Gate
from spanfold.redact._stream import StreamRedactor
from spanfold.redact._structure import free_key

__all__ = [
    "Gate",
    "Redactor",
    "StreamRedactor",
    "default_redactor",
    "free_key",
    "redact",
    "redact_argv",
    "redact_dict",
    "register_literal",
]
