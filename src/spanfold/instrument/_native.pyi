from typing import Any, Self, TypeVar

from spanfold.instrument._near import Anchor, Recorder
from spanfold.instrument._span import RecordedSpan
from spanfold.journal import Fragment

_Span = TypeVar("_Span", bound=RecordedSpan)

class Span:
    def set(self, /, **fields: Any) -> Self: ...
    def announce(self) -> None: ...
    def make_current(self) -> None: ...
    def end(self, end_time: int | None = None) -> None: ...

def start(
    kind_of: type[_Span],
    run: Recorder,
    name: str,
    kind: str,
    parent: RecordedSpan | Anchor,
    parent_id: bytes,
    stage: str | None,
    cycle: int | None,
    before: Fragment,
    otel_kind: int,
    /,
) -> _Span: ...
def forked() -> None: ...
def setup(**parts: object) -> None: ...
