import hashlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from spanfold.artifacts import FigurePlan, plan_figure, render_figure, store
from spanfold.artifacts.figures import MAX_PIXELS, MAX_POINTS, draw
from spanfold.fs import SafeRoot

pytestmark = pytest.mark.slow

SQUARE, WIDE = (8.0, 7.0), (8.0, 3.0)


def heatmap(title: str, **more: Any) -> FigurePlan:
    return FigurePlan("heatmap", title, SQUARE, **more)


@pytest.mark.parametrize(
    ("stem", "shape", "plan"),
    [
        # Row 0: a logit is never drawn, whatever else the name says.
        ("logit_attn_map", (4, 4), None),
        ("c0_LogitLens_diff", (4, 4), None),
        ("logit_score", (9,), None),
        # Row 1 and 2: attention over layers and heads.
        ("c0_x_attn", (2, 3, 4, 5), heatmap("c0_x_attn  (mean over 2L × 3H)", mean_over=(0, 1), limits="from zero")),
        ("Attention", (2, 3, 4, 5), heatmap("Attention  (mean over 2L × 3H)", mean_over=(0, 1), limits="from zero")),
        ("attn", (7, 4, 5), heatmap("attn  (mean over 7 heads)", mean_over=(0,), limits="from zero")),
        ("attn_diff", (7, 4, 5), heatmap("attn_diff  (mean over 7 heads)", mean_over=(0,), limits="from zero")),
        # Row 3 comes before row 4.
        ("attn_diff", (4, 5), heatmap("attn_diff", colour_map="coolwarm", limits="symmetric")),
        ("map_DIFF", (4, 5), heatmap("map_DIFF", colour_map="coolwarm", limits="symmetric")),
        # Row 4, by any of its words.
        ("attn", (4, 5), heatmap("attn")),
        ("rollout", (4, 5), heatmap("rollout")),
        ("spatial_x", (4, 5), heatmap("spatial_x")),
        ("heatmap", (4, 5), heatmap("heatmap")),
        ("c0_relative_attention_anything", (4, 5), heatmap("c0_relative_attention_anything")),
        # Row 5.
        *((word, (9,), FigurePlan("line", word, WIDE)) for word in ("entropy", "score", "prob", "weight", "rollout")),
        # Row 6.
        ("hidden", (4, 5), None),
        ("score", (4, 5), None),
        ("map", (9,), None),
        ("diff", (9,), None),
        ("attn", (9,), None),
        ("map", (4, 5, 6), None),
        ("rollout", (2, 3, 4, 5), None),
        ("attn", (1, 2, 3, 4, 5), None),
        ("attn", (), None),
    ],
)  # fmt: skip
@pytest.mark.contract("DL-079", "DL-080")
def test_name_and_shape_decide_on_the_picture(stem: str, shape: tuple[int, ...], plan: FigurePlan | None) -> None:
    assert plan_figure(stem, shape) == plan


