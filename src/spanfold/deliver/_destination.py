"""Where records go: found from settings and the standard variables, checked when configuring.

`OTEL_EXPORTER_OTLP_*` mean what they mean elsewhere (facts 5.3): the signal's
own variable wins over the general one, the general endpoint gets `/v1/traces`
appended, headers are `key=value` lists with URL-encoded values.
"""

import base64
import hashlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from spanfold.errors import SettingsError
from spanfold.settings import Settings, described

Protocol = Literal["http/protobuf", "http/json", "grpc", "langfuse-sdk"]
Compression = Literal["none", "gzip", "deflate"]
_PROTOCOLS: Final[Mapping[str, Protocol]] = {"http/protobuf": "http/protobuf", "http/json": "http/json", "grpc": "grpc"}
_COMPRESSIONS: Final[Mapping[str, Compression]] = {"none": "none", "gzip": "gzip", "deflate": "deflate"}
HTTP_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of one HTTP request: a default collector takes 20 MiB."""
GRPC_LIMIT: Final = 3_500_000
"""Bytes of one gRPC request: a default collector takes 4 MiB."""
WINDOW: Final = 4 * 1024 * 1024
"""Bytes of a request with many spans: memory holds a few times as much."""
LANGFUSE_WINDOW: Final = 2 * 1024 * 1024
DEFAULT_TIMEOUT_S: Final = 10.0
GRPC_PORT: Final = 4317
"""The usual port of OTLP over gRPC; that of OTLP over HTTP is 4318."""
LANGFUSE_TRACES: Final = "/api/public/otel/v1/traces"
LANGFUSE_SCORES: Final = "/api/public/scores"
LANGFUSE_MEDIA: Final = "/api/public/media"
SCORES_LIMIT: Final = 900_000
"""Bytes of one request with scores: the server takes 1 MB."""
MEDIA_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Destination:
    """One place records are sent to."""

    name: str
    """`otlp`, `langfuse` (its spans), `langfuse-scores` or `langfuse-media`; names its acknowledgement file."""
    protocol: Protocol
    url: str
    """Full address; never logged with user or query."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    timeout_s: float = DEFAULT_TIMEOUT_S
    compression: Compression = "none"
    certificate: str = ""
    client_certificate: str = ""
    client_key: str = ""
    insecure: bool = False
    """gRPC without TLS."""
    environ: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Langfuse: what the environment says about every trace."""
    account: str = ""
    """Langfuse: the public key, which stands for a project. Another project is another destination."""
    secret: str = field(default="", repr=False)
    """Langfuse: the secret key."""
    has_media: bool = False
    """Langfuse: whether media are uploaded too, so that spans may refer to them."""

    @property
    def key(self) -> str:
        """Name of the files that say what this destination has acknowledged: another address is another destination."""
        identity = f"{self.url}\n{self.account}" if self.account else self.url
        return f"{self.name}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"

    @property
    def setting(self) -> Literal["otlp", "langfuse"]:
        """The setting that decides whether it is sent to."""
        return "langfuse" if self.name.startswith("langfuse") else "otlp"

    @property
    def limit_bytes(self) -> int:
        """Most bytes of one request."""
        if self.protocol == "langfuse-sdk":
            return SCORES_LIMIT
        return GRPC_LIMIT if self.protocol == "grpc" else HTTP_LIMIT

    @property
    def fill_bytes(self) -> int:
        """Bytes of protobuf after which a request is full."""
        # The same spans take more room as JSON. What still comes out too large is split before it is sent.
        return self.limit_bytes // 2 if self.protocol == "http/json" else self.limit_bytes

    @property
    def window_bytes(self) -> int:
        """Bytes of protobuf that a request with many spans may hold."""
        # Langfuse counts a span that is sent again twice, so a request that is lost should be a small one.
        return min(self.fill_bytes, LANGFUSE_WINDOW if self.setting == "langfuse" else WINDOW)

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
            # Without the extra scores are span events only, and media stay here (docs/delivery.md).
            has_extra = importlib.util.find_spec("langfuse") is not None
            extras = langfuse_extras(langfuse, environ) if has_extra else []
            has_media = any(extra.name == "langfuse-media" for extra in extras)
            found += [replace(langfuse, has_media=has_media), *extras]
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
    protocol = _PROTOCOLS.get(named_protocol.strip().lower())
    if protocol is None:
        raise SettingsError(name, "grpc, http/protobuf or http/json", described(named_protocol))
    url = own or (general if protocol == "grpc" else general.rstrip("/") + "/v1/traces")
    # Of a gRPC address without a scheme another variable says whether it is insecure; the scheme wins (OTLP exporter
    # configuration).
    has_scheme = "://" in url
    if protocol == "grpc" and not has_scheme:
        url = f"http://{url}"
    parts = address("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" if own else "OTEL_EXPORTER_OTLP_ENDPOINT", own or general, url)
    name, named = variable("COMPRESSION", "none")
    compression = _COMPRESSIONS.get(named.strip().lower())
    if compression is None or (compression == "deflate" and protocol == "grpc"):
        raise SettingsError(name, "none, gzip or, over HTTP, deflate", described(named))
    name, timeout = variable("TIMEOUT", "10000")
    _, insecure = variable("INSECURE", "false")
    return Destination(
        name="otlp",
        protocol=protocol,
        url=url,
        headers=_headers(*variable("HEADERS")),
        timeout_s=_milliseconds(name, timeout),
        compression=compression,
        certificate=variable("CERTIFICATE")[1],
        client_certificate=variable("CLIENT_CERTIFICATE")[1],
        client_key=variable("CLIENT_KEY")[1],
        insecure=parts.scheme == "http" if has_scheme else insecure.strip().lower() == "true",
    )


def address(variable: str, given: str, url: str = "") -> SplitResult:
    """Return the parts of an address.

    Args:
        variable: Where it was given.
        given: What was given.
        url: What is made of that; by default the same.

    Raises:
        SettingsError: It is none that can be sent to; names the variable it came from.
    """
    url = url or given
    try:
        parts = urlsplit(url)
        is_usable = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        )
    except ValueError:  # a port that is no number
        is_usable = False
    if not is_usable or not url.isascii() or not url.isprintable() or " " in url:
        raise SettingsError(variable, "an http:// or https:// address", described(given))
    return urlsplit(url)


def langfuse_destination(environ: Mapping[str, str]) -> Destination | None:
    """Return the Langfuse server its variables name; None unless keys and host are all there, and it is not switched off.

    The SDK's default host is not assumed: keys that happen to be in the
    environment are no consent to send prompts to somebody's cloud.
    """
    public, secret = environ.get("LANGFUSE_PUBLIC_KEY", ""), environ.get("LANGFUSE_SECRET_KEY", "")
    base = environ.get("LANGFUSE_BASE_URL") or environ.get("LANGFUSE_HOST", "")
    if not (public and secret and base) or _is_off(environ, "LANGFUSE_TRACING_ENABLED"):
        return None
    address("LANGFUSE_BASE_URL" if environ.get("LANGFUSE_BASE_URL") else "LANGFUSE_HOST", base)
    token = base64.b64encode(f"{public}:{secret}".encode()).decode("ascii")
    return Destination(
        name="langfuse",
        protocol="http/protobuf",
        url=base.rstrip("/") + LANGFUSE_TRACES,
        headers={"authorization": f"Basic {token}", "x-langfuse-ingestion-version": "4"},
        compression="gzip",
        account=public,
        secret=secret,
        environ={k: environ[k] for k in ("LANGFUSE_TRACING_ENVIRONMENT", "LANGFUSE_RELEASE") if environ.get(k)},
    )


def langfuse_extras(langfuse: Destination, environ: Mapping[str, str]) -> list[Destination]:
    """Return where scores and media of a Langfuse server go: its REST interface, each acknowledged by itself."""
    base = langfuse.url.removesuffix(LANGFUSE_TRACES)
    extra = replace(langfuse, protocol="langfuse-sdk", compression="none")
    scores = replace(extra, name="langfuse-scores", url=base + LANGFUSE_SCORES)
    media = replace(extra, name="langfuse-media", url=base + LANGFUSE_MEDIA, timeout_s=MEDIA_TIMEOUT_S)
    return [scores] if _is_off(environ, "LANGFUSE_MEDIA_UPLOAD_ENABLED") else [scores, media]


def _is_off(environ: Mapping[str, str], variable: str) -> bool:
    return environ.get(variable, "").strip().lower() in ("false", "0")


def langfuse_spans(extra: Destination) -> Destination:
    """Return where the spans go whose scores and media go to `extra`."""
    return replace(extra, name="langfuse", url=langfuse_base(extra) + LANGFUSE_TRACES)


def langfuse_base(extra: Destination) -> str:
    """Return the address of the server that scores and media go to."""
    return extra.url.removesuffix(LANGFUSE_SCORES).removesuffix(LANGFUSE_MEDIA)


def _headers(name: str, text: str) -> dict[str, str]:
    pairs = (item.partition("=") for item in text.split(","))
    headers = {
        unquote(key.strip()).lower(): unquote(value.strip()) for key, found, value in pairs if found and key.strip()
    }
    for key, value in headers.items():
        if not _HEADER_NAME.fullmatch(key) or not _HEADER_VALUE.fullmatch(value):
            raise SettingsError(name, "key=value pairs of printable text", "a character that no header may hold")
    return headers


_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


def _milliseconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise SettingsError(name, "milliseconds, a number over 0", described(text))
    return value / 1000
