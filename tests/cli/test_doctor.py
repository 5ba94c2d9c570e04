"""`doctor` and `run deliver`: what is configured, what is reachable, what was lost, and sending what waits."""

import ast
import dataclasses
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from spanfold.cli._checks import EXTRAS, UNUSED_EXTRAS, VARIABLES
from spanfold.cli._exits import Exit
from spanfold.deliver import destinations
from spanfold.fs import FileLock, SafeRoot
from spanfold.settings import Settings, resolve
from tests.cli.conftest import ROOT, Spanfold

pytestmark = pytest.mark.slow

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


@pytest.fixture
def listener() -> Iterator[tuple[int, list[bytes]]]:
    """A server that accepts connections and keeps every byte it was sent."""
    received: list[bytes] = []
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(30)

    def serve() -> None:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(30)
            while block := connection.recv(65536):
                received.append(block)
            received.append(b"")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield server.getsockname()[1], received
    server.close()
    thread.join(30)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_fresh_place_has_nothing_wrong(spanfold: Spanfold) -> None:
    answer = spanfold("doctor", "--json")

    assert answer.code == Exit.DONE
    document = answer.document
    assert document["ok"] is True
    assert {s["source"] for s in document["settings"]} == {"default"}
    assert {d["state"] for d in document["destinations"]} == {"not configured"}
    assert (document["folder"]["path"], document["folder"]["exists"], document["folder"]["writable"]) == (
        "runs",
        False,
        True,
    )
    assert "Nothing is wrong." in spanfold("doctor").out


def test_each_setting_is_told_with_where_it_came_from(spanfold: Spanfold) -> None:
    answer = spanfold(
        "doctor", "--json", SPANFOLD_DURABILITY="machine", OTEL_SDK_DISABLED="true", SPANFOLD_LANGFUSE="no"
    )

    told = {s["name"]: (s["value"], s["source"]) for s in answer.document["settings"]}
    assert told["durability"] == ("machine", "SPANFOLD_DURABILITY")
    assert told["enabled"] == ("false", "OTEL_SDK_DISABLED")
    assert told["langfuse"] == ("false", "SPANFOLD_LANGFUSE")
    assert told["content"] == ("all", "default")
    assert any("switched off" in note for note in answer.document["notes"])


def test_a_setting_that_cannot_be_used_is_a_problem_and_hides_no_other(spanfold: Spanfold) -> None:
    answer = spanfold("doctor", "--json", SPANFOLD_CONTENT="some", SPANFOLD_OTLP="perhaps")

    assert answer.code == Exit.FAILED
    assert [problem.split(":")[0] for problem in answer.document["problems"]] == ["SPANFOLD_OTLP", "SPANFOLD_CONTENT"]


def test_a_destination_that_is_wanted_and_has_no_address_is_told_by_its_name_once(spanfold: Spanfold) -> None:
    answer = spanfold("doctor", "--json", SPANFOLD_OTLP="true", SPANFOLD_LANGFUSE="true")

    assert answer.code == Exit.FAILED
    assert [problem.partition(": expected ")[0] for problem in answer.document["problems"]] == ["otlp", "langfuse"]
    assert all(reach["told"].startswith("expected ") for reach in answer.document["destinations"])


def test_the_core_that_was_built_is_the_one_that_runs(spanfold: Spanfold) -> None:
    # In a new process: which core it is, is decided at import.
    answer = spanfold("doctor", "--json", strict=False, SPANFOLD_NATIVE="")

    is_built = (ROOT / "src" / "spanfold" / "journal" / f"_native{SUFFIX}").exists()
    assert answer.document["core"]["language"] == ("C" if is_built else "Python")


