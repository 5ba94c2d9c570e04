"""The endpoints of a Langfuse server that spanfold sends to, on 127.0.0.1 (facts, section 2).

What a real server refuses is refused here, and each request that it would
refuse, or misunderstand, is noted in `problems`. Like a real server this one
keeps a span that is sent twice twice, overwrites a score of the same id, name
and day, and knows media by their hash.
"""

import base64
import hashlib
import json
import re
import ssl
from datetime import datetime
from typing import Any, Final, cast
from urllib.parse import parse_qs, urlsplit

from spanfold.testing._http import Answer, LoopbackOtlpReceiver, Reply, Request

TRACES: Final = "/api/public/otel/v1/traces"
SCORES: Final = "/api/public/scores"
MEDIA: Final = "/api/public/media"
STORE: Final = "/store"
_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}")
_SPAN_ID: Final = re.compile(r"[0-9a-f]{16}")
_ENVIRONMENT: Final = re.compile(r"(?!langfuse)[a-z0-9_-]{1,40}")
_FIELDS: Final = frozenset(
    {
        *("id", "traceId", "sessionId", "observationId", "datasetRunId", "name", "value", "comment", "metadata"),
        *("environment", "queueId", "source", "dataType", "configId", "timestamp"),
    }
)
_TYPES: Final = frozenset(
    {"span", "generation", "event", "agent", "tool", "chain", "retriever", "evaluator", "embedding"}
)


