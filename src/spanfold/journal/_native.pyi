from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spanfold.journal._encode import AttributeValue, Fragment, Place
from spanfold.journal._frames import Frame

class Encoder:
    passes: Callable[[bytes], bool]
    def fragment(
        self, attributes: Mapping[str, AttributeValue], notes: dict[str, str] | None = None, /
    ) -> Fragment: ...
    def own_span(
        self,
        place: Place,
        trace_id: bytes,
        span_id: bytes,
        parent_span_id: bytes,
        start_ns: int,
        end_ns: int,
        self_ns: int,
        before: Fragment,
        fragment: Fragment,
        status_code: int,
        status_message: str,
        links: Sequence[tuple[str, str, Mapping[str, AttributeValue]]] | None,
        /,
    ) -> bytes: ...
    def started(
        self,
        trace_id: bytes,
        span_id: bytes,
        time_ns: int,
        place: bytes,
        parent_span_id: bytes,
        fragment: Fragment,
        /,
    ) -> bytes: ...
    @staticmethod
    def join(first: Fragment, second: Fragment, /) -> Fragment: ...

class Tip:
    seq: int
    size: int
    head: bytes
    torn: tuple[bytes, int, int] | None
    next_check: float
    device: int
    inode: int
    descriptor: int
    def append(self, frame: tuple[bytes, bytes, bytes], body: bytes, /) -> bool: ...

def setup(
    *,
    fragment: type,
    json_text: type,
    no_notes: dict[str, str],
    dumps: Callable[..., bytes],
    slow_fragment: Callable[..., Any],
    slow_own_span: Callable[..., Any],
    slow_started: Callable[..., Any],
    fresh_hash: object,
    monotonic: Callable[[], float],
    self_key: bytes,
    started_name: bytes,
    parent_head: bytes,
    middle: bytes,
    slow_join: Callable[..., Any],
) -> None: ...

class Writer:
    def span(self, body: bytes, is_clean: bool, frame: Frame | None = None, /) -> None: ...
    def event(self, body: bytes, is_clean: bool, frame: Frame | None = None, /) -> None: ...

def setup_writer(slow_span: Callable[..., None], slow_event: Callable[..., None], /) -> None: ...
