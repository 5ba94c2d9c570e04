"""Delivery to a Langfuse server on loopback that refuses what a real one refuses."""

import base64
import hashlib
import json
import logging
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import spanfold
from spanfold.deliver import Destination, deliver_run, destinations
from spanfold.settings import resolve
from spanfold.testing import LoopbackLangfuse, Reply, wait_until

pytestmark = pytest.mark.slow

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


@pytest.fixture
def langfuse(monkeypatch):
    with LoopbackLangfuse() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def wanted(server: LoopbackLangfuse) -> dict[str, Destination]:
    return {d.name: d for d in destinations(resolve(server.environment), server.environment)}


def unsent(folder: Path) -> Path:
    """Record a run with three scores and a picture while nothing is sent."""
    spanfold.configure(otlp=False, langfuse=False)
    with spanfold.run("digits", dir=folder) as run:
        with spanfold.stage("M1", cycle=0):
            spanfold.score("accuracy", 0.5, comment="held out", split="test")
            spanfold.artifact("attention", PNG)
        with spanfold.stage("M2"):
            spanfold.score("verdict", "good")
        spanfold.score("whole", True)
    return run.dir


def deliver_all(run_dir: Path, server: LoopbackLangfuse, **given) -> dict[str, tuple[int, int, int]]:
    found = {name: deliver_run(run_dir, destination, **given) for name, destination in wanted(server).items()}
    return {name: (one.sent, one.refused, one.waiting) for name, one in found.items()}


# -- spans


def test_langfuse_gets_what_its_server_maps(langfuse, tmp_path, monkeypatch):
    monkeypatch.setenv("LANGFUSE_TRACING_ENVIRONMENT", "Staging")
    spanfold.configure(langfuse=True)
    with (
        spanfold.run(
            "digits",
            dir=tmp_path / "run",
            session_id="s-1",
            user_id="u",
            tags=["a", "b"],
            release="1.2",
            dataset="mnist",
        ),
        spanfold.stage("M1", limits={"low": 1}),
        spanfold.model_call(
            "m",
            provider="openai",
            input=[{"role": "user", "content": "why?"}],
            temperature=0.2,
            cost_usd=0.004,
            prompt_name="ask",
            prompt_version=3,
        ) as call,
    ):
        call.output("because").usage(input_tokens=100, output_tokens=40, cache_read_tokens=30, reasoning_tokens=10)
        call.served_model("m-2026")
    assert spanfold.flush(5).waiting == 0
    assert langfuse.problems == []
    assert langfuse.requests[0].headers["x-langfuse-ingestion-version"] == "4"
    spans = {s.name: s.attributes for s in langfuse.spans}
    for attributes in spans.values():
        of_trace = {k: v for k, v in attributes.items() if "trace" in k or k in ("session.id", "user.id")}
        assert of_trace == {
            "langfuse.trace.name": "digits",
            "session.id": "s-1",
            "user.id": "u",
            "langfuse.trace.tags": ["a", "b"],
            "langfuse.trace.metadata.dataset": "mnist",
        }
        assert (attributes["langfuse.environment"], attributes["langfuse.release"]) == ("staging", "1.2")
    call = {k.removeprefix("langfuse.observation."): v for k, v in spans["chat m"].items()}
    assert (call["type"], call["output"], call["model.name"]) == ("generation", "because", "m-2026")
    assert json.loads(call["input"]) == [{"role": "user", "content": "why?"}]
    assert json.loads(call["usage_details"]) == {
        "input": 70,
        "output": 30,
        "input_cached_tokens": 30,
        "output_reasoning_tokens": 10,
    }
    assert json.loads(call["cost_details"]) == {"total": 0.004}
    assert json.loads(call["model.parameters"]) == {"temperature": 0.2}
    assert (call["prompt.name"], call["prompt.version"]) == ("ask", 3)
    assert spans["M1"]["langfuse.observation.type"] == "chain"
    assert json.loads(spans["M1"]["langfuse.observation.metadata.limits"]) == {"low": 1}


def test_a_run_inside_of_a_foreign_trace_is_the_root_of_what_langfuse_gets(langfuse, tmp_path):
    program = "import spanfold\nwith spanfold.run('digits', dir='run'), spanfold.stage('M1'): pass"
    env = {**os.environ, "TRACEPARENT": f"00-{'0a' * 16}-{'0b' * 8}-01"}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, check=True)
    roots = {span.name: span.attributes.get("langfuse.internal.as_root") for span in langfuse.spans}
    assert roots == {"digits": True, "M1": None}
    assert {span.trace_id for span in langfuse.spans} == {"0a" * 16}


