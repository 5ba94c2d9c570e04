"""A secret that the gate keeps out of the run is in no byte of its bundle."""

import base64
import subprocess
import sys
from pathlib import Path

import pytest

from spanfold.bundle import export, verify
from tests.bundle.archives import unpack
from tests.bundle.runs import environment

CANARY = "sk-proj-" + "Zx81kQmTt7VbN2rYw4PdLc93HjGfSaUe"
PASSWORD = "c4nary-Pw-91827364"

PROGRAM = """
import sys, spanfold
canary, password = sys.argv[2], sys.argv[3]
spanfold.configure(otlp=False, langfuse=False)

def connect():
    try:
        raise ConnectionError(f"postgres://user:{password}@host/db")
    except ConnectionError as error:
        error.add_note(f"with the key {canary}")
        raise ExceptionGroup(f"several, one with {canary}", [error, ValueError(f"Authorization: Bearer {canary}")]) from error

try:
    with spanfold.run(f"run of {canary}", dir=sys.argv[1], api_key=canary, url=f"https://user:{password}@host/"):
        with spanfold.stage(f"M1 {canary}", cycle=0) as stage:
            stage.set(**{"headers": {"Authorization": f"Bearer {canary}", canary: "as a key"}, "password": password})
            with spanfold.model_call("m", provider="p", operation="chat", input=[{"role": "user", "content": canary}]) as call:
                call.output(f"it is {canary}")
            with spanfold.tool("curl", arguments={"argv": ["--api-key", canary, f"-u{password}"]}) as tool:
                tool.set(result=f'{{"token": "{canary}"}}')
            spanfold.score("accuracy", 0.5, comment=f"with {canary}")
            spanfold.event(f"event {canary}", text=canary)
            spanfold.artifact(f"notes {canary}", f"the key is {canary}")
            spanfold.artifact("config", {"api_key": canary, "nested": [{"token": canary}]})
            spanfold.artifact("bytes", f"the key is {canary}".encode())
        connect()
except ExceptionGroup:
    pass
spanfold.shutdown()
"""


@pytest.mark.case("C-061", "C-062")
def test_no_byte_of_a_bundle_holds_a_secret(tmp_path: Path) -> None:
    secrets = {"DATABASE_PASSWORD": PASSWORD, "OPENAI_API_KEY": CANARY}
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "001"), CANARY, PASSWORD],
        env=environment(**secrets),
        check=True,
        timeout=60,
    )
    exported = export(tmp_path / "001")

    contents = unpack(exported.path)
    assert len(contents) > 8
    assert any(name.startswith("run/M1/artifacts/") for name in contents)
    said = "".join([*contents, *exported.left_out, *exported.left_out.values()]).encode()
    for secret in (CANARY.encode(), PASSWORD.encode()):
        for form in (secret, base64.b64encode(secret).rstrip(b"=")):
            assert form not in said
            assert [name for name, data in contents.items() if form in data] == []
    assert verify(exported.path).ok
