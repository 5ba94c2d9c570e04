"""The fold: documents of a run, made from its journal and from nothing else.

`Engine` keeps them up to date while the run is recorded; `fold_run`, `follow`
and `check_documents` do it for a run of another process or of the past.
`list_runs`, `show_run`, `tail_run` and `verify_run` answer questions about runs
and write nothing.
How: docs/fold.md. What is in the documents: docs/formats/run-directory.md.
"""

from spanfold.fold.check import DifferenceKind, DocumentDifference, check_documents, is_document
from spanfold.fold.diagnose_overview import LoopEvent, LoopHypothesis, LoopOverview
from spanfold.fold.engine import Engine, FoldResult
from spanfold.fold.family import Bucket, Family, Output, Urgency
from spanfold.fold.listing import ListedRun, find_runs, list_runs
from spanfold.fold.native import urgency
from spanfold.fold.overview import (
    ArtifactFile,
    CallWork,
    ErrorGroup,
    JournalFile,
    OpenWork,
    RunOverview,
    ScoreSeries,
    StageWork,
)
from spanfold.fold.presence import Presence
from spanfold.fold.runs import fold_run, follow
from spanfold.fold.show import show_run
from spanfold.fold.tail import Moment, tail_run
from spanfold.fold.verify import ArtifactDifference, RunVerdict, verify_run
from spanfold.fold.witness import require_whole, verify_with_documents

__all__ = [
    "ArtifactDifference",
    "ArtifactFile",
    "Bucket",
    "CallWork",
    "DifferenceKind",
    "DocumentDifference",
    "Engine",
    "ErrorGroup",
    "Family",
    "FoldResult",
    "JournalFile",
    "ListedRun",
    "LoopEvent",
    "LoopHypothesis",
    "LoopOverview",
    "Moment",
    "OpenWork",
    "Output",
    "Presence",
    "RunOverview",
    "RunVerdict",
    "ScoreSeries",
    "StageWork",
    "Urgency",
    "check_documents",
    "find_runs",
    "fold_run",
    "follow",
    "is_document",
    "list_runs",
    "require_whole",
    "show_run",
    "tail_run",
    "urgency",
    "verify_run",
    "verify_with_documents",
]