def test_keys_without_a_host_send_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk-lf-somebody")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk-lf-somebody")
    assert destinations(resolve(), os.environ) == []
    spanfold.configure()
    with spanfold.run("kept", dir=tmp_path / "run") as run:
        pass
    assert spanfold.flush(1)[3:6] == (0, 0, 0)
    assert not (run.dir / "journal" / ".deliver").exists()


def test_sending_because_of_the_environment_is_said_aloud_and_offline_is_obeyed(langfuse, tmp_path):
    program = "import spanfold\nwith spanfold.run('r', dir='run'): pass"

    def stderr(**variables: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
        ).stderr

    assert stderr(SPANFOLD_LANGFUSE="offline") == ""
    assert langfuse.requests == []
    assert f"spanfold sends to langfuse at {langfuse.endpoint}" in stderr()
    assert [s.name for s in langfuse.spans] == ["r"]


def test_the_switches_of_its_sdk_are_obeyed(langfuse, tmp_path):
    run_dir = unsent(tmp_path / "run")

    def names(**more: str) -> list[str]:
        return [d.name for d in destinations(resolve({}), {**langfuse.environment, **more})]

    assert names() == ["langfuse", "langfuse-scores", "langfuse-media"]
    assert names(LANGFUSE_MEDIA_UPLOAD_ENABLED="false") == ["langfuse", "langfuse-scores"]
    for destination in destinations(resolve({}), {**langfuse.environment, "LANGFUSE_MEDIA_UPLOAD_ENABLED": "false"}):
        deliver_run(run_dir, destination)
    assert langfuse.spans and b"langfuseMedia" not in langfuse.payloads()  # nothing refers to what never comes
    assert names(LANGFUSE_TRACING_ENABLED="False") == []


# -- scores and media


def test_scores_and_media_arrive_and_sending_them_again_changes_nothing(langfuse, tmp_path):
    run_dir = unsent(tmp_path / "run")

    assert deliver_all(run_dir, langfuse) == {
        "langfuse": (3, 0, 0),
        "langfuse-scores": (3, 0, 0),
        "langfuse-media": (1, 0, 0),
    }

    spans = {s.name: s for s in langfuse.spans}
    by_name = {score["name"]: score for score in langfuse.scores.values()}
    accuracy = by_name["accuracy"]
    assert (accuracy["value"], accuracy["dataType"], accuracy["comment"]) == (0.5, "NUMERIC", "held out")
    assert (accuracy["traceId"], accuracy["observationId"]) == (spans["M1"].trace_id, spans["M1"].span_id)
    assert accuracy["metadata"] == {"split": "test", "stage": "M1", "cycle": 0}
    assert (by_name["verdict"]["value"], by_name["verdict"]["dataType"]) == ("good", "CATEGORICAL")
    assert (by_name["whole"]["value"], by_name["whole"]["dataType"]) == (1, "BOOLEAN")
    assert by_name["whole"]["observationId"] == spans["digits"].span_id
    ((media_id, kept),) = langfuse.media.items()
    assert (kept["content"], kept["contentType"], kept["uploadHttpStatus"]) == (PNG, "image/png", 200)
    assert langfuse.links == {(media_id, spans["M1"].trace_id, spans["M1"].span_id, "metadata")}
    assert spans["M1"].attributes["langfuse.observation.metadata.attention"] == (
        f"@@@langfuseMedia:type=image/png|id={media_id}|source=file@@@"
    )
    before = (dict(langfuse.scores), len(langfuse.links))
    for file in (run_dir / "journal" / ".deliver").glob("langfuse-[sm]*.ack.jsonl"):
        file.unlink()  # as if the process had died before it could write the acknowledgements

    assert deliver_all(run_dir, langfuse) == {
        "langfuse": (0, 0, 0),
        "langfuse-scores": (3, 0, 0),
        "langfuse-media": (1, 0, 0),
    }

    assert (langfuse.scores, len(langfuse.links)) == before
    assert langfuse.scores_taken == 6
    assert sum(request.method == "PUT" for request in langfuse.requests) == 1
    assert langfuse.problems == []


