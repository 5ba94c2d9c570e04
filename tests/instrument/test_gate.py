"""P4 and C-061 to C-065: secrets planted everywhere a program can put text, and looked for in every byte that leaves it."""

import base64
import json
import os
import random
import string
from collections.abc import Mapping
from pathlib import Path

import pytest

import spanfold
from spanfold.journal import verify_journal
from tests.instrument.conftest import Lost
from tests.instrument.programs import run
from tests.journal import raw

SOURCE = random.Random()


def core(length: int = 20) -> str:
    """Return a text that stands nowhere else: capitals, small letters and digits."""
    return "".join(SOURCE.choices(string.ascii_letters, k=length - 4)) + "".join(SOURCE.choices("23456789", k=4))


class Secrets:
    """Secrets of each kind, once in a form that gives them away and once bare, to be looked for."""

    def __init__(self) -> None:
        self.github = "ghp_" + core(36)
        self.url, self.assigned, self.bearer, self.known, self.keyed = (core() for _ in range(5))
        self.pem = core(64)
        self.forms = {
            "token": self.github,
            "url": f"postgres://bob:{self.url}@db.example/x",
            "assignment": f"API_KEY={self.assigned}",
            "header": f"Authorization: Bearer {self.bearer}",
            "known": f"say {self.known}",
            "pem": f"-----BEGIN PRIVATE KEY-----\n{self.pem}\n{core(44)}==\n-----END PRIVATE KEY-----",
        }
        self.line = " | ".join(form for kind, form in self.forms.items() if kind != "pem")
        self.text = "\n".join(self.forms.values())
        self.cores = [self.github[4:], self.url, self.assigned, self.bearer, self.known, self.keyed, self.pem]

    @property
    def environment(self) -> dict[str, str]:
        return {"MY_SERVICE_SECRET": self.known}

    def found_in(self, data: bytes) -> set[str]:
        """Return the kinds of secrets that stand in the data, as they are or in base64 at any alignment."""
        kinds = dict(zip(("token", "url", "assignment", "header", "known", "keyed", "pem"), self.cores, strict=True))
        return {kind for kind, value in kinds.items() if any(form in data for form in _forms(value.encode()))}


def _forms(value: bytes) -> list[bytes]:
    coded = [base64.b64encode(b"x" * shift + value) for shift in range(3)]
    return [value, *(form[4:-4] for form in coded)]


def hits(secrets: Secrets, folder: Path) -> dict[str, set[str]]:
    """Return which secrets stand in which file, or in its name."""
    found: dict[str, set[str]] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        seen = secrets.found_in(name.encode())
        if path.is_file():
            seen |= secrets.found_in(path.read_bytes())
        if seen:
            found[name] = seen
    return found


