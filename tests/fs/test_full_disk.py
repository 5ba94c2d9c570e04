"""A real full disk where the machine lets us have a small one, a file size limit where it does not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import errno, json, os, resource, subprocess, sys
from spanfold.errors import SpanfoldError
from spanfold.fs import SafeRoot

folder = sys.argv[1]
small = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], capture_output=True).returncode == 0
if not small:
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))
root = SafeRoot(folder)
root.replace_atomic("doc", b"old", durable=True)
log = root.open_append("log", mend_tail=True)
log.append(b"first\\n")
seen = {}
for name, call in {
    "replace": lambda: root.replace_atomic("doc", [b"x" * 30_000] * 4, durable=True),
    "create": lambda: root.create_exclusive("new", b"x" * 100_000),
    "append": lambda: log.append(b"x" * 100_000 + b"\\n"),
}.items():
    try:
        call()
    except OSError as error:
        seen[name] = [errno.errorcode[error.errno], os.path.basename(error.filename)]
# Space returns.
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.append(b"last\\n")
root.replace_atomic("doc2", b"new", durable=True)
print(json.dumps({
    "small": small, "seen": seen, "names": sorted(os.listdir(folder)),
    "doc": root.read_bytes("doc").decode(), "log": root.read_bytes("log").decode(),
}))
"""


@pytest.mark.case("C-051")
def test_a_full_disk_keeps_what_was_there_leaves_no_litter_and_is_used_again_when_there_is_space(
    tmp_path: Path,
) -> None:
    # A mount name space of its own, as root of a user name space when we are nobody special: nothing outlives the child.
    own_mounts = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        can = subprocess.run([*own_mounts, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        can = False
    done = subprocess.run(
        [*(own_mounts if can else []), sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    result = json.loads(done.stdout)
    error = "ENOSPC" if result["small"] else "EFBIG"
    assert result["seen"] == {"replace": [error, "doc"], "create": [error, "new"], "append": [error, "log"]}
    assert result["names"] == ["doc", "doc2", "log"]
    assert result["doc"] == "old"
    assert result["log"] == "first\nlast\n"
