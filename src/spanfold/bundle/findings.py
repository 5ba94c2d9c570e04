"""What is wrong with a bundle, in words that name the place."""

from dataclasses import dataclass
from typing import Final, Literal

Code = Literal[
    "edited",
    "truncated",
    "missing",
    "foreign",
    "duplicate",
    "unsafe",
    "contradiction",
    "seal_broken",
    "adopted",
    "unchecked",
]

INFO: Final[frozenset[str]] = frozenset({"adopted", "unchecked"})


@dataclass(frozen=True, slots=True)
class BundleFinding:
    """One thing about a bundle that is not as it was exported, or that the run in it is not as it was recorded."""

    code: Code
    """`edited`: other bytes than there must be. `truncated`: bytes are gone from the end. `missing`: a file that the
    manifest or the journal names is not there. `foreign`: bytes or a file that nothing names. `duplicate`: a file that
    comes again. `unsafe`: a link, device or name that leads out of the bundle. `contradiction`: the manifest says of the
    run what its journal does not. `seal_broken`: the chain of the journal does not hold. `adopted`: `recover` took up and
    sealed complete bytes of an interrupted run. `unchecked`: could not be compared, and why."""
    entry: str
    """Name in the archive: `manifest.json`, `run/M2/log.json`; empty for what belongs to no member."""
    place: Literal["bundle", "entry"]
    """What the range counts in: bytes of the bundle's own file, which is compressed, or bytes of the entry."""
    offset: int
    """First byte of the range."""
    length: int
    """Bytes of the range; 0 when bytes are missing at `offset`."""
    detail: str
    """What was expected and found, in plain words."""

    @property
    def severity(self) -> Literal["error", "info"]:
        """`info` for `adopted` and `unchecked`, else `error`."""
        return "info" if self.code in INFO else "error"

    def __str__(self) -> str:
        """Say it in a sentence."""
        begin, end = self.offset, self.offset + self.length
        if self.place == "bundle":
            return f"{self.entry or 'the bundle'} (bytes {begin} to {end} of the bundle): {self.detail}"
        return f"{self.entry}, bytes {begin} to {end}: {self.detail}"
