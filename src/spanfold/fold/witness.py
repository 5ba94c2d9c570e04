"""Tell a journal that was cut from documents that are ahead of it.

Documents are made from the journal, so nothing that they hold is missing from it
unless bytes of it are gone: cut off, or lost with the power while the documents
were saved. Of a sealed run the seal says so; before that, only the documents do.
"""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from spanfold.errors import UnsafeEntryError
from spanfold.fold.timings import LOG
from spanfold.fs import SafeRoot
from spanfold.journal import Finding, JournalVerdict, documented_run, journal_files, load, merged, verify_journal
from spanfold.model import Span
from spanfold.routing import RUN_DOCUMENT

_END_BYTES: Final = 64 * 1024
_NO_COPY: Final = (
    "The documents may hold what is gone, so keep them: `spanfold run fold --into` makes documents of what is left in another "
    "folder, and `--force` replaces them."
)


def require_whole(run_dir: Path) -> None:
    """Refuse a journal that is damaged, or of which the documents hold more than it does.

    Raises:
        JournalMissing: There is no journal.
        JournalCorrupt: Recorded bytes are changed or gone.
        UnsafeEntryError: The journal folder or a file of it is a link.
    """
    verify_with_documents(run_dir).require_undamaged(_NO_COPY)


def verify_with_documents(run_dir: Path) -> JournalVerdict:
    """Verify a journal, and when no seal vouches for its end, ask the documents whether it is whole.

    Asked are the end of the run in `run.json` and the last row of `timings.jsonl`.

    Raises:
        JournalMissing: There is no journal.
        UnsafeEntryError: The journal folder or a file of it is a link.
    """
    # Before the journal, which may grow meanwhile.
    witnesses = {key: name for name, key in ((RUN_DOCUMENT, _ended_run(run_dir)), (LOG, _last_row(run_dir))) if key}
    verdict = verify_journal(run_dir)
    if verdict.sealed or verdict.damage is not None or not witnesses:
        return verdict
    for record in merged(run_dir):
        if isinstance(record, Span):
            witnesses.pop((record.trace_id, record.span_id), None)
    if not witnesses:
        return verdict
    # Which of several files was cut is not known; the first began the run.
    path = journal_files(run_dir)[0]
    document = next(iter(witnesses.values()))
    detail = f"expected every span that {document} was made from, found none of one that it says has ended"
    found = Finding("truncated", path, path.lstat().st_size, 0, detail)
    return replace(verdict, findings=(*verdict.findings, found))


_Key = tuple[str, str]


def _ended_run(run_dir: Path) -> _Key | None:
    run: Mapping[str, Any] = {}
    with contextlib.suppress(UnsafeEntryError, OSError):
        run = documented_run(run_dir)
    return _key(run.get("otel_trace_id"), run.get("otel_span_id")) if run.get("end") else None


def _last_row(run_dir: Path) -> _Key | None:
    try:
        with SafeRoot(run_dir.resolve()).open_read(LOG) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _END_BYTES))
            lines = file.read(_END_BYTES).splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        row: Any = load(whole[-1]) if whole else None
    except (UnsafeEntryError, OSError, ValueError):
        return None
    if not isinstance(row, dict):
        return None
    found = cast("dict[str, Any]", row)
    return _key(found.get("trace_id"), found.get("span_id"))


def _key(trace_id: object, span_id: object) -> _Key | None:
    return (trace_id, span_id) if type(trace_id) is str and type(span_id) is str else None
