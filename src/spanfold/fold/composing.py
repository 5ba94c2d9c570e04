"""Join encoded values and spooled lists into the pieces of a document, with an indent of 2."""

from collections.abc import Iterable, Iterator, Sequence

import orjson

from spanfold.fold.family import Bucket, Composition


def joined_object(pairs: Iterable[tuple[str, Composition]], depth: int = 0) -> Iterator[bytes | Bucket]:
    """Yield an object.

    Args:
        pairs: Its keys, and the pieces of each value: encoded for `depth` + 1.
        depth: Where the object itself stands; 0 for the document.
    """
    before = b"{\n" + b"  " * (depth + 1)
    for key, value in pairs:
        yield b"%b%b: " % (before, orjson.dumps(key))
        yield from value
        before = b",\n" + b"  " * (depth + 1)
    yield b"{}" if before.startswith(b"{") else b"\n" + b"  " * depth + b"}"


def joined_list(bucket: str, buckets: Sequence[str]) -> Composition:
    """Return a list that is a value of the document: its spooled items, or an empty list."""
    return (b"[", Bucket(bucket, skip=1), b"\n  ]") if bucket in buckets else (b"[]",)
