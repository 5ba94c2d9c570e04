import hashlib
import io
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from spanfold.artifacts import StoredArtifact, is_array, store_array
from spanfold.errors import UnsafePathError
from spanfold.fs import SafeRoot
from tests.artifacts.tensors import Bfloat16Tensor, HostileTensor, Tensor

PLAIN_TYPES = arrays.scalar_dtypes() | arrays.byte_string_dtypes(max_len=5) | arrays.unicode_string_dtypes(max_len=5)
ANY_TYPE = PLAIN_TYPES | arrays.array_dtypes(PLAIN_TYPES, max_size=3)


def kept(root: SafeRoot, obj: Any, stem: str = "x") -> tuple[StoredArtifact, Any]:
    stored = store_array(root, "M1/artifacts", stem, obj)
    assert stored is not None
    assert stored.path is not None, stored.reason
    raw = (root.path / stored.path).read_bytes()
    assert (stored.sha256, stored.size_bytes) == (hashlib.sha256(raw).hexdigest(), len(raw))
    return stored, np.load(io.BytesIO(raw), allow_pickle=False)


@given(
    array=arrays.arrays(ANY_TYPE, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)), data=st.data()
)
@pytest.mark.contract("DL-149", "DL-178")
def test_any_array_without_objects_comes_back_as_it_was_and_numpy_would_have_written_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, array: Any, data: st.DataObject
) -> None:
    root = SafeRoot(tmp_path_factory.mktemp("run"))
    view = {
        "as it is": array,
        "transposed": array.T,
        "every other": array[::2] if array.ndim else array,
        "Fortran order": np.asfortranarray(array),
        "foreign byte order": array if array.dtype.names else array.astype(array.dtype.newbyteorder()),
    }[data.draw(st.sampled_from(["as it is", "transposed", "every other", "Fortran order", "foreign byte order"]))]

    stored, back = kept(root, view)

    # Bytes, because NumPy finds that a NaT inside a structure differs from itself.
    assert back.tobytes() == view.tobytes()
    assert back.dtype == view.dtype
    assert (stored.shape, stored.dtype) == (view.shape, str(view.dtype))
    by_numpy = io.BytesIO()
    with warnings.catch_warnings():
        # NumPy warns when field names need a newer header; we must not.
        warnings.simplefilter("ignore")
        np.save(by_numpy, view, allow_pickle=False)
    assert (root.path / str(stored.path)).read_bytes() == by_numpy.getvalue()


def test_the_file_has_the_name_the_contract_gives_it(root: SafeRoot) -> None:
    stored, _ = kept(root, np.zeros(3), "c0_relative_attention_attn_map")
    assert stored.to_dict() == {
        "kind": "array",
        "type": "numpy.ndarray",
        "path": "M1/artifacts/c0_relative_attention_attn_map.npy",
        "media_type": "application/x-npy",
        "sha256": stored.sha256,
        "size_bytes": 152,
        "shape": [3],
        "dtype": "float64",
    }


@pytest.mark.parametrize("dtype", ["int64", "float64", "uint8", "bool", "complex128", "float16"])
@pytest.mark.contract("DL-078", "DL-149")
def test_a_tensor_keeps_its_element_type(root: SafeRoot, dtype: str) -> None:
    values = np.array([0, 1, 2**7], dtype)
    stored, back = kept(root, Tensor(values))
    np.testing.assert_array_equal(back, values)
    assert back.dtype == values.dtype
    assert stored.note is None


@pytest.mark.contract("DL-149")
def test_an_element_type_numpy_does_not_have_is_widened_without_loss_and_says_so(root: SafeRoot) -> None:
    stored, back = kept(root, Bfloat16Tensor([1.0, -2.5]))
    assert back.tolist() == [1.0, -2.5]
    assert (stored.dtype, stored.note) == ("float32", "widened")


