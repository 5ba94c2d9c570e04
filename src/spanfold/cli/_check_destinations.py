"""Look for `doctor` at what can be sent to: what is configured, and what answers. Not a byte is sent anywhere."""

import contextlib
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from spanfold.deliver import GRPC_PORT, Destination, destinations
from spanfold.errors import SettingsError
from spanfold.settings import Settings


@dataclass(frozen=True, slots=True)
class Reach:
    """One destination."""

    label: str
    """Name and address, without credentials."""
    state: Literal["off", "not configured", "unusable", "reachable", "unreachable"]
    told: str
    """The state in words."""
    milliseconds: float | None = None
    """How long it took to connect."""


def check_destinations(settings: Settings, environ: Mapping[str, str], timeout_s: float) -> tuple[Reach, ...]:
    """Look at every destination there can be.

    Args:
        settings: What is in force.
        environ: The environment a program would be started with.
        timeout_s: How long to wait for each.
    """
    return tuple(_reach(name, settings, environ, timeout_s) for name in ("otlp", "langfuse"))


def _reach(
    name: Literal["otlp", "langfuse"], settings: Settings, environ: Mapping[str, str], timeout_s: float
) -> Reach:
    wanted = settings.otlp if name == "otlp" else settings.langfuse
    if wanted is False:
        return Reach(name, "off", f"off ({_SWITCHES[name]})")
    alone = Settings(otlp=wanted if name == "otlp" else False, langfuse=wanted if name == "langfuse" else False)
    try:
        found = destinations(alone, environ)
    except SettingsError as error:
        return Reach(name, "unusable", str(error).removeprefix(f"{name}: "))  # it is told below that name
    if not found:
        missing = _missing(environ) if name == "langfuse" else ""
        return Reach(name, "not configured", f"not configured ({missing or _NAMED_BY[name]})")
    return _connect(found[0], timeout_s)


def configured_keys(settings: Settings, environ: Mapping[str, str]) -> frozenset[str]:
    """Return the keys of the destinations that can be sent to."""
    keys: set[str] = set()
    for alone in (Settings(otlp=settings.otlp, langfuse=False), Settings(otlp=False, langfuse=settings.langfuse)):
        with contextlib.suppress(SettingsError):  # told of as a destination
            keys.update(destination.key for destination in destinations(alone, environ))
    return frozenset(keys)


def _missing(environ: Mapping[str, str]) -> str:
    """Say what Langfuse needs, to whom has given a part of it; empty when that is none or all."""
    has_host = bool(environ.get("LANGFUSE_BASE_URL") or environ.get("LANGFUSE_HOST"))
    missing = [key for key in ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY") if not environ.get(key)]
    missing += [] if has_host else ["LANGFUSE_BASE_URL"]
    return f"{' and '.join(missing)} missing, so nothing is sent" if 0 < len(missing) < 3 else ""


_SWITCHES: Final = {"otlp": "SPANFOLD_OTLP", "langfuse": "SPANFOLD_LANGFUSE"}
_NAMED_BY: Final = {
    "otlp": "OTEL_EXPORTER_OTLP_ENDPOINT names a collector",
    "langfuse": "LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY and LANGFUSE_BASE_URL name a server",
}


def _connect(destination: Destination, timeout_s: float) -> Reach:
    """Open a TCP connection and close it; not a byte is sent."""
    parts = urlsplit(destination.url)
    port = parts.port or (GRPC_PORT if destination.protocol == "grpc" else 443 if parts.scheme == "https" else 80)
    outcome: list[str | float] = []

    def attempt() -> None:
        begun = time.monotonic()
        try:
            socket.create_connection((parts.hostname or "", port), timeout=timeout_s).close()
        except OSError as error:
            outcome.append(error.strerror or type(error).__name__)
        else:
            outcome.append(round((time.monotonic() - begun) * 1000, 1))

    # In a thread: a name server that does not answer keeps no timeout.
    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(timeout_s + 0.5)
    found = outcome[0] if outcome else f"no answer in {timeout_s:g} s"
    if isinstance(found, float):
        told = f"reachable, port {port} in {found:g} ms"
        if port == GRPC_PORT and destination.protocol != "grpc":
            told += "; it is usually that of gRPC: OTEL_EXPORTER_OTLP_PROTOCOL=grpc, or 4318 for HTTP"
        return Reach(destination.label, "reachable", told, found)
    waits = "What is recorded meanwhile waits in the journal."
    return Reach(destination.label, "unreachable", f"unreachable, port {port}: {found}. {waits}")
