"""Delivery: what the journal holds, to an OTLP collector and to Langfuse, with the truth about what arrived.

The journal is the outbox. A destination holds what it acknowledged; the rest
waits, is sent again after a restart by `deliver_run` or by the next process
(`EarlierRuns`), and is never resent once acknowledged (docs/delivery.md).
"""

from spanfold.deliver._acks import Backlog, backlogs, refusals
from spanfold.deliver._destination import GRPC_PORT, Destination, destinations
from spanfold.deliver._earlier import EarlierRuns
from spanfold.deliver._encode import otlp_json
from spanfold.deliver._past import Delivery, deliver_run
from spanfold.deliver._preview import Waiting, waiting_records
from spanfold.deliver._shipper import Shipper

__all__ = [
    "GRPC_PORT",
    "Backlog",
    "Delivery",
    "Destination",
    "EarlierRuns",
    "Shipper",
    "Waiting",
    "backlogs",
    "deliver_run",
    "destinations",
    "otlp_json",
    "refusals",
    "waiting_records",
]