@pytest.mark.parametrize("container", [list, tuple])
@pytest.mark.parametrize("make", [Tensor, np.asarray])
@pytest.mark.contract("DL-078")
def test_a_list_of_equal_shapes_is_stacked_on_a_new_first_axis(root: SafeRoot, container: Any, make: Any) -> None:
    layers = [np.full((2, 3), n) for n in range(4)]
    _, back = kept(root, container(make(layer) for layer in layers))
    np.testing.assert_array_equal(back, np.stack(layers))


@pytest.mark.parametrize(
    ("obj", "reason"),
    [
        (np.array([{}, None]), "pickle"),
        (np.array([(1, "x")], dtype=[("a", "i4"), ("b", "O")]), "pickle"),
        ([Tensor([1, 2]), Tensor([1])], "different shapes"),
        ([Tensor([1, 2]), "text"], "builtins.str"),
        (np.ma.masked_array([1, 2], [True, False]), "mask"),
    ],
    ids=["objects", "record with objects", "ragged", "mixed", "masked"],
)
@pytest.mark.contract("DL-178")
def test_an_array_that_cannot_be_kept_leaves_its_type_and_the_reason(root: SafeRoot, obj: Any, reason: str) -> None:
    stored = store_array(root, "M1/artifacts", "x", obj)
    assert stored is not None
    assert stored.path is None
    assert stored.type == f"{type(obj).__module__}.{type(obj).__qualname__}"
    assert reason in str(stored.reason)
    assert not (root.path / "M1").exists()


def test_what_a_tensor_raises_does_not_come_out_and_its_text_is_not_kept(root: SafeRoot) -> None:
    stored = store_array(root, "M1/artifacts", "x", HostileTensor([1]))
    assert stored is not None
    assert stored.reason == "RuntimeError"
    assert "sk-live" not in repr(stored)


