"""An edited picture of an array is noticed."""

import pytest

import spanfold
from spanfold.fold import verify_run

numpy = pytest.importorskip("numpy")
pytest.importorskip("matplotlib")


def test_an_edited_picture_of_an_array_is_named(tmp_path):
    with spanfold.run("figures", dir=tmp_path / "run") as run, spanfold.stage("M1", cycle=0):
        spanfold.artifact("saliency_map", numpy.eye(4))
    assert verify_run(run.dir).ok
    picture = run.dir / "M1" / "artifacts" / "c0_saliency_map.png"
    picture.write_bytes(picture.read_bytes() + b"x")

    verdict = verify_run(run.dir)

    assert not verdict.ok
    assert "c0_saliency_map.png" in repr(verdict)
