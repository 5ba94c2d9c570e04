"""Run recorded programs where time, ids and entropy are counted, so that two runs of one program are equal to the byte.

As a program, `python -m tests.instrument.both_cores`: reads programs as lines of JSON, answers each with a line that holds
all it recorded. `Interpreter` starts one, with the C core or without. A program is `{"content", "host", "steps"}`; the steps
are those that `Play` has methods for.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
T0 = 1_700_000_000_000_000_000
STEP_NS = 1_000
HANG_GUARD_S = 60
OF_THE_PROCESS = {"spanfold.pid", "spanfold.heads", "spanfold.seal.head"}


class Interpreter:
    """A process that plays programs in one of the two cores."""

    def __init__(self, core: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.instrument.both_cores"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "SPANFOLD_NATIVE": core,
                "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
                "PYTHONHASHSEED": "0",
                "PYTHONIOENCODING": "utf-8",
            },
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.process.communicate()

    def play(self, program: dict[str, Any]) -> dict[str, Any]:
        """Return what became of a program: core, records, what the host saw, losses, what calls raised."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(program) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the interpreter ended: {self.process.wait(timeout=60)}"
        answer: dict[str, Any] = json.loads(line)
        return answer


class Counted:
    """Entropy and both clocks, each as a count."""

    def __init__(self) -> None:
        self.ticks = self.bytes = 0

    def perf(self) -> int:
        self.ticks += 1
        return 10**12 + self.ticks * STEP_NS

    def wall(self) -> int:
        return self.perf() - 10**12 + T0

    def urandom(self, size: int) -> bytes:
        self.bytes += 1
        return b"".join((self.bytes << 32 | i).to_bytes(8, "big") for i in range(size // 8 + 1))[:size]


class Boom(Exception):
    """What the host raises."""


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError


class Text(str):
    pass


class Thing:
    def __repr__(self) -> str:
        return "<thing>"


ERRORS: list[Any] = [
    lambda: Boom("boom"),
    lambda: Mute(),
    lambda: KeyboardInterrupt(),
    lambda: SystemExit(3),
    lambda: ExceptionGroup("two", [Boom("a"), ValueError("b")]),
    lambda: GeneratorExit(),
]


def values(secret: str) -> list[Any]:
    """Return values that hosts have and JSON has not; by their number in programs."""
    import datetime
    import decimal
    import enum

    import numpy as np

    cyclic: list[Any] = []
    cyclic.append(cyclic)
    return [
        *(2**63, 2**63 - 1, -(2**63), -(2**63) - 1, 10**400, 1e300, -1e300, 1.7e308, float("nan"), float("inf"), -0.0),
        *(True, False, None, "", b"", b"\xff\x00", "\ud800", "é" * 200, "x" * 20_000, Text("sub"), Thing(), cyclic),
        *(
            {},
            {"a": [1, {"b": (2, None)}]},
            [],
            [1, "two", 3.0],
            (True, False),
            {1: "one", None: 2},
            {"password": "geheim99"},
        ),
        *(datetime.datetime(2024, 5, 6, tzinfo=datetime.UTC), decimal.Decimal("1.50"), Path("/tmp/x"), 3 + 4j, {1, 2}),
        *(
            np.float64(2.5),
            np.int64(7),
            np.arange(4),
            enum.Enum("E", "A").A,
            "sk-ant-api03-" + "A1b2C3d4" * 11 + "-AAAA",
        ),  # type: ignore[attr-defined]  # it has A
        *({"role": "user", "content": "hi"}, [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]),
        *(secret, {"text": [secret]}, 7, -1, 0, 3.0, "3", 12.5),
    ]


class Play:
    """One program, being played in this process."""

    def __init__(self, secret: str, tracers: list[Any]) -> None:
        import spanfold

        self.api = spanfold
        self.tracers = tracers
        self.secret = secret
        self.values = values(secret)
        self.opened: list[Any] = []
        self.raised: list[str] = []
        self.errors: list[BaseException] = []

    def value(self, coded: Any) -> Any:
        return self.values[coded["v"] % len(self.values)] if isinstance(coded, dict) else coded

    def fields(self, coded: dict[str, Any]) -> dict[str, Any]:
        return {name: self.value(value) for name, value in coded.items()}

    def steps(self, steps: list[list[Any]]) -> None:
        for name, *arguments in steps:
            try:
                getattr(self, name)(*arguments)
            except BaseException as error:
                self.raised.append(
                    f"{name}: {type(error).__name__} {error if isinstance(error, AttributeError) else ''}"
                )
                if name in ("fail", "block", "function", "generator", "task"):
                    raise

    def make(self, kind: str, name: Any, fields: dict[str, Any]) -> Any:
        name, fields = self.value(name), self.fields(fields)
        if kind in ("ours", "theirs", "http"):
            tracer = self.tracers[("ours", "theirs", "http").index(kind)]
            return tracer.start_span(str(name), attributes={f"gen_ai.{k}": v for k, v in fields.items()})
        return getattr(self.api, kind)(name, **fields)

    def chosen(self, which: int, method: str = "end") -> Any:
        """Return the current span or one opened earlier, that has a method if there is one."""
        from opentelemetry import trace

        found = [span for span in self.opened if hasattr(span, method)]
        return found[which % len(found)] if which and found else trace.get_current_span()

    def error(self, which: int) -> Any:
        """Return a new exception, kept so that no later one has its address: by that one never raised is known."""
        self.errors.append(ERRORS[which % len(ERRORS)]())
        return self.errors[-1]

    # What a program is made of.

    def block(self, kind: str, name: Any, fields: dict[str, Any], inside: list[list[Any]]) -> None:
        from opentelemetry import trace

        span = self.make(kind, name, fields)
        self.opened.append(span)
        if kind in ("theirs", "http"):
            with trace.use_span(span, end_on_exit=True):
                self.steps(inside)
        else:
            with span:
                self.steps(inside)

    def caught(self, inside: list[list[Any]]) -> None:
        try:
            self.steps(inside)
        except BaseException as error:
            self.raised.append(type(error).__name__)

    def fail(self, which: int) -> None:
        raise self.error(which)

    def open(self, kind: str, name: Any, fields: dict[str, Any]) -> None:
        self.opened.append(self.make(kind, name, fields))

    def retro(self, name: Any, start: int, end: int | None) -> None:
        span = self.tracers[0].start_span(str(self.value(name)), start_time=T0 + start * STEP_NS)
        self.opened.append(span)
        if end is not None:
            span.end(T0 + end * STEP_NS)

    def enter(self, which: int) -> None:
        self.chosen(which).__enter__()

    def leave(self, which: int, error: int | None) -> None:
        found = None if error is None else self.error(error)
        self.chosen(which).__exit__(found and type(found), found, None)

    def end_plainly(self, which: int) -> None:
        self.chosen(which).end()

    def end(self, which: int, at: int | None) -> None:
        self.chosen(which).end(*([] if at is None else [T0 + at * STEP_NS]))

    def tell(self, which: int, method: str, *arguments: Any) -> None:
        getattr(self.chosen(which, method), method)(*map(self.value, arguments))

    def set(self, which: int, fields: dict[str, Any]) -> None:
        self.chosen(which).set(**self.fields(fields))

    def usage(self, which: int, fields: dict[str, Any]) -> None:
        self.chosen(which or 1, "usage").usage(**self.fields(fields))

    def failed(self, which: int, error: int) -> None:
        self.chosen(which).failed(self.error(error))

    def status(self, which: int, code: int, text: Any) -> None:
        from opentelemetry.trace import StatusCode

        self.chosen(which).set_status(StatusCode(code % 3), self.value(text))

    def link(self, which: int, to: int, fields: dict[str, Any]) -> None:
        self.chosen(which).add_link(self.chosen(to).get_span_context(), self.fields(fields))

    def event(self, name: Any, fields: dict[str, Any]) -> None:
        self.api.event(self.value(name), **self.fields(fields))

    def score(self, name: Any, value: Any) -> None:
        self.api.score(self.value(name), self.value(value))

    def artifact(self, name: Any, value: Any) -> None:
        self.api.artifact(str(self.value(name)), self.value(value))

    def thread(self, inside: list[list[Any]]) -> None:
        import contextvars
        import threading

        thread = threading.Thread(target=contextvars.copy_context().run, args=(self.caught, inside))
        thread.start()
        thread.join()

    def alone(self, inside: list[list[Any]]) -> None:
        import threading

        thread = threading.Thread(target=self.caught, args=(inside,))
        thread.start()
        thread.join()

    def function(self, kind: str, name: str, inside: list[list[Any]]) -> None:
        @self.api.traced(kind=kind, name=name)  # type: ignore[arg-type]  # any kind
        def function(argument: Any) -> Any:
            self.steps(inside)
            return argument

        function({"v": 1})

    def generator(self, takes: int, inside: list[list[Any]]) -> None:
        @self.api.traced
        def generator() -> Any:
            for _ in range(2):
                self.steps(inside)
                yield 1

        items = generator()
        for _ in range(takes):
            next(items, None)
        items.close()

    def task(self, inside: list[list[Any]]) -> None:
        import asyncio

        async def within() -> None:
            self.steps(inside)

        async def main() -> None:
            await asyncio.gather(within(), asyncio.create_task(within()))

        asyncio.run(main())

    def register(self) -> None:
        from spanfold.instrument import state

        assert state.redactor.register_literal(self.secret)


def records(folder: Path) -> list[Any]:
    """Return every line of a run, without what the process and the name of the file decide."""
    found: list[Any] = []
    for path in sorted((folder / "journal").glob("*.otlp.jsonl")):
        for line in path.read_bytes().splitlines():
            request = json.loads(line)
            ((group,),) = request.values()
            group["resource"] = None
            ((scoped,),) = (group.get("scopeSpans") or group["scopeLogs"],)
            scoped["scope"]["attributes"].pop()  # the hash of the line before
            ((record,),) = (scoped.get("spans") or scoped["logRecords"],)
            for attribute in record["attributes"]:
                if attribute["key"] in OF_THE_PROCESS:
                    attribute["value"] = None
            found.append(request)
    return found


def seen(span: Any) -> Any:
    """Return what a host's exporter was given, as text."""
    facts = {k: v for k, v in span.attributes.items() if k not in OF_THE_PROCESS}
    events = [(event.name, event.timestamp, dict(event.attributes)) for event in span.events]
    links = [(link.context, dict(link.attributes)) for link in span.links]
    status = span.status.status_code, span.status.description
    return repr(
        (span.name, span.kind, span.context, span.parent, span.start_time, span.end_time, facts, events, links, status)
    )


def play(program: dict[str, Any], folder: Path, counted: Counted) -> dict[str, Any]:
    import random

    from opentelemetry import context

    import spanfold
    from spanfold.instrument import SpanfoldTracerProvider, _ids, losses
    from spanfold.instrument._span import native
    from tests.instrument.hosts import HTTP, OPENAI, Host

    counted.ticks = counted.bytes = 0
    _ids._pool.refill()
    random.seed(0)
    before = losses.copy()
    host = Host()
    spanfold.configure(content=program["content"], provider=host if program["host"] else "own")
    theirs = host if program["host"] else SpanfoldTracerProvider()
    game = Play(
        f"registered-{folder.name}-secret",
        [SpanfoldTracerProvider().get_tracer("mine"), theirs.get_tracer(OPENAI), theirs.get_tracer(HTTP)],
    )
    with spanfold.run("r", dir=folder):
        game.caught(program["steps"])
    spanfold.shutdown()
    context.attach(context.Context())
    return {
        "core": "Python" if native is None else "C",
        "records": records(folder),
        "seen": [seen(span) for span in host.exporter.get_finished_spans()],
        "losses": {what: count - before[what] for what, count in losses.items() if count != before[what]},
        "raised": game.raised,
        "ticks": counted.ticks,
    }


def main() -> None:
    """Play what standard input says."""
    import faulthandler
    import tempfile
    import time

    counted = Counted()
    # Before spanfold is imported, which keeps these.
    time.perf_counter_ns, time.time_ns, os.urandom = counted.perf, counted.wall, counted.urandom

    from spanfold.instrument import state

    state.connector = None
    with tempfile.TemporaryDirectory() as folder:
        for number, line in enumerate(sys.stdin):
            faulthandler.dump_traceback_later(HANG_GUARD_S, exit=True)
            answer = play(json.loads(line), Path(folder) / str(number), counted)
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
