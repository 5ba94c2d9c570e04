"""The diagnose-loop recorder: what an existing loop calls, on the journal of spanfold.

Drop-ins for the logger of a five-stage diagnose loop and its helpers (docs/diagnose.md).
"""

from spanfold.diagnose._backfill import backfill
from spanfold.diagnose._documents import recorder_of
from spanfold.diagnose._envelope import artifact_refs, make_envelope, service_trace_id
from spanfold.diagnose._export import export_langfuse_bundle, sync_to_langfuse
from spanfold.diagnose._logger import RunLogger
from spanfold.diagnose._narrator import LoopNarrator
from spanfold.diagnose._outbox import existing_outbox, needs_outbox, outbox_of
from spanfold.diagnose._proxy import InstrumentedModel
from spanfold.diagnose._tracer import DiagnosticTracer

__all__ = [
    "DiagnosticTracer",
    "InstrumentedModel",
    "LoopNarrator",
    "RunLogger",
    "artifact_refs",
    "backfill",
    "existing_outbox",
    "export_langfuse_bundle",
    "make_envelope",
    "needs_outbox",
    "outbox_of",
    "recorder_of",
    "service_trace_id",
    "sync_to_langfuse",
]