def test_the_log_of_a_program_does_not_tell_of_every_request(langfuse, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    deliver_all(unsent(tmp_path / "run"), langfuse)
    assert len(langfuse.scores) == 3
    assert [record.getMessage() for record in caplog.records if record.name == "httpx"] == []


def test_a_live_run_sends_its_scores_while_it_is_recorded(langfuse, tmp_path):
    spanfold.configure(langfuse=True)
    with spanfold.run("digits", dir=tmp_path / "run"), spanfold.stage("M1"):
        spanfold.score("accuracy", 0.5)
        assert wait_until(lambda: langfuse.scores, 30)
        assert langfuse.spans == []  # what it belongs to has not ended yet
        assert spanfold.flush(5).waiting == 0
    assert spanfold.flush(5)[3:6] == (3, 0, 0)
    assert langfuse.scores_taken == 1


def test_scores_are_acknowledged_apart_from_spans(langfuse, tmp_path):
    run_dir = unsent(tmp_path / "run")
    langfuse.fails["/api/public/scores"] = Reply(status=503)
    first = deliver_all(run_dir, langfuse, timeout_s=0.3)
    assert first == {"langfuse": (3, 0, 0), "langfuse-scores": (0, 0, 3), "langfuse-media": (1, 0, 0)}
    langfuse.fails.clear()
    assert deliver_all(run_dir, langfuse) == {
        "langfuse": (0, 0, 0),
        "langfuse-scores": (3, 0, 0),
        "langfuse-media": (0, 0, 0),
    }
    assert len(langfuse.scores) == langfuse.scores_taken == 3


def test_a_rejected_score_is_named_and_the_others_arrive(langfuse, tmp_path):
    run_dir = unsent(tmp_path / "run")
    langfuse.refuse_scores = frozenset({"verdict"})
    assert deliver_all(run_dir, langfuse)["langfuse-scores"] == (2, 1, 0)
    (line,) = next((run_dir / "journal" / ".deliver").glob("langfuse-scores-*.refused.jsonl")).read_text().splitlines()
    assert json.loads(line)["name"] == "verdict"
    assert json.loads(line)["reason"] in ("HTTP 207, rejected", "HTTP 400")  # of a list, and of one alone
    assert {name for _, name, _ in langfuse.scores} == {"accuracy", "whole"}


def test_a_server_that_takes_one_score_at_a_time_gets_one_at_a_time(langfuse, tmp_path):
    langfuse.takes_lists = False
    assert deliver_all(unsent(tmp_path / "run"), langfuse)["langfuse-scores"] == (3, 0, 0)
    assert langfuse.scores_taken == len(langfuse.scores) == 3


@pytest.mark.parametrize("is_sent_before", [False, True])
def test_a_score_whose_span_was_refused_stands_at_the_trace(langfuse, tmp_path, is_sent_before):
    run_dir = unsent(tmp_path / "run")
    there = wanted(langfuse)
    langfuse.refuse_names = frozenset({"M2"})
    if is_sent_before:
        assert deliver_run(run_dir, there["langfuse-scores"]).sent == 3
        assert all("observationId" in score for score in langfuse.scores.values())
    assert deliver_run(run_dir, there["langfuse"]).refused == 1

    result = deliver_run(run_dir, there["langfuse-scores"])

    assert (result.sent, result.refused, result.waiting) == (0 if is_sent_before else 3, 0, 0)
    scores = {score["name"]: score for score in langfuse.scores.values()}
    assert len(langfuse.scores) == 3
    assert (
        "observationId" not in scores["verdict"]
        and len(scores["verdict"]["metadata"]["spanfold.refused_span_id"]) == 16
    )
    assert "observationId" in scores["accuracy"]
    taken = langfuse.scores_taken
    assert deliver_run(run_dir, there["langfuse-scores"]).waiting == 0
    assert langfuse.scores_taken == taken  # the refusal is dealt with once


def test_media_that_were_changed_or_are_gone_are_named_and_never_sent(langfuse, tmp_path):
    run_dir = unsent(tmp_path / "run")
    (picture,) = run_dir.rglob("*attention*")
    picture.write_bytes(b"something else")
    result = deliver_run(run_dir, wanted(langfuse)["langfuse-media"])
    assert (result.sent, result.refused, result.waiting) == (0, 1, 0)
    assert result.refusals == {"the file is not as it was recorded": 1}
    assert langfuse.media == {}


@pytest.mark.parametrize("failing", ["/store", "/api/public/media"])
def test_an_upload_that_fails_halfway_is_finished_later(langfuse, tmp_path, failing):
    run_dir = unsent(tmp_path / "run")
    langfuse.fails[failing] = Reply(status=503)
    there = wanted(langfuse)["langfuse-media"]
    assert deliver_run(run_dir, there, timeout_s=0.3).waiting == 1
    langfuse.fails.clear()
    assert deliver_run(run_dir, there).sent == 1
    assert [kept["content"] for kept in langfuse.media.values()] == [PNG]


def test_media_stay_here_when_content_does(langfuse, tmp_path):
    spanfold.configure(langfuse=True, content="local")
    with spanfold.run("digits", dir=tmp_path / "run"), spanfold.stage("M1"):
        spanfold.artifact("attention", PNG)
        spanfold.score("accuracy", 1)
    assert spanfold.flush(5)[3:6] == (3, 0, 0)
    assert langfuse.media == {} and b"langfuseMedia" not in langfuse.payloads()


@pytest.mark.parametrize("behaviour", ["hang", "drip_head", "html", "close"])
def test_scores_wait_for_a_server_that_behaves_badly_and_nobody_waits_for_it(langfuse, tmp_path, behaviour):
    run_dir = unsent(tmp_path / "run")
    there = wanted(langfuse)["langfuse-scores"]
    with langfuse.answering(behaviour=behaviour):
        result = deliver_run(run_dir, there, timeout_s=1.0)
    assert (result.sent, result.refused, result.waiting) == (0, 0, 3)
    assert deliver_run(run_dir, there).sent == 3
    assert len(langfuse.scores) == 3


def test_a_key_of_another_project_is_another_destination(langfuse, tmp_path):
    run_dir = unsent(tmp_path / "run")
    assert deliver_all(run_dir, langfuse)["langfuse"] == (3, 0, 0)
    langfuse.public_key = "pk-lf-other"
    assert deliver_all(run_dir, langfuse)["langfuse"] == (3, 0, 0)


def test_no_secret_leaves_with_scores_and_media(langfuse, tmp_path):
    canary = "ghp_" + "aB3d" * 10
    spanfold.configure(langfuse=True)
    with spanfold.run("digits", dir=tmp_path / "run"), spanfold.stage("M1"):
        spanfold.score(f"score {canary}", canary, comment=canary, api_key="hunter2hunter2")
        spanfold.artifact(f"notes {canary}", f"the key is {canary}")
    assert spanfold.flush(5).waiting == 0
    assert langfuse.scores and langfuse.media
    for secret in (canary.encode(), b"hunter2hunter2"):
        assert secret not in langfuse.payloads()


# -- the server itself


def post(server: LoopbackLangfuse, path: str, body: object, method: str = "POST", **headers: str | None) -> int:
    token = base64.b64encode(f"{server.public_key}:{server.secret_key}".encode()).decode()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    told = {"authorization": f"Basic {token}", "content-type": "application/json", **headers}
    known = {name: value for name, value in told.items() if value is not None}
    asked = urllib.request.Request(server.endpoint + path, data, known, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


SCORE = {
    "id": "1",
    "traceId": "0a" * 16,
    "observationId": "0b" * 8,
    "name": "n",
    "value": 1.5,
    "dataType": "NUMERIC",
    "timestamp": "2026-01-01T00:00:00Z",
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": "1.5"},
        {"dataType": "BOOLEAN"},
        {"traceId": "0A" * 16},
        {"observationId": "b"},
        {"timestamp": "2026-01-01T00:00:00"},
        {"environment": "Langfuse"},
        {"colour": "red"},
        {"metadata": []},
    ],
    ids=str,
)
def test_the_loopback_server_refuses_a_score_that_a_real_one_would_refuse_or_misunderstand(langfuse, wrong):
    assert post(langfuse, "/api/public/scores", [SCORE]) == 202
    assert post(langfuse, "/api/public/scores", [{**SCORE, **wrong}]) == 207
    assert post(langfuse, "/api/public/scores", {**SCORE, **wrong}) == 400
    assert len(langfuse.problems) == 2 and langfuse.scores_taken == 1


def test_the_loopback_server_wants_its_keys_and_bytes_that_match_their_hash(langfuse):
    assert post(langfuse, "/api/public/scores", [SCORE], authorization="Basic eDp5") == 401
    assert post(langfuse, "/api/public/otel/v1/traces", b"{", **{"x-langfuse-ingestion-version": "5"}) == 400
    assert post(langfuse, "/api/public/otel/v1/traces", {"resourceSpans": 1}) == 400
    digest = base64.b64encode(hashlib.sha256(b"data").digest()).decode()
    asked = {
        "traceId": "0a" * 16,
        "field": "metadata",
        "contentType": "image/png",
        "contentLength": 4,
        "sha256Hash": digest,
    }
    assert post(langfuse, "/api/public/media", {**asked, "sha256Hash": "no"}) == 400
    assert post(langfuse, "/api/public/media", asked) == 201
    (media_id,) = langfuse.media
    put = {"authorization": None, "content-type": "image/png", "x-amz-checksum-sha256": digest}
    place = f"/store/{media_id}?signature=s"
    report = {"uploadedAt": "2026-01-01T00:00:00Z", "uploadHttpStatus": 200}
    assert post(langfuse, place, b"data", "PUT", **{**put, "authorization": "Basic eDp5"}) == 403
    assert post(langfuse, place, b"DATA", "PUT", **put) == 400
    assert post(langfuse, f"/api/public/media/{media_id}", report, "PATCH") == 400  # a success that was none
    assert post(langfuse, place, b"data", "PUT", **put) == 200
    assert post(langfuse, f"/api/public/media/{media_id}", report, "PATCH") == 200