class ArrayOnlyAtInstance:
    """Answers yes to everything, as a mock does, but has none of it in its class."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was looked up on an object that is no array")


@pytest.mark.parametrize(
    "obj", [None, 1, 1.5, "text", b"bytes", {}, [], (), [1, 2], {"a": np.zeros(2)}, np.float64(2)],
)  # fmt: skip
def test_what_is_no_array_is_left_to_others(root: SafeRoot, obj: Any) -> None:
    assert not is_array(obj)
    assert store_array(root, "M1/artifacts", "x", obj) is None


def test_nothing_is_looked_up_on_an_object_to_see_that_it_is_no_array() -> None:
    assert not is_array(ArrayOnlyAtInstance())
    assert not is_array([ArrayOnlyAtInstance()])


def test_an_open_file_is_not_taken_for_a_tensor_because_it_has_detach(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with (tmp_path / "file").open() as file:
        assert not is_array(file)
        assert file.read() == "text"


@pytest.mark.contract("DL-151", "DL-173")
@pytest.mark.parametrize(
    "stem", ["generated:x", "a/b", "../../etc/passwd", "..", "", "CON", "\ud800", "x" * 5_000, "é\n\x1b[0m"]
)
def test_an_unsafe_stem_becomes_a_safe_file_inside_the_folder(root: SafeRoot, stem: str) -> None:
    stored, _ = kept(root, np.zeros(2), stem)
    (file,) = (root.path / "M1" / "artifacts").iterdir()
    assert stored.path == f"M1/artifacts/{file.name}"
    assert file.name.isascii()
    assert not set(file.name) & set(":/\\\n")
    assert sorted(root.path.iterdir()) == [root.path / "M1"]


@pytest.mark.parametrize("folder", ["../out", "/tmp", "", "a/../b"])
@pytest.mark.contract("DL-173")
def test_a_folder_outside_the_run_is_the_mistake_of_the_caller(root: SafeRoot, folder: str) -> None:
    with pytest.raises(UnsafePathError):
        store_array(root, folder, "x", np.zeros(2))
    assert list(root.path.parent.iterdir()) == [root.path]


class TestEarlierEvidence:
    @pytest.mark.contract("DL-142")
    def test_other_bytes_under_the_same_name_stand_beside_the_earlier_ones(self, root: SafeRoot) -> None:
        first, _ = kept(root, np.zeros(3))
        second, back = kept(root, np.ones(3))
        assert first.path == "M1/artifacts/x.npy"
        assert second.path == f"M1/artifacts/x-{str(second.sha256)[:12]}.npy"
        assert np.load(root.path / first.path).tolist() == [0, 0, 0]
        assert back.tolist() == [1, 1, 1]

    def test_the_same_bytes_are_the_same_file(self, root: SafeRoot) -> None:
        paths = [kept(root, array)[0].path for array in (np.zeros(3), np.ones(3), np.zeros(3), np.ones(3))]
        assert paths[:2] == paths[2:]
        assert len(list((root.path / "M1" / "artifacts").iterdir())) == 2

    def test_stems_that_become_the_same_safe_name_keep_files_of_their_own(self, root: SafeRoot) -> None:
        one, _ = kept(root, np.zeros(3), "a:b")
        other, _ = kept(root, np.ones(3), "a/b")
        assert one.path != other.path

    def test_a_planted_entry_in_the_way_is_neither_followed_nor_taken(self, root: SafeRoot, tmp_path: Path) -> None:
        (tmp_path / "victim").write_bytes(b"precious")
        root.ensure_dir("M1/artifacts")
        (root.path / "M1/artifacts/x.npy").symlink_to(tmp_path / "victim")
        stored, back = kept(root, np.zeros(3))
        assert stored.path != "M1/artifacts/x.npy"
        assert back.tolist() == [0, 0, 0]
        assert (tmp_path / "victim").read_bytes() == b"precious"

    def test_many_threads_with_one_name_lose_nothing(self, root: SafeRoot) -> None:
        results: list[StoredArtifact] = []

        def keep(n: int) -> None:
            results.append(kept(root, np.full(1_000, n % 8))[0])

        threads = [threading.Thread(target=keep, args=(n,)) for n in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 32
        assert sorted(np.load(root.path / path)[0] for path in {str(r.path) for r in results}) == list(range(8))
        assert len(list((root.path / "M1" / "artifacts").iterdir())) == 8

    def test_the_hash_is_of_the_bytes_in_the_file_while_the_array_is_being_changed(self, root: SafeRoot) -> None:
        array = np.zeros(4_000_000, dtype=np.uint8)
        stop = threading.Event()

        def change() -> None:
            while not stop.is_set():
                array[:] += 1

        changer = threading.Thread(target=change)
        changer.start()
        try:
            for n in range(5):
                kept(root, array, f"x{n}")
        finally:
            stop.set()
            changer.join()


@pytest.mark.contract("DL-140")
def test_a_file_the_disk_refuses_leaves_a_reason_and_no_litter(tmp_path: Path) -> None:
    program = (
        "import os, resource, sys\n"
        "import numpy as np\n"
        "from spanfold.artifacts import store_array\n"
        "from spanfold.fs import SafeRoot\n"
        "root = SafeRoot(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))\n"
        "print(store_array(root, 'M1', 'x', np.zeros(100_000)).reason)\n"
        "print(os.listdir(root.path / 'M1'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["OSError: File too large", "[]"]


def test_without_numpy_everything_else_is_kept_and_a_tensor_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "sys.modules['numpy'] = sys.modules['matplotlib'] = None\n"
        "from spanfold.artifacts import store\n"
        "from spanfold.fs import SafeRoot\n"
        "class Tensor:\n"
        "    def detach(self): return self\n"
        "    def cpu(self): return self\n"
        "    def numpy(self): return [1.0]\n"
        "root = SafeRoot(sys.argv[1])\n"
        "print(store(root, 'a', 'x', Tensor()).reason)\n"
        "print(store(root, 'a', 'x', {'a': 1}).path)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["arrays need NumPy: pip install 'spanfold[figures]'", "a/x.json"]


def test_importing_the_room_loads_neither_numpy_nor_matplotlib() -> None:
    program = "import sys, spanfold.artifacts; print([m for m in ('numpy', 'matplotlib', 'PIL') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"
