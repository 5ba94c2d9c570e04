"""Langfuse's REST interface through its own SDK: scores, and the upload of media.

Through the client its package is made of, and not through its queues, which
log what went wrong and tell nobody (docs/decisions/0007-own-transport.md).
"""

import base64
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from spanfold.deliver._answer import Answer, judge_status, no_answer
from spanfold.deliver._bounded import within
from spanfold.deliver._destination import LANGFUSE_SCORES, Destination, langfuse_base
from spanfold.deliver._outbox import MAX_PATIENCE, Item
from spanfold.errors import SpanfoldError
from spanfold.fs import SafeRoot

T = TypeVar("T")
_NAME: Final = "spanfold"


_importing: Final = threading.Lock()
"""Scores and media are sent by two threads, and the package cannot be imported by two at once: its modules import each other."""
_http_log: Final = logging.getLogger("httpx")


def _not_ours(record: logging.LogRecord) -> bool:
    """Keep what `httpx` says of each request of ours out of the log of a program that has set it to INFO."""
    return not str(record.threadName).startswith("spanfold-")


class _NotTaken(Exception):
    """An answer that is none of the SDK's errors."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.reason)
        self.answer = answer


class _SdkSender:
    """A client of one server; made with the first request, and anew after one that was given up."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._base = langfuse_base(destination)
        self._http: Any = None
        self._api: Any = None
        self._api_error: type[Exception] = Exception

    def close(self) -> None:
        """Let the connections go."""
        http, self._http, self._api = self._http, None, None
        if http is not None:
            http.close()

    def _open(self) -> None:
        if self._api is None:
            with _importing:
                import httpx
                from langfuse.api import LangfuseAPI
                from langfuse.api.core import ApiError

                self._api_error = ApiError

            _http_log.addFilter(_not_ours)  # which adds it once
            self._http = httpx.Client(timeout=self._destination.timeout_s * MAX_PATIENCE, follow_redirects=False)
            self._api = LangfuseAPI(
                base_url=self._base,
                x_langfuse_sdk_name=_NAME,
                x_langfuse_public_key=self._destination.account,
                username=self._destination.account,
                password=self._destination.secret,
                httpx_client=self._http,
            )
            with _importing:
                # Each imports its modules when it is first asked for.
                _ = self._api.scores, self._api.media

    def _attempt(self, deadline: float, patience: int, act: Callable[[], Answer]) -> Answer:
        """Do something with the client, within a deadline; every failure is an answer."""
        try:
            self._open()
        except ImportError:
            return Answer("retry", "the packages of spanfold[langfuse] are not installed", float("inf"))
        except Exception as error:  # of another version than we know
            self.close()
            # The program itself imports the package just now.
            pause = None if type(error).__name__ == "_DeadlockError" else float("inf")
            return Answer("retry", f"the langfuse package cannot be used ({type(error).__name__})", pause)
        from httpx import HTTPError

        deadline = min(deadline, time.monotonic() + self._destination.timeout_s * patience)
        try:
            return within(deadline, act, lambda late: None)
        except _NotTaken as error:
            return error.answer
        except self._api_error as error:
            found: Any = error
            return _judge(found.status_code, found.headers)
        except (HTTPError, OSError, ValueError, SpanfoldError) as error:
            # Its thread may be at work with the client for as long as the peer likes.
            self.close()
            return no_answer(error)

    def _options(self) -> dict[str, Any]:
        return {"max_retries": 0, "timeout_in_seconds": self._destination.timeout_s * MAX_PATIENCE}


class ScoreSender(_SdkSender):
    """Sends scores."""

    def __init__(self, destination: Destination) -> None:
        super().__init__(destination)
        self._takes_lists = True

    def send(self, items: Sequence[Item], deadline: float, patience: int = 1) -> Answer:
        """Send scores in one request; sending them again changes nothing."""
        answer = self._attempt(deadline, patience, lambda: self._create([item.content for item in items]))
        if answer == Answer("refused", "HTTP 400") and self._takes_lists and len(items) == 1:
            # Servers of before version 5 of the SDK take one score, and no list of them.
            single = self._attempt(deadline, patience, lambda: self._create_one(items[0].content))
            self._takes_lists = single.result != "accepted"
            return single
        return answer

    def _create(self, scores: list[dict[str, Any]]) -> Answer:
        # Version 4 of the SDK knows no lists either.
        if not self._takes_lists or not hasattr(self._api.scores, "create"):
            for score in scores:
                self._create_one(score)
            return Answer("accepted")
        found: Any = self._api.scores.create(request=scores, request_options=self._options())
        rejected = getattr(found, "rejected", 0)
        if rejected:
            # Which ones it does not say; halving finds them, and what was accepted may be sent again.
            return Answer("refused", "HTTP 207, rejected")
        return Answer("accepted")

    def _create_one(self, score: Mapping[str, Any]) -> Answer:
        response = self._http.post(
            self._base + LANGFUSE_SCORES, json=score, auth=(self._destination.account, self._destination.secret)
        )
        is_answer = response.headers.get("content-type", "").startswith("application/json")
        if response.status_code >= 300 or not is_answer:
            raise _NotTaken(_judge(response.status_code, response.headers))
        return Answer("accepted")


class MediaSender(_SdkSender):
    """Uploads files, each once for a project."""

    def send(self, items: Sequence[Item], deadline: float, patience: int = 1) -> Answer:
        """Upload one file, if the server has not got it."""
        (item,) = items
        media = item.content
        try:
            with SafeRoot(media["root"]).open_read(media["path"]) as file:
                content = file.read()
        except (OSError, SpanfoldError) as error:
            return Answer("refused", f"the file cannot be read ({type(error).__name__})")
        if hashlib.sha256(content).hexdigest() != media["sha256"]:
            return Answer("refused", "the file is not as it was recorded")
        return self._attempt(deadline, patience, lambda: self._upload(media, content))

    def _upload(self, media: Mapping[str, Any], content: bytes) -> Answer:
        digest = base64.b64encode(bytes.fromhex(media["sha256"])).decode("ascii")
        place: Any = self._api.media.get_upload_url(
            content_type=media["contentType"],
            content_length=len(content),
            sha256hash=digest,
            field="metadata",
            trace_id=media["traceId"],
            **({"observation_id": media["observationId"]} if media["observationId"] else {}),
            request_options=self._options(),
        )
        if not place.upload_url:
            return Answer("accepted")  # it is there already
        headers = {"content-type": media["contentType"]}
        if "storage.googleapis.com" not in place.upload_url:  # which refuses headers that it did not sign
            headers |= {"x-amz-checksum-sha256": digest, "x-ms-blob-type": "BlockBlob"}
        begun = time.monotonic()
        response = self._http.put(place.upload_url, content=content, headers=headers)
        is_there = response.status_code < 300
        self._api.media.patch(
            place.media_id,
            uploaded_at=datetime.now(UTC),
            upload_http_status=response.status_code,
            upload_time_ms=int((time.monotonic() - begun) * 1000),
            **({} if is_there else {"upload_http_error": f"HTTP {response.status_code}"}),
            request_options=self._options(),
        )
        return Answer("accepted") if is_there else _judge(response.status_code, response.headers)


def _judge(status: int | None, headers: Mapping[str, str] | None) -> Answer:
    if status is None or status < 300:
        return Answer("retry", f"HTTP {status} with a body that is no answer of Langfuse")
    told = {key.lower(): value for key, value in (headers or {}).items()}
    return judge_status(status, told.get("retry-after", ""))
