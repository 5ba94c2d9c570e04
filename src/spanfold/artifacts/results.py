"""What became of an object that was to be kept as a file."""

from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["array", "json", "text", "bytes", "media", "figure", "file", "none"]
"""The form an object was kept in; `none` when there is no file."""


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """A file made from an object, or the reason why there is none."""

    kind: Kind
    type: str
    """Type of the object: `builtins.dict`, `numpy.ndarray`."""
    path: str | None = None
    """The file, relative to the run directory, components joined by `/`."""
    media_type: str | None = None
    sha256: str | None = None
    """SHA-256 of the file, 64 lower-case hex digits."""
    size_bytes: int | None = None
    shape: tuple[int, ...] | None = None
    """Of an array, also of one that was not stored."""
    dtype: str | None = None
    """NumPy's name for the element type in the file: `float64`."""
    figure: str | None = None
    """A picture of the array, relative to the run directory."""
    figure_sha256: str | None = None
    """SHA-256 of the picture, 64 lower-case hex digits."""
    note: str | None = None
    """What was changed on the way to the file, such as `nonfinite`: NaN became null."""
    reason: str | None = None
    """Why there is no file, in a sentence; None when there is one."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that say something, as JSON values."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.shape is not None:
            known["shape"] = list(self.shape)
        return {key: value for key, value in known.items() if value is not None}


@dataclass(frozen=True, slots=True)
class StoredFigure:
    """A picture made of an array."""

    path: str
    """Relative to the run directory."""
    sha256: str
    size_bytes: int
    media_type: str = "image/png"


@dataclass(frozen=True, slots=True)
class StoredMedia:
    """A copy named after its content, or the reason why there is none."""

    name: str
    """Name of the original."""
    path: str | None = None
    """`media/<16 hex>_<name>`, relative to the run directory."""
    media_type: str | None = None
    sha256: str | None = None
    size_bytes: int | None = None
    reason: str | None = None
    """Why it was not copied; None when it was."""


def type_name(value: object) -> str:
    """Name the type of an object without asking the object."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def why(error: BaseException) -> str:
    """Describe a failure for a record: what kind it was, never a value.

    The cause of an error of the operating system is safe to tell; the text of
    any other may quote what it failed on, so only its type is kept.
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{type(error).__name__}: {error.strerror}"
    return type(error).__name__