EVERYWHERE = '''
import json, os, subprocess, sys
import spanfold
from opentelemetry import trace
given = json.loads(sys.stdin.readline())
line, text, keyed, forms = given["line"], given["text"], given["keyed"], given["forms"]

class Explosive(Exception):
    def __str__(self): return text

def fail():
    try:
        try:
            raise ValueError(forms["url"])
        except ValueError as error:
            raise ConnectionError(forms["header"]) from error
    except ConnectionError as error:
        error.add_note(forms["assignment"])
        raise ExceptionGroup(forms["token"], [error, Explosive(), KeyError(forms["known"])])

@spanfold.traced
def function(argument, *, api_key, options):
    """Takes what client libraries take."""
    return {"echo": argument, "password": api_key, "nested": options}

@spanfold.traced(kind="tool", name=line)
def used(arguments): return [arguments, text]

@spanfold.traced(stage="M2")
def generated():
    yield text
    yield {"client_secret": keyed}

with spanfold.run(line, **given["run"], where=text, password=keyed, nested={"a": [{line: text, "token": keyed}]}) as opened:
    opened.event(line, text=text, db_password=keyed)
    with spanfold.stage(line, cycle=1, note=text) as stage:
        stage.set(**{line: "in the key", "api-key": keyed, "list": [text, {"secret": keyed}], "as_json": json.dumps({"a": text, "password": keyed})})
        stage.set(blob=text.encode(), blobs={"deep": [bytearray(text.encode()), {"secret": keyed.encode()}]})
        stage.set_attribute("raw", text.encode())
        stage.set_attribute("gen_ai.prompt", text)
        stage.set_attribute("access_token", ["first", keyed])
        stage.set_attribute("texts", [text, line])
        stage.set_attribute("credentials", keyed.encode())
        stage.set_attribute(line, 1)
        stage.add_event(line, {"text": text, "secret": keyed})
        stage.add_link(trace.get_current_span().get_span_context(), {"text": text, "password": keyed})
        stage.set_status(trace.StatusCode.ERROR, text)
        stage.update_name(line)
        with spanfold.model_call(line, provider=line, input=[{"role": "user", "content": text}], api_key=keyed,
                                 default_headers={"Authorization": "Bearer " + keyed}) as call:
            call.output(text); call.served_model(line); call.response_id(line); call.finish_reasons(line)
            call.usage(**{"x": 1})
        with spanfold.agent(line, model=line, input=text) as agent:
            agent.output({"answer": text, "password": keyed})
        with spanfold.tool(line, arguments={"text": text, "token": keyed}, call_id=line) as tool:
            tool.result([text, {"secret": keyed}])
        with spanfold.timed(line, phase=line): pass
        spanfold.score(line, line, comment=text)
        spanfold.event(line, text=text)
        spanfold.artifact(line, {"text": text, "password": keyed})
        spanfold.artifact(line, text)
        spanfold.artifact("bytes", text.encode())
        function(text, api_key=keyed, options={"azure_ad_token": keyed, "url": forms["url"]})
        used({"text": text, "client_secret": keyed})
        list(generated())
        for error in (ExceptionGroup, Explosive):
            try:
                with spanfold.stage("fails"):
                    fail() if error is ExceptionGroup else (_ for _ in ()).throw(Explosive())
            except BaseException: pass
        try:
            with spanfold.timed("key error"):
                {}[forms["token"]]
        except KeyError: pass
        tracer = given["tracer"] and trace.get_tracer("gen_ai." + line, line, attributes={})
        if tracer:
            with tracer.start_as_current_span(line, attributes={"gen_ai.x": text, "gen_ai.secret": keyed}) as span:
                span.add_event(line, {"text": text, "password": keyed})
                span.set_status(trace.StatusCode.ERROR, text)
                span.record_exception(ConnectionError(text))
        env = spanfold.child_env()
        child = "import os, spanfold\\nwith spanfold.stage('child'): spanfold.event('e', text=os.environ['TOLD'])"
        subprocess.run([sys.executable, "-c", child], env={**env, "TOLD": text}, check=True)
    spanfold.current_run().view()
print(opened.dir)
print(json.dumps(dict(spanfold.instrument.losses)), file=sys.stderr)
'''


def everywhere(
    secrets: Secrets,
    *,
    before: str = "",
    run_args: Mapping[str, object],
    env: Mapping[str, str] | None = None,
    argv: tuple[str, ...] = (),
) -> tuple[Path, bytes]:
    """Run the program that puts the secrets everywhere, and return its run directory and what it printed."""
    given = {
        "line": secrets.line,
        "text": secrets.text,
        "keyed": secrets.keyed,
        "forms": secrets.forms,
        "run": run_args,
        "tracer": bool(before),
    }
    ended = run(before + EVERYWHERE, *argv, env={**secrets.environment, **(env or {})}, given=json.dumps(given))
    out = ended.out.splitlines()
    lost = json.loads(ended.err.splitlines()[-1])
    assert {what for what in lost if "token counts" not in what} == set(), ended
    return Path(out[-1]), (ended.out + ended.err).encode()


