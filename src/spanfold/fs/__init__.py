"""The only place of spanfold that opens files for writing.

`SafeRoot` reaches what is inside one directory and nothing else; `AppendHandle`
appends without leaving torn lines; `FileLock` keeps two writers apart;
`safe_name` makes file names out of any text. docs/safe-paths.md says what is
promised.
"""

from spanfold.fs.append import AppendHandle
from spanfold.fs.device import fsync_folder, sha256_file
from spanfold.fs.entries import SizeLimitExceeded, WalkBudgetExceeded, WalkEntry, entry_kind
from spanfold.fs.lock import FileLock
from spanfold.fs.paths import is_temporary, safe_name, split_relative
from spanfold.fs.pieces import FileSpan, Piece, Pieces, SpanTooShort
from spanfold.fs.root import SafeRoot

__all__ = [
    "AppendHandle",
    "FileLock",
    "FileSpan",
    "Piece",
    "Pieces",
    "SafeRoot",
    "SizeLimitExceeded",
    "SpanTooShort",
    "WalkBudgetExceeded",
    "WalkEntry",
    "entry_kind",
    "fsync_folder",
    "is_temporary",
    "safe_name",
    "sha256_file",
    "split_relative",
]
