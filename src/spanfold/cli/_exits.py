"""What a command's exit code means, and which error gives which. The same table is in docs/cli.md."""

import enum

from spanfold.errors import (
    BundleCorrupt,
    FoldError,
    JournalCorrupt,
    JournalMissing,
    LockedError,
    SettingsError,
    SpanfoldError,
    TimingsError,
    UnsafePathError,
)


class Exit(enum.IntEnum):
    """Exit codes. Numbers are never given another meaning."""

    DONE = 0
    """Done."""
    FAILED = 1
    """Failed, for a reason that has no number of its own; `doctor` found a problem."""
    USAGE = 2
    """Wrong usage: an argument or a setting cannot be used."""
    NOT_FOUND = 3
    """What was named is not there: no such run, folder, bundle or timings."""
    CORRUPT = 4
    """Something is not as it was recorded: edited, damaged, or missing from a sealed run or a bundle."""
    LOCKED = 5
    """Another process is at work there: it records, folds, recovers or sends the run."""
    NOTHING = 6
    """Nothing to recover."""
    CHANGED = 7
    """`timings compare --fail-on` found what it was to fail on."""
    INTERRUPTED = 130
    """Interrupted by Ctrl-C."""
    PIPE_CLOSED = 141
    """Whoever read stdout went away; the number a shell reports for other programs then."""


class UsageError(SpanfoldError):
    """An argument cannot be used."""


class NotFound(SpanfoldError):
    """What an argument names is not there."""


def exit_code(error: BaseException) -> Exit:
    """Return the exit code an error leads to."""
    for kinds, code in _CODES:
        if isinstance(error, kinds):
            return code
    return Exit.FAILED


_CODES: tuple[tuple[tuple[type[BaseException], ...], Exit], ...] = (
    ((KeyboardInterrupt,), Exit.INTERRUPTED),
    ((BrokenPipeError,), Exit.PIPE_CLOSED),
    ((UsageError, SettingsError, UnsafePathError), Exit.USAGE),
    ((NotFound, JournalMissing, TimingsError, FileNotFoundError, NotADirectoryError), Exit.NOT_FOUND),
    ((JournalCorrupt, BundleCorrupt, FoldError), Exit.CORRUPT),
    ((LockedError,), Exit.LOCKED),
)
