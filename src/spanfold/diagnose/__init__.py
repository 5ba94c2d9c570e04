"""The diagnose-loop recorder: what an existing loop calls, on the journal of spanfold.

Drop-ins for the logger of a five-stage diagnose loop and its helpers (docs/diagnose.md).
"""

from spanfold.diagnose._logger import RunLogger
from spanfold.diagnose._narrator import LoopNarrator

__all__ = ["LoopNarrator", "RunLogger"]
