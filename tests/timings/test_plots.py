"""Figures: written whole, showing the rare as well as the frequent, without touching the program's own matplotlib."""

import io
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from spanfold.errors import MissingExtra, TimingsError
from spanfold.timings import TimingRead, compare, compare_plot, plot_comparison, read_timings, waterfall
from spanfold.timings.plots import MAX_STAGES
from tests.timings.samples import RunWriter, kind, loop_run, row, write_rows

pytestmark = pytest.mark.slow

PIL = pytest.importorskip("PIL.Image")
FAILED = (0xD5, 0x5E, 0x00)
FASTER = (0x00, 0x9E, 0x73)


def colours(path: Path) -> set[tuple[int, int, int]]:
    with PIL.open(path) as image:
        return {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}


def size(path: Path) -> tuple[int, int]:
    with PIL.open(path) as image:
        return image.size


def python(code: str, *arguments: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_waterfall_grows_with_its_lanes_up_to_a_bound(tmp_path: Path) -> None:
    few = waterfall(loop_run(tmp_path / "a", seed=1, calls=3), tmp_path / "few.png")
    more = waterfall(loop_run(tmp_path / "b", seed=1, calls=30), tmp_path / "more.png")
    rolled_up = waterfall(loop_run(tmp_path / "c", seed=1, calls=300), tmp_path / "rolled.png")

    assert size(few)[1] < size(more)[1]
    assert size(rolled_up)[1] < size(few)[1]
    assert len({size(path)[0] for path in (few, more, rolled_up)}) == 1


@pytest.mark.case("C-035")
def test_one_failed_span_of_ten_thousand_is_seen(tmp_path: Path) -> None:
    made = RunWriter()
    top = made.run(1000)
    for number in range(10_000):
        made.span("model_call", number * 0.1, 0.05, top, **kind("model_call"), ok=number != 5000)
    target = waterfall(made.write(tmp_path / "big"), tmp_path / "big.svg")

    drawing = target.read_text(encoding="utf-8")
    assert drawing.count("#d55e00") == 2  # the bar, and its entry in the legend
    # Bars that the eye cannot part are one shape: a drawing of bounded size.
    assert len(drawing) < 200_000


def test_names_that_mean_something_to_matplotlib_are_drawn_as_they_are(tmp_path: Path) -> None:
    made = RunWriter("$\\frac{1}{0}$ _x_ 漢字 \x1b[0m")
    made.span("tool", 0, 1, **kind("tool", name="$broken{ $$ \\alpha 漢 \n\x00"))

    assert size(waterfall(made.write(tmp_path / "odd"), tmp_path / "odd.png"))[0] > 0


@pytest.mark.parametrize("seconds", [0, 1e-6, 0.02, 500, 90_000])
def test_runs_of_any_length_have_an_axis(tmp_path: Path, seconds: float) -> None:
    write_rows(tmp_path / "timings.jsonl", [row("m1", 0, seconds)])

    assert waterfall(tmp_path, tmp_path / "w.png").stat().st_size > 1000


def test_a_comparison_is_drawn_with_its_verdicts(tmp_path: Path) -> None:
    a = [loop_run(tmp_path / f"a{n}", seed=n, noise=0.02, slow=2) for n in range(6)]
    b = [loop_run(tmp_path / f"b{n}", seed=9 + n, noise=0.02) for n in range(6)]
    comparison = compare_plot(a, b, tmp_path / "out" / "ab.png", tolerance=1.2)

    assert comparison == compare(a, b, tolerance=1.2)
    assert FASTER in colours(tmp_path / "out" / "ab.png")
    assert FAILED not in colours(tmp_path / "out" / "ab.png")  # also the colour of slower


def test_a_comparison_of_runs_too_few_or_too_different_is_still_drawn(tmp_path: Path) -> None:
    def one(name: str, *seconds: float) -> TimingRead:
        rows = [row(name, n, s, span_id=f"{n:016x}") for n, s in enumerate(seconds)]
        return read_timings(write_rows(tmp_path / name / f"{len(seconds)}.jsonl", rows))

    for place, (a, b) in enumerate(
        [(one("m1", 1), one("m2", 1)), (one("m1", 0), one("m1", 0)), (one("m1", 1, 2, 3), one("m1", 1e-6, 5000))]
    ):
        assert compare_plot(a, b, tmp_path / f"{place}.svg").stages
        ET.parse(tmp_path / f"{place}.svg")


def test_of_very_many_stages_some_are_drawn(tmp_path: Path) -> None:
    rows = [row(f"step{n}", n, 1) for n in range(3 * MAX_STAGES)]
    for name in "ab":
        write_rows(tmp_path / name / "timings.jsonl", rows)

    compare_plot(tmp_path / "a", tmp_path / "b", tmp_path / "ab.png")

    assert size(tmp_path / "ab.png")[1] < 2000


def test_nothing_to_draw_is_an_error_and_leaves_the_old_file(tmp_path: Path) -> None:
    old = tmp_path / "old.png"
    old.write_bytes(b"old")
    empty = TimingRead(tmp_path / "timings.jsonl")

    with pytest.raises(TimingsError, match="nothing to draw"):
        waterfall(empty, old)
    with pytest.raises(TimingsError, match="nothing to draw"):
        plot_comparison(compare(empty, empty), old)

    assert old.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["old.png"]


@pytest.mark.parametrize("name", ["figure.pdf", "figure", "figure.png.txt"])
def test_a_format_that_is_not_offered_is_refused_before_anything_is_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"\.png or \.svg"):
        waterfall(tmp_path / "no run", tmp_path / name)
    with pytest.raises(ValueError, match=r"\.png or \.svg"):
        compare_plot(tmp_path / "no run", tmp_path / "no run", tmp_path / name)


def test_without_matplotlib_the_extra_to_install_is_named(tmp_path: Path) -> None:
    run = loop_run(tmp_path / "a", seed=1)
    said = python(
        "import sys; sys.modules['matplotlib'] = None\n"
        "from spanfold.timings import waterfall\n"
        "from spanfold.errors import MissingExtra\n"
        "try: waterfall(sys.argv[1], sys.argv[1] + '/w.png')\n"
        "except MissingExtra as error: print(error.extra, '|', error)",
        run,
    )

    assert said.startswith("figures | ")
    assert "pip install 'spanfold[figures]'" in said
    assert issubclass(MissingExtra, ImportError)


def test_matplotlib_is_loaded_when_drawing_and_pyplot_never(tmp_path: Path) -> None:
    said = python(
        "import sys\n"
        "from spanfold.timings import compare_plot, waterfall\n"
        "print([name for name in ('matplotlib', 'numpy') if name in sys.modules])\n"
        "waterfall(sys.argv[1], sys.argv[1] + '/w.png')\n"
        "compare_plot(sys.argv[1], sys.argv[1], sys.argv[1] + '/c.png')\n"
        "print('matplotlib.pyplot' in sys.modules)",
        loop_run(tmp_path / "a", seed=1),
    )

    assert said.split("\n")[:2] == ["[]", "False"]


def test_one_run_drawn_twice_is_the_same_picture(tmp_path: Path) -> None:
    run = loop_run(tmp_path / "a", seed=1)
    images = [waterfall(run, tmp_path / f"{n}.png").read_bytes() for n in range(2)]

    assert images[0] == images[1]
    assert PIL.open(io.BytesIO(images[0])).info.keys() <= {"dpi"}