class TestDrawing:
    @pytest.mark.contract("DL-080")
    def test_attention_is_averaged_over_layers_and_heads_and_coloured_from_zero(self) -> None:
        array = np.random.default_rng(1).random((2, 3, 4, 5)) + 1
        figure = self._drawn("attn", array)
        (image,) = figure.axes[0].images
        np.testing.assert_allclose(image.get_array(), array.mean(axis=(0, 1)))
        assert image.get_cmap().name == "viridis"
        assert image.get_clim() == (0, array.mean(axis=(0, 1)).max())
        assert figure.axes[0].get_title() == "attn  (mean over 2L × 3H)"
        assert figure.axes[0].get_aspect() == "auto"
        assert figure.get_size_inches().tolist() == [8, 7]
        assert len(figure.axes) == 2

    @pytest.mark.parametrize(
        ("values", "most"), [([[-3.0, 1.0]], 3.0), ([[0.5, 2.0]], 2.0), ([[0.0, 0.0]], 1.0), ([[np.nan, -np.inf]], 1.0)]
    )
    @pytest.mark.contract("DL-080")
    def test_a_difference_is_coloured_around_zero(self, values: Any, most: float) -> None:
        (image,) = self._drawn("diff", np.array(values)).axes[0].images
        assert image.get_cmap().name == "coolwarm"
        assert image.get_clim() == (-most, most)

    @pytest.mark.contract("DL-080")
    def test_a_map_is_coloured_from_least_to_greatest(self) -> None:
        (image,) = self._drawn("map", np.array([[2.0, 5.0], [np.inf, np.nan]])).axes[0].images
        assert image.get_cmap().name == "viridis"
        assert image.get_clim() == (2, 5)

    @pytest.mark.contract("DL-080")
    def test_a_line_names_its_axes(self) -> None:
        figure = self._drawn("entropy", np.array([3, 1, 2]))
        (axes,) = figure.axes
        (line,) = axes.lines
        assert line.get_xydata().tolist() == [[0, 3], [1, 1], [2, 2]]
        assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("position", "entropy", "entropy")
        assert figure.get_size_inches().tolist() == [8, 3]

    def test_a_large_map_is_averaged_into_what_a_picture_can_show_and_keeps_its_axes(self) -> None:
        array = np.zeros((3 * MAX_PIXELS, 10))
        array[:3] = [[6.0], [np.nan], [np.inf]]
        (image,) = self._drawn("map", array).axes[0].images
        assert image.get_array().shape == (MAX_PIXELS, 10)
        assert image.get_array()[0].tolist() == [6.0] * 10
        assert image.get_extent() == [-0.5, 9.5, 3 * MAX_PIXELS - 0.5, -0.5]

    def test_a_long_line_keeps_its_peaks(self) -> None:
        array = np.zeros(1_000_000)
        array[777_777], array[5], array[6] = 9.0, -9.0, np.nan
        (line,) = self._drawn("score", array).axes[0].lines
        points = line.get_xydata()
        assert len(points) <= MAX_POINTS
        assert (points[:, 1].max(), points[:, 1].min()) == (9, -9)
        assert abs(points[points[:, 1].argmax(), 0] - 777_777) < 200

    @staticmethod
    def _drawn(stem: str, array: Any) -> Any:
        plan = plan_figure(stem, array.shape)
        assert plan is not None
        return draw(plan, array, label=stem)