def test_python_alone_is_nothing_wrong_and_told_with_the_variable_that_chose_it(spanfold: Spanfold) -> None:
    answer = spanfold("doctor", "--json", strict=False, SPANFOLD_NATIVE="Off")

    assert (answer.code, answer.document["notes"], answer.document["problems"]) == (Exit.DONE, [], [])
    assert answer.document["core"]["language"] == "Python"
    assert "SPANFOLD_NATIVE=off" in answer.document["core"]["told"]
    assert "core: Python, " in spanfold("doctor", strict=False, SPANFOLD_NATIVE="0").out


def test_a_variable_for_the_core_that_says_neither_yes_nor_no_is_a_problem(spanfold: Spanfold) -> None:
    answer = spanfold("doctor", "--json", strict=False, SPANFOLD_NATIVE="maybe")

    assert answer.code == Exit.FAILED
    assert answer.document["problems"] == [
        "SPANFOLD_NATIVE: expected true or false, found text of 5 characters. It is ignored."
    ]


def test_a_variable_that_nothing_reads_is_told_and_wrong_when_another_one_was_meant(spanfold: Spanfold) -> None:
    answer = spanfold("doctor", "--json", strict=False, SPANFOLD_CONTNT="local", SPANFOLD_OF_ANOTHER_PROGRAM="1")

    assert answer.code == Exit.FAILED
    assert answer.document["problems"] == [
        "SPANFOLD_CONTNT is no variable of spanfold and changes nothing; did you mean SPANFOLD_CONTENT?"
    ]
    assert answer.document["notes"] == ["SPANFOLD_OF_ANOTHER_PROGRAM is no variable of spanfold and changes nothing."]