@pytest.mark.slow
@pytest.mark.case("C-061", "C-062", "C-064", "C-066")
def test_no_secret_stands_in_any_byte_or_name_of_a_run_or_of_what_we_log(tmp_path: Path) -> None:
    secrets = Secrets()
    argv = ("--api-key=" + secrets.assigned, "--token", secrets.keyed, "-p" + secrets.keyed, secrets.forms["url"])
    env = {
        "SPANFOLD_RUN_DIR": str(tmp_path / "runs"),
        "OTEL_SERVICE_NAME": secrets.forms["token"],
        "OTEL_RESOURCE_ATTRIBUTES": f"team=a,db.url={secrets.forms['url']},service.password={secrets.keyed},{secrets.forms['token']}=x",
    }
    run_dir, printed = everywhere(secrets, run_args={}, env=env, argv=argv)

    assert run_dir.parent == tmp_path / "runs"
    assert hits(secrets, tmp_path) == {}
    assert secrets.found_in(printed) == set()
    spans = raw.spans(run_dir)
    assert len(spans) > 10
    assert b"(REDACTED-" in run_dir.joinpath("run.json").read_bytes()
    # What is no secret is still there.
    assert spans[0]["resource"]["team"] == "a"
    assert {"answer", "echo"} <= set("".join(p.read_text() for p in raw.files(run_dir)).replace("\\", "").split('"'))


HOST = '''
import json, os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

class Spy(SpanExporter):
    """What leaves through the host's own exporter; spans the host's code made are the host's business."""
    def export(self, spans):
        with open(os.environ["SPY"], "a") as file:
            for span in spans:
                if span.instrumentation_scope.name == "spanfold":
                    file.write(span.to_json(indent=None) + repr(vars(span)) + "\\n")
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Spy()))
trace.set_tracer_provider(provider)
'''


@pytest.mark.slow
@pytest.mark.case("C-064", "C-058")
def test_no_secret_reaches_the_processors_of_the_host_or_comes_in_with_its_spans(tmp_path: Path) -> None:
    secrets = Secrets()
    (tmp_path / "spy").mkdir()
    env = {"SPY": str(tmp_path / "spy" / "out"), "SPANFOLD_RUN_DIR": str(tmp_path / "runs")}

    run_dir, printed = everywhere(secrets, before=HOST, run_args={}, env=env)

    shown = (tmp_path / "spy" / "out").read_bytes()
    assert shown.count(b"\n") > 10
    assert secrets.found_in(shown) == set()
    assert hits(secrets, tmp_path / "runs") == {}
    assert secrets.found_in(printed) == set()
    assert any(s["scope"].startswith("gen_ai.") for s in raw.spans(run_dir))


@pytest.mark.slow
@pytest.mark.case("C-065")
@pytest.mark.parametrize(
    "callback", ["raise ValueError(text)", "time.sleep(60)", "return None", "return 5", "sys.exit(1)"]
)
def test_a_callback_that_fails_withholds_everything_it_should_have_judged_and_costs_no_span(
    tmp_path: Path, callback: str
) -> None:
    program = f"""
    import sys, time, spanfold
    def callback(text):
        {callback}
    spanfold.configure(redact=callback)
    begun = time.monotonic()
    with spanfold.run("r", dir=sys.argv[1]):
        with spanfold.stage("the-name"):
            spanfold.event("e", note="the-private-text", number=5)
    print(time.monotonic() - begun < 20)
    """
    ended = run(program, tmp_path / "run")

    assert ended.out == "True\n"
    data = raw.files(tmp_path / "run")[0].read_bytes()
    assert b"the-private-text" not in data
    assert b"(REDACTED-engine-failure)" in data
    assert len(raw.spans(tmp_path / "run")) == 2
    # Names of ours are not withheld, nor numbers: the record is still one of a stage and an event in it.
    assert {s["attributes"]["spanfold.kind"] for s in raw.spans(tmp_path / "run")} == {"stage", "run"}
    assert len(raw.events(tmp_path / "run", "spanfold.span.started")) == 2
    assert sum(5 in e["attributes"].values() for e in raw.events(tmp_path / "run")) == 1
    assert verify_journal(tmp_path / "run").state == "intact"
    assert ended.err.count("redaction:") == 1
    assert "the-private-text" not in ended.err


