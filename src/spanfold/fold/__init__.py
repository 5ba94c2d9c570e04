"""The fold: documents of a run, made from its journal and from nothing else.

`Engine` keeps them up to date while the run is recorded; `fold_run`, `follow`
and `check_documents` do it for a run of another process or of the past.
How: docs/fold.md. What is in the documents: docs/formats/run-directory.md.
"""

from spanfold.fold.check import DifferenceKind, DocumentDifference, check_documents
from spanfold.fold.engine import Engine, FoldResult
from spanfold.fold.family import Bucket, Family, Output, Urgency
from spanfold.fold.native import urgency
from spanfold.fold.routing import place, route
from spanfold.fold.runs import fold_run, follow

__all__ = [
    "Bucket",
    "DifferenceKind",
    "DocumentDifference",
    "Engine",
    "Family",
    "FoldResult",
    "Output",
    "Urgency",
    "check_documents",
    "fold_run",
    "follow",
    "place",
    "route",
    "urgency",
]