@pytest.mark.parametrize(
    ("rooms", "told"),
    [([], "was not built"), (["journal"], "was not built"), (["journal", "instrument"], "cannot be loaded here")],
    ids=["absent", "half of it absent", "damaged"],
)
def test_a_core_that_is_not_there_or_cannot_be_loaded_is_told_as_that(
    spanfold: Spanfold, tmp_path: Path, rooms: list[str], told: str
) -> None:
    package = tmp_path / "elsewhere" / "spanfold"
    shutil.copytree(ROOT / "src" / "spanfold", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for room in rooms:
        (package / room / f"_native{SUFFIX}").write_bytes(b"not a module")

    answer = spanfold("doctor", "--json", PYTHONPATH=str(package.parent), SPANFOLD_NATIVE="1")

    assert answer.code == Exit.DONE
    assert answer.document["core"]["language"] == "Python"
    assert told in answer.document["core"]["told"]


def test_a_destination_is_reached_without_a_byte_sent(spanfold: Spanfold, listener: tuple[int, list[bytes]]) -> None:
    port, received = listener

    answer = spanfold("doctor", "--json", OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}")

    (otlp, _) = answer.document["destinations"]
    assert (answer.code, otlp["state"]) == (Exit.DONE, "reachable")
    assert otlp["milliseconds"] >= 0
    assert received == [b""]


def test_http_to_the_port_of_grpc_is_told(spanfold: Spanfold) -> None:
    with socket.create_server(("127.43.17.1", 4317)):  # an address that nobody else listens on
        http = spanfold("doctor", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.43.17.1:4317")
        grpc = spanfold(
            "doctor", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.43.17.1:4317", OTEL_EXPORTER_OTLP_PROTOCOL="grpc"
        )

    assert "OTEL_EXPORTER_OTLP_PROTOCOL=grpc" in http.out
    assert "reachable, port 4317" in grpc.out
    assert "OTEL_EXPORTER_OTLP_PROTOCOL" not in grpc.out


def test_a_destination_that_is_down_is_a_problem(spanfold: Spanfold) -> None:
    port = free_port()

    answer = spanfold("doctor", OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}")

    assert answer.code == Exit.FAILED
    assert f"unreachable, port {port}: Connection refused" in answer.out


def test_credentials_are_never_shown(spanfold: Spanfold) -> None:
    secret = "s3cr3t-9f8e7d"
    answer = spanfold(
        "doctor",
        "--timeout",
        "0.2",
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://user:{secret}@127.0.0.1:{free_port()}",
        OTEL_EXPORTER_OTLP_HEADERS=f"authorization=Bearer {secret}",
        LANGFUSE_PUBLIC_KEY=f"pk-{secret}",
        LANGFUSE_SECRET_KEY=f"sk-{secret}",
        LANGFUSE_BASE_URL=f"http://user:{secret}@127.0.0.1:{free_port()}",
    )

    assert answer.code == Exit.FAILED
    assert "langfuse at http://127.0.0.1" in answer.out
    assert secret not in answer.out + answer.err


def test_a_required_destination_that_nothing_names_is_a_problem(spanfold: Spanfold) -> None:
    answer = spanfold("doctor", "--json", SPANFOLD_LANGFUSE="true")

    assert answer.code == Exit.FAILED
    assert "LANGFUSE_PUBLIC_KEY" in answer.document["problems"][0]


def test_keys_of_langfuse_without_a_host_are_told_to_send_nothing(spanfold: Spanfold) -> None:
    answer = spanfold("doctor", "--json", LANGFUSE_PUBLIC_KEY="pk-lf-x", LANGFUSE_SECRET_KEY="sk-lf-x")

    told = {reach["label"]: reach["told"] for reach in answer.document["destinations"]}
    assert told["langfuse"] == "not configured (LANGFUSE_BASE_URL missing, so nothing is sent)"


def test_losses_and_runs_left_interrupted_are_told(spanfold: Spanfold, runs: Path) -> None:
    path = runs / "fail" / "run.json"
    document = json.loads(path.read_text())
    document["run"]["losses"] = {"journal_records": 7}
    path.write_text(json.dumps(document, indent=2))

    answer = spanfold("doctor", "--json")

    assert answer.code == Exit.FAILED
    assert answer.document["problems"] == ["runs/fail: lost 7 records that could not be written."]
    assert answer.document["notes"] == ["runs/kill was interrupted; `spanfold run recover runs/kill` finishes it."]
    assert (answer.document["folder"]["n_interrupted"], answer.document["folder"]["lost_records"]) == (1, 7)


def test_a_run_folder_that_cannot_be_made_is_a_problem(spanfold: Spanfold, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    answer = spanfold("doctor", "--json", SPANFOLD_RUN_DIR=str(tmp_path / "file" / "runs"))

    assert answer.code == Exit.FAILED
    assert "expected a folder that can be written to" in answer.document["problems"][0]


def test_doctor_knows_every_setting_and_every_extra() -> None:
    assert set(VARIABLES) == {field.name for field in dataclasses.fields(Settings)}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {
        name: {requirement.split(">=")[0] for requirement in requirements if not requirement.startswith("spanfold[")}
        | ({"numpy", "matplotlib"} if "spanfold[figures]" in requirements else set())
        for name, requirements in extras.items()
        if name != "all" and name not in UNUSED_EXTRAS
    }
    assert extras.keys() - {"all"} == EXTRAS.keys() | UNUSED_EXTRAS
    assert named == {name: set(packages) for name, packages in EXTRAS.items()}


# --- deliver


@pytest.fixture
def collector() -> Iterator[tuple[int, list[bytes]]]:
    """An OTLP collector that takes everything."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port, bodies
    server.shutdown()
    server.server_close()
    thread.join(30)


def test_what_waits_is_sent_once(spanfold: Spanfold, runs: Path, collector: tuple[int, list[bytes]]) -> None:
    port, bodies = collector
    where = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}

    first = spanfold("run", "deliver", "ok", "--json", **where)
    second = spanfold("run", "deliver", "ok", "--json", **where)

    (row,) = first.document["destinations"]
    spans = len((runs / "ok" / "timings.jsonl").read_text().splitlines())
    assert (first.code, row["sent"], row["refused"], row["waiting"]) == (Exit.DONE, spans, 0, 0)
    (row,) = second.document["destinations"]
    assert (second.code, row["sent"], row["waiting"]) == (Exit.DONE, 0, 0)
    assert len(bodies) == 1
    assert b"gpt-x" in bodies[0]


def test_a_destination_that_is_down_leaves_everything_waiting(spanfold: Spanfold, runs: Path) -> None:
    answer = spanfold(
        "run",
        "deliver",
        "ok",
        "--timeout",
        "1",
        "--json",
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{free_port()}",
    )

    (row,) = answer.document["destinations"]
    assert (answer.code, row["sent"]) == (Exit.FAILED, 0)
    assert row["waiting"] > 0
    assert row["reason"]
    # It never answered, and still it is known who has not got what.
    (found,) = spanfold("doctor", "--json").document["folder"]["undelivered"]
    assert (found["label"], found["waiting"], found["refused"]) == (row["label"], row["waiting"], 0)


def test_an_extra_that_doctor_says_nothing_of_has_no_code() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        assert not re.search(
            r"^\s*(?:import|from) (?:duckdb|clickhouse_connect)", path.read_text("utf-8"), re.MULTILINE
        )


def test_doctor_says_what_to_do_with_records_that_wait_for_a_destination_that_is_not_configured_any_more(
    spanfold: Spanfold, runs: Path, collector: tuple[int, list[bytes]]
) -> None:
    down = f"http://127.0.0.1:{free_port()}"
    spanfold("run", "deliver", "ok", "--timeout", "1", OTEL_EXPORTER_OTLP_ENDPOINT=down)
    address = f"http://127.0.0.1:{collector[0]}/v1/traces"

    unnamed = spanfold("doctor", "--json")
    named = spanfold("doctor", "--json", OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{down}/v1/traces")

    (advice,) = unnamed.document["problems"]
    assert "Set OTEL_EXPORTER_OTLP_TRACES_ENDPOINT to that address again, and `spanfold run deliver runs/ok`" in advice
    assert f"otlp at {down}/v1/traces: " in advice
    assert any("waits" in told and "not configured" not in told for told in named.document["problems"])
    by_itself = "and so does the next run beside it"
    alone = spanfold(
        "doctor", "--json", OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{down}/v1/traces", SPANFOLD_DELIVER_EARLIER="no"
    )
    assert by_itself not in advice
    assert [any(by_itself in told for told in one.document["problems"]) for one in (named, alone)] == [True, False]
    # Either way that it tells of works.
    (pattern,) = re.findall(r"or remove (\S+) to give up", advice)
    acked = list(runs.parent.glob(pattern))
    assert acked
    for file in acked:
        file.unlink()
    sent = spanfold("run", "deliver", "ok", "--json", OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=address)
    assert (sent.code, sent.document["destinations"][0]["waiting"]) == (Exit.DONE, 0)
    assert spanfold("doctor").code == Exit.DONE


def test_without_a_destination_nothing_can_be_delivered(spanfold: Spanfold, runs: Path) -> None:
    answer = spanfold("run", "deliver", "ok")

    assert answer.code == Exit.USAGE
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in answer.err


def test_a_run_in_a_folder_that_is_read_only_can_be_looked_at(spanfold: Spanfold, runs: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        # Root may write everywhere: see that nothing was written instead.
        before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    else:
        for path in (runs, *runs.rglob("*")):
            path.chmod(path.stat().st_mode & ~0o222)
        before = {}

    codes = [
        spanfold(*words).code
        for words in (("run", "list"), ("run", "show", "ok"), ("run", "verify", "ok"), ("doctor",))
    ]

    assert codes[:3] == [Exit.DONE] * 3
    if before:
        assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == before
    else:
        for path in (runs, *runs.rglob("*")):
            path.chmod(path.stat().st_mode | 0o700)
    shutil.rmtree(runs)


@pytest.fixture
def refusing() -> Iterator[int]:
    """A collector that refuses every request for good."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(400)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join(30)


def test_what_was_refused_earlier_is_told_by_every_later_delivery_and_by_doctor(
    spanfold: Spanfold, runs: Path, refusing: int
) -> None:
    where = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{refusing}"}

    first = spanfold("run", "deliver", "ok", "--json", **where)
    second = spanfold("run", "deliver", "ok", "--json", **where)
    shown = spanfold("run", "deliver", "ok", **where)

    spans = len((runs / "ok" / "timings.jsonl").read_text().splitlines())
    (row,) = first.document["destinations"]
    assert (first.code, row["refused"], row["refused_before"], row["waiting"]) == (Exit.FAILED, spans, 0, 0)
    (row,) = second.document["destinations"]
    assert (second.code, row["refused"], row["refused_before"]) == (Exit.FAILED, 0, spans)
    assert "400" in row["reason"]
    assert "refused before" in shown.lines[0]
    assert "400" in shown.lines[1]
    doctor = spanfold("doctor", "--json")
    assert doctor.code == Exit.FAILED
    (found,) = doctor.document["folder"]["undelivered"]
    assert (found["run_dir"], found["destination"], found["refused"], found["waiting"]) == ("runs/ok", "otlp", spans, 0)
    assert found["reason"] == row["reason"]
    assert any(f"/v1/traces has refused {spans} records for good" in problem for problem in doctor.document["problems"])
    assert "Nothing is wrong." not in spanfold("doctor").out


def test_what_waits_for_a_destination_that_took_the_beginning_is_told_by_doctor(
    spanfold: Spanfold, runs: Path, collector: tuple[int, list[bytes]]
) -> None:
    spanfold("run", "deliver", "ok", OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector[0]}")
    assert spanfold("doctor").code == Exit.DONE
    (acked,) = (runs / "ok" / "journal" / ".deliver").glob("otlp-*.ack.jsonl")
    lines = [json.loads(line) for line in acked.read_text().splitlines()]
    acked.write_text("".join(json.dumps({**line, "offset": 0}) + "\n" for line in lines) + '{"torn')

    answer = spanfold("doctor", "--json")

    (found,) = answer.document["folder"]["undelivered"]
    spans = len((runs / "ok" / "timings.jsonl").read_text().splitlines())
    assert (answer.code, found["waiting"], found["refused"]) == (Exit.FAILED, spans, 0)
    assert any("`spanfold run deliver runs/ok`" in problem for problem in answer.document["problems"])


def test_what_a_run_could_not_keep_is_on_disk_where_doctor_finds_it(spanfold: Spanfold, tmp_path: Path) -> None:
    program = (
        "import spanfold\n"
        "with spanfold.run('r', dir='runs/lossy') as run, spanfold.stage('M1'):\n"
        "    for value in (object(), object()):\n"
        "        spanfold.score('accuracy', value)\n"
        "print(run.losses)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    what = "scores that are no number, boolean or text"
    assert ast.literal_eval(done.stdout) == {what: 2}
    assert json.loads((tmp_path / "runs/lossy/run.json").read_text())["run"]["losses"] == {what: 2}

    answer = spanfold("doctor", "--json")

    assert answer.code == Exit.FAILED
    assert f"runs/lossy: lost {what} (2 times) while it was recorded." in answer.document["problems"]


def test_a_run_that_another_process_sends_is_left_to_it(
    spanfold: Spanfold, runs: Path, collector: tuple[int, list[bytes]]
) -> None:
    port, bodies = collector
    where = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
    root = SafeRoot(runs / "ok" / "journal")
    root.ensure_dir(".deliver")
    (there,) = destinations(resolve({}), where)
    with FileLock(root, f".deliver/{there.key}.lock"):
        answer = spanfold("run", "deliver", "ok", "--json", **where)

    assert (answer.code, bodies) == (Exit.LOCKED, [])
    assert answer.document["destinations"][0]["reason"] == "another process sends it"
    assert "expected nobody to send it" in answer.err