@pytest.mark.case("C-065")
def test_a_callback_is_asked_about_every_text_and_has_no_power_to_put_a_secret_back(tmp_path: Path) -> None:
    secret = "ghp_" + core(36)
    spanfold.configure(
        redact=lambda text: text.replace("Zanzibar", "[place]") + (f" {secret}" if "greedy" in text else "")
    )
    with (
        spanfold.run("r", dir=tmp_path / "run", a="from Zanzibar"),
        spanfold.stage("Zanzibar", b=["Zanzibar", {"Zanzibar": "Zanzibar"}]),
    ):
        spanfold.event("greedy", c="greedy Zanzibar")

    data = b"".join(p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file())
    assert b"Zanzibar" not in data
    assert secret.encode() not in data
    assert data.count(b"[place]") > 5


class BrokenGate:
    """A gate that raises wherever it is asked."""

    def __init__(self, *methods: str) -> None:
        self.methods = methods

    def _answer(self, method: str, answer: object) -> object:
        if method in self.methods:
            raise RuntimeError(f"a fault in {method}, about the-private-text")
        return answer

    def is_clean(self, line: bytes) -> object:
        return self._answer("is_clean", False)

    def scrub_text(self, text: str) -> object:
        return self._answer("scrub_text", "(scrubbed)" if "private" in text else text)

    def scrub_value(self, value: object) -> object:
        return self._answer("scrub_value", value)

    def is_sensitive_name(self, name: str) -> object:
        return self._answer("is_sensitive_name", False)


@pytest.mark.case("C-065")
@pytest.mark.parametrize("method", ["is_clean", "scrub_text", "is_sensitive_name"])
def test_a_gate_that_raises_loses_the_record_counted_and_never_lets_it_through(
    tmp_path: Path, method: str, lost: Lost, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = tmp_path / "run"
    with spanfold.run("r", dir=run_dir) as opened:
        opened.journal._gate = BrokenGate(method)
        opened.journal.encoder._is_sensitive = opened.journal._gate.is_sensitive_name
        opened.journal.encoder.passes = opened.journal._gate.is_clean  # type: ignore[assignment]  # it answers anything
        with spanfold.stage("s"):
            spanfold.event("e", note="the-private-text", new_key_that_no_cache_knows=1)
    spanfold.configure()

    assert b"the-private-text" not in b"".join(p.read_bytes() for p in run_dir.rglob("*") if p.is_file())
    assert "the-private-text" not in caplog.text
    assert sum(lost().values()) > 0


@pytest.mark.case("C-064")
def test_a_registered_secret_is_found_in_base64_and_in_bytes_of_text(tmp_path: Path) -> None:
    secrets = Secrets()
    program = """
    import base64, os, sys, spanfold
    secret = os.environ["MY_SERVICE_SECRET"]
    with spanfold.run("r", dir=sys.argv[1]):
        for shift in range(3):
            spanfold.event("e", text=base64.b64encode(b"x" * shift + secret.encode() + b"tail").decode())
        with spanfold.timed("t") as span:
            span.set_attribute("data", secret.encode())
            span.set(data2=secret.encode(), data3=bytearray(secret.encode()))
    """
    run(program, tmp_path / "run", env=secrets.environment)

    data = b"".join(p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file())
    assert secrets.known.encode() not in data
    for shift in range(3):
        inner = base64.b64encode(b"x" * shift + secrets.known.encode())[4:-4]
        assert inner not in data


@pytest.mark.case("C-062")
def test_the_values_of_secret_variables_set_after_the_import_are_known_when_the_recorder_is_configured(
    tmp_path: Path,
) -> None:
    value = core()
    os.environ["SOME_API_KEY"] = value
    spanfold.configure()
    with spanfold.run("r", dir=tmp_path / "run", text=f"in the middle of {value} a text"):
        pass

    assert value.encode() not in b"".join(p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file())
