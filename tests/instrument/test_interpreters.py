"""A second interpreter of the process (mod_wsgi, `concurrent.interpreters`) records as the first does, and ends as it would without us.

RE2 and Hyperscan wait for ever where they are imported in one.
"""

import sys
from pathlib import Path

import pytest

from spanfold.journal import verify_journal
from tests.instrument.programs import run
from tests.journal import raw

pytestmark = pytest.mark.slow

# Python 3.12 crashes at its end when an isolated one has imported hashlib, with or without us.
KINDS = ["legacy"] if sys.version_info[:2] == (3, 12) else ["legacy", "isolated"]

PROGRAM = """
import sys
try:
    import _interpreters as interpreters
    create = lambda kind: interpreters.create(kind)
    execute = interpreters.exec
except ImportError:
    import _xxsubinterpreters as interpreters
    create = lambda kind: interpreters.create(isolated=kind == "isolated")
    execute = interpreters.run_string

if "outer first" in sys.argv:
    import spanfold
    with spanfold.run("outer", dir=sys.argv[1] + "/outer"):
        spanfold.event("outer")
inner = create({kind!r})
failed = execute(inner, '''
import spanfold
with spanfold.run("inner", dir={folder!r}) as run:
    with spanfold.stage("M1"), spanfold.model_call("m", input="password=hunter2secret") as call:
        call.output("yes")
result = spanfold.shutdown()
print(run.losses, result.waiting)
''')
interpreters.destroy(inner)
print("failed" if failed else "recorded", "orjson" in str(failed) and "does not support loading" in str(failed))
if "outer first" in sys.argv:
    with spanfold.run("again", dir=sys.argv[1] + "/again"):
        spanfold.event("outer")
print("done")
"""


@pytest.mark.parametrize("order", ["inner alone", "outer first"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_interpreter_records_a_whole_run(tmp_path: Path, kind: str, order: str) -> None:
    folder = tmp_path / "inner"
    ended = run(PROGRAM.format(kind=kind, folder=str(folder)), tmp_path, order)

    if order == "outer first":
        assert verify_journal(tmp_path / "outer").state == verify_journal(tmp_path / "again").state == "intact"
    if sys.version_info >= (3, 12) and kind == "isolated":
        # orjson refuses to be imported there: an exception of the import, and nothing that hangs.
        assert (ended.out, ended.err) == ("failed True\ndone\n", "")
        return
    assert (ended.out, ended.err) == ("{} 0\nrecorded False\ndone\n", "")
    assert [span["name"] for span in raw.spans(folder)] == ["chat m", "M1", "inner"]
    assert verify_journal(folder).state == "intact"
    assert sorted(p.name for p in folder.iterdir()) == [
        "M1",
        "journal",
        "langfuse_trace.json",
        "run.json",
        "timings.jsonl",
    ]
    assert not [p for p in folder.rglob("*") if p.is_file() and b"hunter2secret" in p.read_bytes()]


def test_no_thread_of_ours_is_left_after_shutdown(tmp_path: Path) -> None:
    program = """
    import sys, threading, spanfold
    with spanfold.run("r", dir=sys.argv[1]):
        with spanfold.stage("M1"):
            during = [t.name for t in threading.enumerate() if t.name.startswith("spanfold")]
    spanfold.shutdown()
    print(during, [t.name for t in threading.enumerate() if t.name.startswith("spanfold")])
    with spanfold.run("again", dir=sys.argv[1] + "-2"):
        print([t.name for t in threading.enumerate() if t.name.startswith("spanfold")])
    """
    assert run(program, tmp_path / "run").out == "['spanfold-documents'] []\n['spanfold-documents']\n"
