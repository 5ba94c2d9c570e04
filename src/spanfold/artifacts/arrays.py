"""Keep arrays and tensors as `.npy` files that are read without pickle.

No framework is imported: an array is recognised by the methods its class has,
and NumPy is loaded only for objects that are arrays. Element types are kept;
one that NumPy cannot name in a file (bfloat16, the 8-bit floats) becomes
float32, which holds each of its values.
"""

import io
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from spanfold.artifacts.placing import place
from spanfold.artifacts.results import StoredArtifact, type_name, why
from spanfold.errors import SpanfoldError
from spanfold.fs import SafeRoot, split_relative

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

NPY_MEDIA_TYPE: Final = "application/x-npy"
_CHUNK_BYTES: Final = 1 << 20


class NotStorable(SpanfoldError):
    """An array that no `.npy` file holds without pickle; the message is the reason."""


def is_array(value: object) -> bool:
    """Tell whether an object is an array or tensor, or a list or tuple that begins with one.

    Looks at classes only and runs nothing of the object's own.
    """
    if isinstance(value, list | tuple):
        items = cast("list[object] | tuple[object, ...]", value)
        return bool(items) and _is_single(items[0])
    return _is_single(value)


def _is_single(value: object) -> bool:
    kind: type = type(value)
    if _is_tensor(kind):
        return True
    # A NumPy scalar looks like an array too, and is a number.
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, numpy.generic):
        return False
    return all(hasattr(kind, name) for name in ("__array__", "shape", "dtype"))


def _is_tensor(kind: type) -> bool:
    # All three: files have a `detach` of their own, and it would break them.
    return all(callable(getattr(kind, name, None)) for name in ("detach", "cpu", "numpy"))


def to_array(value: object) -> "tuple[Array, str | None]":
    """Return an array or tensor as a plain NumPy array, and a note of what was changed.

    A list of equal shapes is stacked along a new first axis. The note is
    `widened` when the element type had to become float32.

    Raises:
        NotStorable: It cannot be written without pickle, or its shapes differ.
        Exception: Whatever the object's own methods raise.
    """
    if isinstance(value, list | tuple):
        arrays, notes = zip(*(_single(item) for item in cast("list[object] | tuple[object, ...]", value)), strict=True)
        return _stacked(list(arrays)), next((note for note in notes if note), None)
    return _single(value)


def _single(item: object) -> "tuple[Array, str | None]":
    if not _is_single(item):
        raise NotStorable(f"the list holds a {type_name(item)} beside arrays")
    value, note = _numpy_of(item) if _is_tensor(type(item)) else (item, None)
    import numpy as np

    if isinstance(value, np.ma.MaskedArray):
        raise NotStorable("a .npy file holds no mask: store its data and its mask as two arrays")
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise NotStorable("elements of type object would need pickle, which runs code when it is read")
    if array.dtype.isbuiltin == 2:
        # Types that other packages add to NumPy (ml_dtypes); all of them are narrower than float32.
        return array.astype(np.float32), "widened"
    return array, note


def _numpy_of(value: Any) -> tuple[Any, str | None]:
    tensor = value.detach().cpu()
    try:
        return tensor.numpy(), None
    except TypeError:
        # NumPy has no such element type; float32 holds each value of the ones that frameworks use (bfloat16, float8).
        return tensor.float().numpy(), "widened"


def _stacked(arrays: "list[Array]") -> "Array":
    import numpy as np

    if len({array.shape for array in arrays}) > 1:
        raise NotStorable(f"{len(arrays)} arrays of different shapes: store each under a name of its own")
    return np.stack(arrays)


def store_array(root: SafeRoot, folder: str, stem: str, obj: object) -> StoredArtifact | None:
    """Keep an array, tensor or list of them as `<folder>/<stem>.npy`.

    Args:
        root: The run directory.
        folder: Folder in it, made when missing.
        stem: Name of the file; made safe, and made different when another
            array has it (placing).
        obj: What to keep.

    Returns:
        The file, or why there is none; None when `obj` is no array at all.

    Raises:
        UnsafePathError: `folder` is no safe relative path.
    """
    return store_with_array(root, folder, stem, obj)[0] if is_array(obj) else None


def store_with_array(root: SafeRoot, folder: str, stem: str, obj: object) -> "tuple[StoredArtifact, Array | None, str]":
    """Keep an array; return the result, the array that was kept and the stem of its file."""
    split_relative(folder)
    array: Array | None = None
    try:
        array, note = to_array(obj)
        chunks = _npy(array)
        placed = place(root, folder, stem, ".npy", chunks)
    except NotStorable as error:
        return _refused(obj, array, str(error)), None, stem
    except ModuleNotFoundError:
        return _refused(obj, array, "arrays need NumPy: pip install 'spanfold[figures]'"), None, stem
    except Exception as error:
        return _refused(obj, array, why(error)), None, stem
    stored = StoredArtifact(
        kind="array",
        type=type_name(obj),
        path=placed.path,
        media_type=NPY_MEDIA_TYPE,
        sha256=placed.sha256,
        size_bytes=placed.size_bytes,
        shape=array.shape,
        dtype=str(array.dtype),
        note=note,
    )
    return stored, array, placed.stem


def _refused(obj: object, array: "Array | None", reason: str) -> StoredArtifact:
    shape = array.shape if array is not None else None
    return StoredArtifact(kind="none", type=type_name(obj), shape=shape, reason=reason)


def _npy_of_records(array: "Array") -> Callable[[], Iterable[bytes]]:
    """Return the `.npy` file of an array of records, whose header may need a newer version of the format."""
    from numpy.lib import format as npy

    for version in ((1, 0), (2, 0), (3, 0)):
        # Named, because NumPy warns when it chooses a newer one itself.
        whole = io.BytesIO()
        try:
            npy.write_array(whole, array, version=version, allow_pickle=False)
        except ValueError:
            continue
        data = whole.getvalue()
        return lambda: (data,)
    raise NotStorable("no version of the .npy format holds its field names")


def _npy(array: "Array") -> Callable[[], Iterable[bytes]]:
    """Return the bytes of the `.npy` file, in chunks, without a second copy of the array."""
    import numpy as np
    from numpy.lib import format as npy

    if array.dtype.names is not None or array.dtype.itemsize == 0:
        return _npy_of_records(array)
    header = io.BytesIO()
    facts = npy.header_data_from_array_1_0(array)
    npy.write_array_header_1_0(header, facts)
    flat = np.ascontiguousarray(array.T if facts["fortran_order"] else array).reshape(-1).view(np.uint8)

    def chunks() -> Iterator[bytes]:
        yield header.getvalue()
        for begin in range(0, flat.size, _CHUNK_BYTES):
            yield flat[begin : begin + _CHUNK_BYTES].tobytes()

    return chunks