class TestFile:
    @pytest.mark.contract("DL-080")
    def test_the_picture_is_a_png_of_about_the_stated_size_with_its_hash(self, root: SafeRoot) -> None:
        figure = render_figure(root, "M1/artifacts", "attn_map", np.eye(4))
        assert figure is not None
        raw = (root.path / "M1/artifacts/attn_map.png").read_bytes()
        assert (figure.path, figure.media_type) == ("M1/artifacts/attn_map.png", "image/png")
        assert (figure.sha256, figure.size_bytes) == (hashlib.sha256(raw).hexdigest(), len(raw))
        with Image.open(io.BytesIO(raw)) as image:
            assert round(image.info["dpi"][0]) == 100
            # The tight bounding box cuts the margins of 800 by 700 dots.
            assert 700 < image.width <= 800
            assert 600 < image.height <= 700

    @pytest.mark.contract("DL-183", "DL-142")
    def test_an_old_picture_is_never_given_out_for_a_new_array(self, root: SafeRoot) -> None:
        old = render_figure(root, "a", "map", np.eye(3))
        new = render_figure(root, "a", "map", np.ones((3, 3)) - np.eye(3))
        assert old is not None
        assert new is not None
        assert old.path != new.path
        assert (root.path / old.path).read_bytes() != (root.path / new.path).read_bytes()
        # Nothing can be drawn: the picture that is there is not returned as if it were of this array.
        assert render_figure(root, "a", "map", np.zeros((0, 3))) is None

    def test_the_picture_stands_beside_its_array_under_the_same_name(self, root: SafeRoot) -> None:
        for array in (np.eye(3), np.zeros((3, 3))):
            stored = store(root, "a", "map", array)
            assert str(stored.figure) == str(stored.path).replace(".npy", ".png")

    @given(
        array=arrays.arrays(
            arrays.scalar_dtypes(), arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)
        ),
        stem=st.sampled_from(
            ["attn", "diff", "map", "score", "weight", "attn $\\frac{", "map 图\n\x1b", "m" * 9_000 + "map"]
        ),
    )
    @pytest.mark.contract("DL-081")
    def test_no_array_and_no_name_makes_drawing_raise_or_warn(
        self, tmp_path_factory: pytest.TempPathFactory, array: Any, stem: str
    ) -> None:
        root = SafeRoot(tmp_path_factory.mktemp("run"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            figure = render_figure(root, "a", stem, array)
        plan = plan_figure(stem, array.shape)
        drawable = plan is not None and array.size > 0 and array.dtype.kind in "biuf"
        if not drawable:
            assert figure is None
        elif np.isfinite(array).all() and abs(array.astype(float)).max() < 1e9 and array.astype(float).min() >= 0:
            assert figure is not None

    @pytest.mark.parametrize("stem", ["map $x_{", "map \\$", "map 图 🙂", "map\n\x00", "map " * 500])
    def test_a_name_that_is_no_plain_text_still_gets_its_picture(self, root: SafeRoot, stem: str) -> None:
        assert render_figure(root, "a", stem, np.eye(3)) is not None

    @pytest.mark.contract("DL-081")
    def test_a_disk_that_takes_no_picture_costs_only_the_picture(self, root: SafeRoot) -> None:
        (root.path / "a").write_text("a file where the folder should be")
        assert render_figure(root, "a", "map", np.eye(3)) is None

    def test_the_same_array_gives_the_same_picture_from_many_threads(self, root: SafeRoot) -> None:
        results: list[Any] = []

        def render(n: int) -> None:
            results.append(render_figure(root, f"t{n}", "attn_map", np.eye(9)))

        threads = [threading.Thread(target=render, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({figure.sha256 for figure in results}) == 1
        assert len(results) == 8


@pytest.mark.contract("DL-183")
def test_drawing_touches_no_pyplot_and_needs_no_display(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "import numpy as np\n"
        "from spanfold.artifacts import render_figure\n"
        "from spanfold.fs import SafeRoot\n"
        "print(render_figure(SafeRoot(sys.argv[1]), 'a', 'map', np.eye(3)) is not None, 'matplotlib.pyplot' in sys.modules)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "DISPLAY"} | {"MPLBACKEND": "TkAgg"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.contract("DL-081")
def test_figures_of_the_host_are_left_alone(root: SafeRoot) -> None:
    import matplotlib.pyplot as plt

    theirs = plt.figure()
    render_figure(root, "a", "map", np.eye(3))
    assert plt.gcf() is theirs
    assert plt.get_fignums() == [theirs.number]
    plt.close(theirs)


@pytest.mark.contract("DL-081")
def test_without_matplotlib_the_array_is_kept(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "import numpy as np\n"
        "from spanfold.artifacts import store\n"
        "from spanfold.fs import SafeRoot\n"
        "stored = store(SafeRoot(sys.argv[1]), 'a', 'map', np.eye(3))\n"
        "print(stored.path, stored.figure)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["a/map.npy", "None"]


def test_a_child_forked_while_another_thread_draws_can_draw(root: SafeRoot) -> None:
    stop = threading.Event()

    def keep_drawing() -> None:
        while not stop.is_set():
            render_figure(root, "parent", "map", np.eye(3))

    drawing = threading.Thread(target=keep_drawing)
    drawing.start()
    children = []
    try:
        for _ in range(5):
            time.sleep(0.05)
            with warnings.catch_warnings():
                # Newer Pythons warn about any fork while other threads run.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                # Never back into pytest. A child that waits for ever is ended by the alarm.
                signal.alarm(60)
                os._exit(0 if render_figure(root, f"child{os.getpid()}", "map", np.eye(3)) else 1)
            children.append(child)
    finally:
        stop.set()
        drawing.join()
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 5
