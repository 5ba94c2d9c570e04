"""Where records go: found from settings and the standard variables, checked when configuring.

`OTEL_EXPORTER_OTLP_*` mean what they mean elsewhere (facts 5.3): the signal's
own variable wins over the general one, the general endpoint gets `/v1/traces`
appended, headers are `key=value` lists with URL-encoded values.
"""

import base64
import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from spanfold.errors import SettingsError
from spanfold.settings import Settings

Protocol = Literal["http/protobuf", "http/json", "grpc"]
_PROTOCOLS: Final[Mapping[str, Protocol]] = {"http/protobuf": "http/protobuf", "http/json": "http/json", "grpc": "grpc"}
HTTP_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of one HTTP request: a default collector takes 20 MiB."""
GRPC_LIMIT: Final = 3_500_000
"""Bytes of one gRPC request: a default collector takes 4 MiB."""
DEFAULT_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Destination:
    """One place spans are sent to."""

    name: str
    """`otlp` or `langfuse`; names its acknowledgement file."""
    protocol: Protocol
    url: str
    """Full address; never logged with user or query."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    timeout_s: float = DEFAULT_TIMEOUT_S
    gzip: bool = False
    certificate: str = ""
    client_certificate: str = ""
    client_key: str = ""
    insecure: bool = False
    """gRPC without TLS."""
    environ: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Langfuse: what the environment says about every trace."""

    @property
    def key(self) -> str:
        """Name of the files that say what this destination has acknowledged: another address is another destination."""
        return f"{self.name}-{hashlib.sha256(self.url.encode()).hexdigest()[:8]}"

    @property
    def limit_bytes(self) -> int:
        """Most bytes of one request."""
        return GRPC_LIMIT if self.protocol == "grpc" else HTTP_LIMIT

    @property
    def label(self) -> str:
        """Name and address for people, without credentials."""
        parts = urlsplit(self.url)
        return f"{self.name} at {parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"


def destinations(settings: Settings, environ: Mapping[str, str]) -> list[Destination]:
    """Return where the settings send to, after checking what they demand.

    Raises:
        SettingsError: A destination is required and cannot be used, or a standard variable cannot be read.
    """
    found: list[Destination] = []
    if settings.otlp is not False:
        otlp = otlp_destination(environ)
        if otlp is None and settings.otlp is True:
            raise SettingsError(
                "otlp",
                "OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT to be set, for otlp=True",
                "neither",
            )
        if otlp is not None:
            found.append(otlp)
    if settings.langfuse is not False:
        langfuse = langfuse_destination(environ)
        if langfuse is None and settings.langfuse is True:
            missing = [v for v in ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY") if not environ.get(v)]
            if not (environ.get("LANGFUSE_BASE_URL") or environ.get("LANGFUSE_HOST")):
                missing.append("LANGFUSE_BASE_URL")
            raise SettingsError("langfuse", f"{', '.join(missing)} to be set, for langfuse=True", "nothing there")
        if langfuse is not None:
            found.append(langfuse)
    if found and importlib.util.find_spec("opentelemetry.proto") is None:
        if settings.otlp is True or settings.langfuse is True:
            raise SettingsError("otlp", "the package opentelemetry-exporter-otlp to be installed", "nothing there")
        return []
    return found


def otlp_destination(environ: Mapping[str, str]) -> Destination | None:
    """Return the collector the standard variables name, None when they name none.

    Raises:
        SettingsError: A variable cannot be used.
    """
    general, own = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", ""), environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
    if not (general or own):
        return None
    named = environ.get("OTEL_TRACES_EXPORTER", "otlp")
    if "otlp" not in [name.strip() for name in named.split(",")]:
        return None

    def variable(suffix: str, default: str = "") -> tuple[str, str]:
        for name in (f"OTEL_EXPORTER_OTLP_TRACES_{suffix}", f"OTEL_EXPORTER_OTLP_{suffix}"):
            if environ.get(name):
                return name, environ[name]
        return f"OTEL_EXPORTER_OTLP_{suffix}", default

    name, named_protocol = variable("PROTOCOL", "http/protobuf")
    protocol = _PROTOCOLS.get(named_protocol)
    if protocol is None:
        raise SettingsError(name, "grpc, http/protobuf or http/json", f"text of {len(named_protocol)} characters")
    where = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" if own else "OTEL_EXPORTER_OTLP_ENDPOINT"
    url = own or (general if protocol == "grpc" else general.rstrip("/") + "/v1/traces")
    if protocol == "grpc" and "://" not in url:
        url = f"http://{url}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(where, "an http:// or https:// address", f"text of {len(url)} characters")
    name, timeout = variable("TIMEOUT", "10000")
    name_compression, compression = variable("COMPRESSION", "none")
    if compression not in ("none", "gzip"):
        raise SettingsError(name_compression, "none or gzip", f"text of {len(compression)} characters")
    _, headers = variable("HEADERS")
    _, insecure = variable("INSECURE", "false")
    return Destination(
        name="otlp",
        protocol=protocol,
        url=url,
        headers=_headers(headers),
        timeout_s=_milliseconds(name, timeout),
        gzip=compression == "gzip",
        certificate=variable("CERTIFICATE")[1],
        client_certificate=variable("CLIENT_CERTIFICATE")[1],
        client_key=variable("CLIENT_KEY")[1],
        insecure=parts.scheme == "http" or insecure.strip().lower() == "true",
    )


def langfuse_destination(environ: Mapping[str, str]) -> Destination | None:
    """Return the Langfuse server its variables name; None unless keys and host are all there.

    The SDK's default host is not assumed: keys that happen to be in the
    environment are no consent to send prompts to somebody's cloud.
    """
    public, secret = environ.get("LANGFUSE_PUBLIC_KEY", ""), environ.get("LANGFUSE_SECRET_KEY", "")
    base = environ.get("LANGFUSE_BASE_URL") or environ.get("LANGFUSE_HOST", "")
    if not (public and secret and base):
        return None
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError("LANGFUSE_BASE_URL", "an http:// or https:// address", f"text of {len(base)} characters")
    token = base64.b64encode(f"{public}:{secret}".encode()).decode("ascii")
    return Destination(
        name="langfuse",
        protocol="http/protobuf",
        url=base.rstrip("/") + "/api/public/otel/v1/traces",
        headers={"authorization": f"Basic {token}", "x-langfuse-ingestion-version": "4"},
        gzip=True,
        environ={k: environ[k] for k in ("LANGFUSE_TRACING_ENVIRONMENT", "LANGFUSE_RELEASE") if environ.get(k)},
    )


def _headers(text: str) -> dict[str, str]:
    pairs = (item.partition("=") for item in text.split(","))
    return {
        unquote(key.strip()).lower(): unquote(value.strip()) for key, found, value in pairs if found and key.strip()
    }


def _milliseconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise SettingsError(name, "milliseconds, a number over 0", f"text of {len(text)} characters")
    return value / 1000