class LoopbackLangfuse(LoopbackOtlpReceiver):
    """A Langfuse server on 127.0.0.1, as far as spanfold talks to one.

    Attributes:
        scores: (id, name, day) -> the score as it was sent last.
        scores_taken: How many scores were taken, those that overwrote one included.
        media: Id -> what is known of a file; `content` holds its bytes once it was uploaded.
        links: (media id, trace id, observation id, field), each once.
        takes_lists: Whether several scores may come in one request; servers before version 5 of the SDK take one.
        refuse_scores: Scores of these names are rejected.
    """

    public_key = "pk-lf-loopback"
    secret_key = "sk-lf-loopback"

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(path=TRACES, tls=tls)
        self.scores: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.scores_taken = 0
        self.media: dict[str, dict[str, Any]] = {}
        self.links: set[tuple[str, str, str | None, str]] = set()
        self.takes_lists = True
        self.refuse_scores: frozenset[str] = frozenset()
        self.fails: dict[str, Reply] = {}
        """Path -> how to answer requests below it, in place of `reply`."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables that name this server."""
        return {
            "LANGFUSE_BASE_URL": self.endpoint,
            "LANGFUSE_PUBLIC_KEY": self.public_key,
            "LANGFUSE_SECRET_KEY": self.secret_key,
        }

    def answer(self, request: Request, reply: Reply) -> Answer:
        """Check a request and keep what it brings."""
        path = urlsplit(request.path).path
        failing = next((reply for prefix, reply in self.fails.items() if path.startswith(prefix)), reply)
        if path.startswith(STORE):
            return self._store(request, failing)
        wanted = "Basic " + base64.b64encode(f"{self.public_key}:{self.secret_key}".encode()).decode()
        if request.headers.get("authorization") != wanted:
            return Answer(401, b'{"message":"Invalid credentials"}')
        if path == TRACES:
            return self._traces(request, failing)
        if failing.status >= 300:
            return Answer(failing.status, b'{"message":"no"}')
        try:
            body: Any = json.loads(request.body)
        except ValueError:
            return self._wrong(request, "a body that is not JSON")
        if (request.method, path) == ("POST", SCORES):
            return self._scores(request, body)
        if (request.method, path) == ("POST", MEDIA):
            return self._upload_url(request, body)
        if request.method == "PATCH" and path.startswith(f"{MEDIA}/"):
            return self._uploaded(request, path.removeprefix(f"{MEDIA}/"), body)
        return self._wrong(request, f"{request.method} {path}", 404)

    def _wrong(self, request: Request, problem: str, status: int = 400) -> Answer:
        request.problem = request.problem or problem
        return Answer(status, json.dumps({"message": problem}).encode())

    # -- spans

    def _traces(self, request: Request, reply: Reply) -> Answer:
        version = request.headers.get("x-langfuse-ingestion-version", "4")
        if not version.isdigit() or int(version) > 4:
            return self._wrong(request, "ingestion version")
        if request.headers.get("content-encoding", "gzip") != "gzip":
            return self._wrong(request, "content-encoding")
        before = len(self.spans)
        answer = self.take_spans(request, reply, TRACES)
        for span in self.spans[before:]:
            if not (_TRACE_ID.fullmatch(span.trace_id) and _SPAN_ID.fullmatch(span.span_id)):
                request.problem = "an id that is none"
            if span.attributes.get("langfuse.observation.type", "span") not in _TYPES:
                request.problem = "an unknown type of observation"
        answer.content_type = "application/json"
        answer.content = answer.content or b"{}"
        return answer

    # -- scores

    def _scores(self, request: Request, body: Any) -> Answer:
        if len(request.body) > 1_000_000:
            return self._wrong(request, "a body of more than 1 MB", 413)
        if isinstance(body, list) and not self.takes_lists:
            return Answer(400, b'{"message":"Invalid request data"}')
        scores: list[Any] = cast("list[Any]", body) if isinstance(body, list) else [body]
        errors: list[dict[str, str]] = []
        for score in scores:
            problem = _score_problem(score)
            if problem:
                request.problem = request.problem or problem
            if problem or score["name"] in self.refuse_scores:
                errors.append({"message": problem or "no"})
                continue
            self.scores_taken += 1
            self.scores[score["id"], score["name"], score["timestamp"][:10]] = score
        if not isinstance(body, list):
            return Answer(400, b'{"message":"no"}') if errors else Answer(200, json.dumps({"id": body["id"]}).encode())
        if not errors:
            return Answer(202, b'{"message":"Accepted"}')
        told = {"accepted": len(scores) - len(errors), "rejected": len(errors), "errors": errors}
        return Answer(207, json.dumps(told).encode())

    # -- media

    def _upload_url(self, request: Request, body: Any) -> Answer:
        try:
            digest, size, kind = body["sha256Hash"], body["contentLength"], body["contentType"]
            trace_id, observation_id, field = body["traceId"], body.get("observationId"), body["field"]
        except (KeyError, TypeError):
            return self._wrong(request, "a field is missing")
        if (
            not re.fullmatch(r"[A-Za-z0-9+/]{43}=", digest)
            or type(size) is not int
            or not _TRACE_ID.fullmatch(trace_id)
        ):
            return self._wrong(request, "a hash, length or id that is none")
        if field not in ("input", "output", "metadata") or (observation_id and not _SPAN_ID.fullmatch(observation_id)):
            return self._wrong(request, "field or observation")
        media_id = digest.replace("+", "-").replace("/", "_")[:22]
        self.links.add((media_id, trace_id, observation_id, field))
        known = self.media.setdefault(media_id, {"sha256Hash": digest, "contentLength": size, "contentType": kind})
        is_there = known.get("uploadHttpStatus") == 200
        url = None if is_there else f"{self.endpoint}{STORE}/{media_id}?signature=s"
        return Answer(201, json.dumps({"mediaId": media_id, "uploadUrl": url}).encode())

    def _store(self, request: Request, reply: Reply) -> Answer:
        parts = urlsplit(request.path)
        known = self.media.get(parts.path.removeprefix(f"{STORE}/"))
        if request.method != "PUT" or known is None or parse_qs(parts.query) != {"signature": ["s"]}:
            return self._wrong(request, "a place that was not given", 403)
        if "authorization" in request.headers:
            return self._wrong(request, "the keys were shown to the store", 403)
        if reply.status >= 300:
            return Answer(reply.status)
        digest = base64.b64encode(hashlib.sha256(request.body).digest()).decode()
        said = request.headers.get("x-amz-checksum-sha256")
        if not digest == said == known["sha256Hash"] or len(request.body) != known["contentLength"]:
            return self._wrong(request, "bytes that do not match their hash")
        if request.headers.get("content-type") != known["contentType"]:
            return self._wrong(request, "another content type than announced", 403)
        known["content"] = request.body
        return Answer(200)

    def _uploaded(self, request: Request, media_id: str, body: Any) -> Answer:
        known = self.media.get(media_id)
        if known is None:
            return self._wrong(request, "media that nobody announced", 404)
        if not _is_time(body.get("uploadedAt")) or type(body.get("uploadHttpStatus")) is not int:
            return self._wrong(request, "a report that cannot be read")
        if body["uploadHttpStatus"] == 200 and "content" not in known:
            return self._wrong(request, "a success that was none")
        known["uploadHttpStatus"] = body["uploadHttpStatus"]
        return Answer(200, b"{}")


def _score_problem(score: Any) -> str:
    if not isinstance(score, dict):
        return "a score that is no object"
    found = cast("dict[str, Any]", score)
    if set(found) - _FIELDS:
        return f"unknown fields {sorted(set(found) - _FIELDS)}"
    value, kind = found.get("value"), found.get("dataType")
    if not isinstance(found.get("name"), str) or not isinstance(found.get("id"), str):
        return "name or id"
    if kind == "NUMERIC" and type(value) not in (int, float):
        return "a number was expected"
    if kind == "BOOLEAN" and (type(value) is not int or value not in (0, 1)):
        return "0 or 1 was expected"
    if kind in ("CATEGORICAL", "TEXT") and type(value) is not str:
        return "a text was expected"
    if not _TRACE_ID.fullmatch(str(found.get("traceId"))):
        return "traceId"
    if "observationId" in found and not _SPAN_ID.fullmatch(str(found["observationId"])):
        return "observationId"
    if not _ENVIRONMENT.fullmatch(str(found.get("environment", "default"))):
        return "environment"
    if not _is_time(found.get("timestamp")):
        return "a timestamp without an offset, which makes a new score each day"
    return "" if isinstance(found.get("metadata", {}), dict) else "metadata"


def _is_time(text: Any) -> bool:
    try:
        return datetime.fromisoformat(str(text)).tzinfo is not None
    except ValueError:
        return False
