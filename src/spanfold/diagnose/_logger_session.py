"""Open a session of a logger on a run directory, new or used (DL 1.1, 17 A-03, A-08).

A used directory is never replaced: a run that was interrupted is finished
first, and the journal of what is there goes along, so that the documents of
the new session continue those of the old ones.
"""

import hashlib
import logging
import os
import re
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

from spanfold import names
from spanfold.diagnose._logger_adopt import adopt, foreign_documents
from spanfold.diagnose._logger_run import NAME, LoopRun
from spanfold.errors import LockedError, SpanfoldError, UnsafeEntryError
from spanfold.fs import SafeRoot
from spanfold.instrument import RunPlace, state
from spanfold.journal import (
    OpenJournal,
    Tail,
    bring_home,
    claim_journal,
    journal_files,
    load,
    open_journals,
    recover_run,
    release_journal,
    take_along,
    tidy_open_journals,
)
from spanfold.routing import RUN_DOCUMENT

log = logging.getLogger("spanfold")

RUNS: Final = "runs_v2"
_HEX: Final = re.compile(r"[0-9a-f]{32}")
_MAX_SUFFIX: Final = 1_000
_told: set[Path] = set()


def default_run_dir() -> Path:
    """Return a new directory `runs_v2/<YYYYMMDD_HHMMSS>`, which is there and nobody else's."""
    stamp = f"{datetime.now():%Y%m%d_%H%M%S}"  # noqa: DTZ005 - the contract says local time
    for number in range(1, _MAX_SUFFIX):
        folder = Path(RUNS) / (stamp if number == 1 else f"{stamp}_{number}")
        try:
            SafeRoot(folder.parent.absolute(), create=True).make_dir_exclusive(folder.name)
        except FileExistsError:
            continue
        except (OSError, SpanfoldError):
            pass  # it is made when the disk takes it
        return folder
    return Path(RUNS) / f"{stamp}_{os.urandom(4).hex()}"


def trace_hex(trace_id: str) -> bytes:
    """Return the OpenTelemetry trace id for a trace id of documents (DL 17, A-09).

    A UUID without its dashes; anything else by a hash.
    """
    plain = trace_id.replace("-", "").lower()
    if _HEX.fullmatch(plain) and plain.strip("0"):
        return plain.encode()
    return hashlib.sha256(trace_id.encode("utf-8", "replace")).hexdigest()[:32].encode()


def open_session(folder: Path, trace_id: str | None, *, is_offline: bool, is_late: bool = False) -> tuple[LoopRun, str]:
    """Take a run directory and open a run in it.

    Args:
        folder: The run directory, absolute.
        trace_id: Of the documents; None for that of the run that is there, or a new one.
        is_offline: Whether nothing may be sent.
        is_late: Whether the logger was closed before. Then the journal stands in the run directory.

    Returns:
        The open run, and the trace id.

    Raises:
        LockedError: Another living logger writes to this directory.
        UnsafeEntryError: The directory holds a run that no logger of a diagnose loop recorded.
    """
    state.ready()
    if not is_late:
        _require_of_a_loop(folder)
    given = str(trace_id) if trace_id else None
    known = given or _known_trace_id(folder) or str(uuid.uuid4())
    home = claim_journal(folder, known)
    if home is not None and not is_late:
        home = _tidied(folder, home, known)
        tidy_open_journals()
        _tell_of_others(folder)
    inside = folder / "journal"
    journal = inside if home is None or is_late else home.journal
    place = RunPlace(folder, journal, trace_hex(known))
    foreign = None if is_late or journal_files(journal) else foreign_documents(folder)
    try:
        run = LoopRun(place, home, trace_id=known, is_late=is_late, is_offline=is_offline)
    except BaseException:
        if home is not None:
            release_journal(home)
        raise
    run.begin()
    if foreign:
        adopt(run, foreign)
    return run, known


def _tidied(folder: Path, home: OpenJournal, trace_id: str) -> OpenJournal | None:
    """Finish what an earlier session left, and take its journal along."""
    try:
        if journal_files(home.journal):
            release_journal(home)
            recover_run(folder)
            again = claim_journal(folder, trace_id)
            if again is None:
                return None
            home = again
        elif ((folder / "journal").is_dir() and journal_files(folder / "journal")) or bring_home(folder):
            recover_run(folder)
        take_along(home)
    except LockedError:
        raise
    except (OSError, SpanfoldError) as error:
        # The journal that is there stays where it is, and the new one begins beside it.
        log.warning("%s: what an earlier run left could not be taken along (%s).", folder, error)
    return home


def _require_of_a_loop(folder: Path) -> None:
    files = journal_files(folder) if folder.is_dir() else []
    first = next((record for path in files[:1] for record in Tail(path).read()), None)
    if first is not None and first.attributes.get(names.LAYOUT) != NAME:
        raise UnsafeEntryError(
            f"{folder}: expected a new directory, or one of a diagnose loop, found a run of another kind. "
            "Give this logger a directory of its own."
        )


def _known_trace_id(folder: Path) -> str | None:
    try:
        document: Any = load(SafeRoot(folder).read_bytes(RUN_DOCUMENT))
    except (OSError, SpanfoldError, ValueError):
        return None
    trace_id = cast("dict[str, Any]", document).get("trace_id") if isinstance(document, dict) else None
    return trace_id if isinstance(trace_id, str) and trace_id else None


def _tell_of_others(folder: Path) -> None:
    """Say once in a process which other runs were interrupted."""
    for place in open_journals():
        if place.run_dir not in _told and place.run_dir != folder and not place.is_recorded():
            _told.add(place.run_dir)
            if place.run_dir.is_dir():
                what, now = "was interrupted", f"`spanfold run recover {place.run_dir}` finishes it"
            else:
                what, now = "is gone or was moved", f"`spanfold run recover` where it is now, or remove {place.folder}"
            log.warning("%s: this run %s, and its journal is still outside of it. %s.", place.run_dir, what, now)
