"""M3 by rules, and by an endpoint that speaks the OpenAI chat protocol: a real server on the loopback interface."""

import http.server
import json
import threading
from contextlib import contextmanager

import pytest

import spanfold
from spanfold.demo.hypotheses import propose
from spanfold.demo.loop import propose_reasons
from spanfold.demo.records import Finding

FINDINGS = [
    Finding("doubt", "higher", 0.90, 0.001),
    Finding("entropy", "higher", 0.93, 0.001),
    Finding("disagreement", "higher", 0.97, 0.0001),
    Finding("width", "lower", 0.30, 0.01),
    Finding("ink", "higher", 0.60, 0.4),
]
ANSWER = [
    {"statement": "Sevens with a bar.", "signal": "disagreement", "direction": "higher", "repair": "kernel"},
    {"statement": "Narrow hands.", "signal": "width", "direction": "lower", "repair": None},
]


@contextmanager
def endpoint(reply, status=200):
    """Serve one reply to every POST; yields the base URL and the list of requests seen."""
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, self.headers.get("Authorization"), json.loads(body)))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def completion(content, **more):
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}], **more}).encode()


@pytest.mark.parametrize(("findings", "told"), [(FINDINGS[2:3], "1 hypothesis"), (FINDINGS[1:3], "2 hypotheses")])
def test_what_was_proposed_is_told_in_its_number(findings, told):
    said = []

    propose_reasons(0, findings, said.append)

    assert said == [f"M3 cycle 0: {told} by rules"]


def test_rules_give_one_hypothesis_per_reason_strongest_first():
    hypotheses, reason = propose(1, FINDINGS)

    assert reason is None
    assert [(h.id, h.signal, h.direction, h.repair) for h in hypotheses] == [
        ("c1.h0", "disagreement", "higher", "kernel"),
        # Doubt says the same as entropy, less clearly.
        ("c1.h1", "entropy", "higher", "experts"),
        ("c1.h2", "width", "lower", None),
    ]
    assert {h.proposed_by for h in hypotheses} == {"rules"}
    assert {h.status for h in hypotheses} == {"proposed"}


def test_nothing_is_proposed_from_nothing_and_no_model_is_asked(monkeypatch):
    with endpoint(completion("[]")) as (url, seen):
        monkeypatch.setenv("SPANFOLD_DEMO_MODEL", "m")
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        assert propose(0, [f for f in FINDINGS if not f.separates]) == ([], None)
    assert seen == []


@pytest.mark.parametrize("wrapped", ["%s", "Here you are:\n```json\n%s\n```\nGood luck."])
def test_a_configured_model_proposes_instead_of_the_rules(monkeypatch, wrapped):
    reply = completion(wrapped % json.dumps(ANSWER), model="m-2", usage={"prompt_tokens": 5, "completion_tokens": 7})
    with endpoint(reply) as (url, seen):
        monkeypatch.setenv("SPANFOLD_DEMO_MODEL", "m")
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "not-a-real-key-0123456789")
        hypotheses, reason = propose(0, FINDINGS)

    assert reason is None
    assert [(h.statement, h.signal, h.repair, h.proposed_by) for h in hypotheses] == [
        ("Sevens with a bar.", "disagreement", "kernel", "m"),
        ("Narrow hands.", "width", None, "m"),
    ]
    [(path, authorization, body)] = seen
    assert path == "/v1/chat/completions"
    assert authorization == "Bearer not-a-real-key-0123456789"
    assert body["model"] == "m"
    # It is shown what separates, and nothing else.
    assert '"disagreement"' in body["messages"][0]["content"]
    assert '"signal": "ink"' not in body["messages"][0]["content"]


def test_the_call_of_the_model_is_recorded_and_the_key_is_not(monkeypatch, tmp_path):
    reply = completion(json.dumps(ANSWER), model="m-2", usage={"prompt_tokens": 5, "completion_tokens": 7})
    with endpoint(reply) as (url, seen):
        monkeypatch.setenv("SPANFOLD_DEMO_MODEL", "m")
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "not-a-real-key-0123456789")
        with spanfold.run("asked", dir=tmp_path / "run"), spanfold.stage("M3", cycle=0):
            propose(0, FINDINGS)

    [call] = json.loads((tmp_path / "run" / "M3" / "log.json").read_text(encoding="utf-8"))["model_calls"]
    assert (call["model"], call["provider"], call["operation"], call["served_model"]) == ("m", "openai", "chat", "m-2")
    assert call["input"] == seen[0][2]["messages"]
    assert call["output"] == json.dumps(ANSWER)
    assert call["usage"] == {"input_tokens": 5, "output_tokens": 7}
    for path in (tmp_path / "run").rglob("*"):
        assert path.is_dir() or b"not-a-real-key-0123456789" not in path.read_bytes()


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (completion("[]"), 200),
        (completion("I do not know."), 200),
        (completion("[{]"), 200),
        (completion(json.dumps([7, None, {"statement": "x"}, {**ANSWER[0], "signal": ["doubt"]}])), 200),
        (completion(json.dumps([{**ANSWER[0], "signal": "ink"}, {**ANSWER[0], "repair": "rm -rf"}])), 200),
        (completion(None), 200),
        (b'{"error": "overloaded"}', 200),
        (b"[]", 200),
        (b"<html>", 200),
        (completion(json.dumps(ANSWER)), 500),
    ],
)
def test_an_unusable_answer_leaves_the_rules_and_a_reason(monkeypatch, reply, status):
    with endpoint(reply, status) as (url, seen):
        monkeypatch.setenv("SPANFOLD_DEMO_MODEL", "m")
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        hypotheses, reason = propose(0, FINDINGS)

    assert len(seen) == 1
    assert reason.startswith("m gave no usable answer")
    assert {h.proposed_by for h in hypotheses} == {"rules"}


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "file:///etc/hostname", "localhost:80"])
def test_an_endpoint_that_is_not_there_or_not_http_leaves_the_rules_and_a_reason(monkeypatch, url):
    monkeypatch.setenv("SPANFOLD_DEMO_MODEL", "m")
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    hypotheses, reason = propose(0, FINDINGS)

    assert reason.startswith("m gave no usable answer")
    assert hypotheses


def test_a_model_without_an_address_leaves_the_rules_and_names_the_missing_variable(monkeypatch):
    monkeypatch.setenv("SPANFOLD_DEMO_MODEL", "m")
    hypotheses, reason = propose(0, FINDINGS)

    assert "OPENAI_BASE_URL" in reason
    assert hypotheses
