"""Turn objects into files of a run, with their hashes.

`store` keeps anything; `store_array`, `render_figure` and `store_media` are
what it is made of. `snapshot_workspace` keeps a whole directory, and
`restore_workspace` gives it back. Files are written atomically, never over
earlier ones, and never outside the run. NumPy and Matplotlib are optional, and
loaded only for objects that need them. docs/artifacts.md says which object
becomes what.
"""

from spanfold.artifacts.arrays import NotStorable, is_array, store_array
from spanfold.artifacts.figures import FigurePlan, plan_figure, render_figure
from spanfold.artifacts.media import MAX_MEDIA_BYTES, MEDIA_TYPES, store_media
from spanfold.artifacts.objects import Scrub, ToTree, store, store_bytes, store_json, store_text
from spanfold.artifacts.results import Kind, StoredArtifact, StoredFigure, StoredMedia
from spanfold.artifacts.snapshots import (
    TEXT_SUFFIXES,
    Restored,
    SnapshotLimits,
    WorkspaceSnapshot,
    restore_workspace,
    snapshot_workspace,
)

__all__ = [
    "MAX_MEDIA_BYTES",
    "MEDIA_TYPES",
    "TEXT_SUFFIXES",
    "FigurePlan",
    "Kind",
    "NotStorable",
    "Restored",
    "Scrub",
    "SnapshotLimits",
    "StoredArtifact",
    "StoredFigure",
    "StoredMedia",
    "ToTree",
    "WorkspaceSnapshot",
    "is_array",
    "plan_figure",
    "render_figure",
    "restore_workspace",
    "snapshot_workspace",
    "store",
    "store_array",
    "store_bytes",
    "store_json",
    "store_media",
    "store_text",
]
