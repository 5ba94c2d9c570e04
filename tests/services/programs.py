"""The real collector and the real Jaeger as subprocesses on the loopback interface, with the configurations of collector/."""

import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "collector"
COLLECTOR = ("spanfold-collector", "otelcol-contrib")
JAEGER = ("jaeger",)


def program(names: Iterable[str]) -> str:
    """Return a program's path; skip the test, saying how to get it, where it is not."""
    for name in names:
        built = ROOT / ".cache" / "bin" / name
        if built.exists():
            return str(built)
        if found := shutil.which(name):
            return found
    pytest.skip(f"needs the program {' or '.join(names)}: `make services` builds it, or put it on PATH")


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at, all different, and none that the system gives to clients by itself."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def get(url: str, timeout_s: float = 30) -> Any:
    """Return the JSON that a page holds; None where there is none (404)."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def until(reached: Callable[[], Any], what: str, timeout_s: float = 60) -> Any:
    """Return what `reached` gives as soon as it is true; fail after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (found := reached()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.05)
    return found


class Service:
    """A program that listens. Its ports stay the same over a restart."""

    def __init__(self, names: Iterable[str], folder: Path, environ: Mapping[str, str], health: str) -> None:
        self._program = program(names)
        self._folder = folder
        self._environ = dict(environ)
        self._health = health
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> str:
        """What it said so far, over all restarts."""
        return (self._folder / "log").read_text(errors="replace")

    def arguments(self) -> list[str]:
        """Return the arguments to start it with."""
        raise NotImplementedError

    def validate(self) -> subprocess.CompletedProcess[str]:
        """Have it check its configurations without running them."""
        return subprocess.run(
            [self._program, "validate", *self.arguments()],
            env={"PATH": os.environ["PATH"], **self._environ},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def start(self) -> Self:
        """Start it and wait until it says that it is well."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, *self.arguments()],
                env={"PATH": os.environ["PATH"], "HOME": str(self._folder), **self._environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

        def is_well() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"{self._program} ended:\n{self.log[-3000:]}"
            try:
                with urllib.request.urlopen(self._health, timeout=5) as answer:
                    return answer.status == 200
            except OSError:
                return False

        until(is_well, f"{self._program} is well")
        return self

    def limit_files(self, size_bytes: int) -> None:
        """From now on let it write files up to this size only; more fails as on a full disk."""
        if not hasattr(resource, "prlimit"):
            pytest.skip("needs Linux, which can limit the files of another process")
        assert self._process is not None
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))

    def peak_memory_bytes(self) -> int:
        """Return the most memory it held at a time since its start; 0 where that is not known."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status")
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024 if status.exists() else 0

    def kill(self) -> None:
        """Kill it on the spot."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(60)
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.kill()


class Collector(Service):
    """The collector with configurations of collector/ and, after them, parts that a test replaces."""

    def __init__(
        self, folder: Path, *configs: str, environ: Mapping[str, str] | None = None, replace: str = ""
    ) -> None:
        self.grpc_port, self.http_port, health, self.metrics_port = free_ports(4)
        ports = {
            "COLLECTOR_GRPC_PORT": self.grpc_port,
            "COLLECTOR_HTTP_PORT": self.http_port,
            "COLLECTOR_HEALTH_PORT": health,
            "COLLECTOR_METRICS_PORT": self.metrics_port,
        }
        super().__init__(
            COLLECTOR,
            folder,
            {
                **{name: str(port) for name, port in ports.items()},
                "COLLECTOR_QUEUE_DIR": str(folder / "queue"),
                **(environ or {}),
            },
            f"http://127.0.0.1:{health}/",
        )
        self._configs = [str(CONFIGS / config) for config in configs]
        if replace:
            own = folder / "replace.yaml"
            own.write_text(replace)
            self._configs.append(str(own))

    @property
    def endpoint(self) -> str:
        """What OTEL_EXPORTER_OTLP_ENDPOINT is to be for HTTP."""
        return f"http://127.0.0.1:{self.http_port}"

    def arguments(self) -> list[str]:
        return [f"--config={config}" for config in self._configs]

    def metric(self, name: str) -> float:
        """Return the sum over all labels of one of its own metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))


class Jaeger(Service):
    """Jaeger with the configuration of collector/."""

    def __init__(self, folder: Path) -> None:
        self.port, query_grpc, self.grpc_port, self.http_port, health = free_ports(5)
        ports = {
            "JAEGER_PORT": self.port,
            "JAEGER_QUERY_GRPC_PORT": query_grpc,
            "JAEGER_GRPC_PORT": self.grpc_port,
            "JAEGER_HTTP_PORT": self.http_port,
            "JAEGER_HEALTH_PORT": health,
        }
        super().__init__(
            JAEGER, folder, {name: str(port) for name, port in ports.items()}, f"http://127.0.0.1:{health}/status"
        )

    @property
    def otlp(self) -> str:
        """Its OTLP over gRPC."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def endpoint(self) -> str:
        """What OTEL_EXPORTER_OTLP_ENDPOINT is to be for HTTP."""
        return f"http://127.0.0.1:{self.http_port}"

    def arguments(self) -> list[str]:
        return [f"--config={CONFIGS / 'jaeger.yaml'}"]

    def trace(self, trace_id: str) -> list[dict[str, Any]]:
        """Return the `resourceSpans` of a trace from the query API; empty when Jaeger does not know it."""
        found = get(f"http://127.0.0.1:{self.port}/api/v3/traces/{trace_id}")
        return [] if found is None else found["result"]["resourceSpans"]

    def search(self, service: str, tags: Mapping[str, str]) -> set[str]:
        """Return the trace ids that the search of its page finds for a service and tags."""
        query = urllib.parse.urlencode({"service": service, "tags": json.dumps(tags), "limit": 1_000})
        return {found["traceID"] for found in get(f"http://127.0.0.1:{self.port}/api/traces?{query}")["data"]}

    def transform(self, trace: bytes) -> Any:
        """Do what its page does with a file that is uploaded."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/transform", trace, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
