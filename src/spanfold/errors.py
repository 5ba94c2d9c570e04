"""Every error spanfold raises on purpose.

    SpanfoldError
    ├── SettingsError (ValueError)      a setting cannot be used: fix the argument or the variable it names
    ├── UnsafePathError (ValueError)    a name would leave its folder: choose another name
    ├── UnsafeEntryError                something on disk is not what it must be: move it aside
    ├── LockedError                     somebody else works there: wait or stop them
    ├── JournalError
    │   ├── JournalMissing              no journal where one was expected: check the path
    │   ├── JournalSealed               a record came after the end of its run: end the work inside the run
    │   └── JournalCorrupt              bytes contradict the format: see what verify names
    ├── FoldError                       documents cannot be made from this journal
    ├── DeliveryError                   a destination did not take what it was asked to take
    ├── BundleError
    │   └── BundleCorrupt               an archive does not match its manifest
    ├── TimingsError                    there is nothing to compare
    └── MissingExtra (ImportError)      an optional package is needed: install the extra it names

A message says where, what was expected, what was found and what to do now. It
quotes names, types and sizes, never the value of an attribute, which may be
secret. The same facts are attributes of the error, so nobody parses the text.

While a program is being recorded none of these reach it: they come from
configuring, reading, exporting and the command line (docs/how-it-works.md).
"""

from pathlib import Path


class SpanfoldError(Exception):
    """Root of every error spanfold raises on purpose."""


class SettingsError(SpanfoldError, ValueError):
    """A setting cannot be used.

    Attributes:
        setting: Name of the argument or environment variable.
        expected: What can be used.
        found: What there is, never the value itself.
    """

    def __init__(self, setting: str, expected: str, found: str) -> None:
        super().__init__(f"{setting}: expected {expected}, found {found}.")
        self.setting, self.expected, self.found = setting, expected, found


class UnsafePathError(SpanfoldError, ValueError):
    """A name from outside would leave the folder it belongs to."""


class UnsafeEntryError(SpanfoldError):
    """An entry on disk is a link, device or other kind than the one required."""


class LockedError(SpanfoldError):
    """Another process holds the lock of this folder."""


class JournalError(SpanfoldError):
    """A journal cannot be used."""


class JournalMissing(JournalError):
    """There is no journal where one was expected."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: expected a run directory with journal/*.otlp.jsonl, found none. "
            "Give the directory that holds run.json, or one above it to `spanfold run list`."
        )
        self.path = path


class JournalSealed(JournalError):
    """A record came after the end of its run. Inside a recorded program it is counted as lost, not raised."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder}: expected records until the end of the run, found one after it; a sealed journal is never changed. "
            "Wait for threads and tasks before the run ends."
        )
        self.folder = folder


class JournalCorrupt(JournalError):
    """Bytes of a journal are changed or gone, so nothing is built on it: no seal, no documents, no bundle.

    Attributes:
        path: The journal file.
        offset: First byte of the damage.
        length: Number of bytes it spans; 0 when bytes are missing there.
    """

    def __init__(self, path: Path, offset: int, length: int, found: str, advice: str) -> None:
        super().__init__(
            f"{path}, bytes {offset} to {offset + length}: {found}. Nothing was written. `spanfold run verify` names every "
            f"such range. Put back a copy of the journal if there is one. {advice}"
        )
        self.path, self.offset, self.length, self.found = path, offset, length, found


class FoldError(SpanfoldError):
    """Documents cannot be made from a journal."""


class DeliveryError(SpanfoldError):
    """A destination did not take what it was asked to take."""


class BundleError(SpanfoldError):
    """A bundle cannot be written or read."""


class BundleCorrupt(BundleError):
    """A bundle does not match its own manifest."""


class TimingsError(SpanfoldError):
    """There are no timings to answer from."""


class MissingExtra(SpanfoldError, ImportError):
    """An optional package is needed for what was asked.

    Attributes:
        extra: The extra to install.
    """

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the optional packages of spanfold[{extra}]: pip install 'spanfold[{extra}]'."
        )
        self.extra = extra
