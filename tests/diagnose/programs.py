"""Programs that log a diagnose loop in processes of their own, and what they leave."""

from collections import Counter
from pathlib import Path

from tests.diagnose.script import events

LOOP = """
import os, sys, threading, time
from pathlib import Path
from types import SimpleNamespace
from spanfold.diagnose import RunLogger
log = RunLogger(sys.argv[1], observability_mode="offline")
def call(i, analyzer="a"):
    log.log_model_call(cycle=0, analyzer=analyzer, call_index=i, method="generate", inputs="x" * 2000, kwargs={},
                       output=str(i), duration_sec=0.01, error=None)
"""


def told(run_dir: Path) -> Counter[str]:
    return Counter(event["event"] for event in events(run_dir))
