"""The narrator's rows, alone and beside those of the logger it stands in for."""

import io
import subprocess
import sys
from typing import Any

import pytest
from evalrx.eval_agent.narration import LoopNarrator as SeedNarrator
from hypothesis import given
from hypothesis import strategies as st

from spanfold.diagnose import LoopNarrator

LONG = "x" * 71
FIX = {
    "cycle": -1,
    "attempted": [
        {"tier": "L0", "name": "n", "fixed": True, "effect": 0.123456, "n_fixed": 2, "n_broken": None},
        {"effect": -0.5},
        {},
    ],
    "best": {"name": "n", "effect": 0.1, "n_fixed": 2, "n_broken": 0},
}
EVENTS: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "M1",
        "probe",
        {"cycle": 0, "analyzers": ["a", "b"], "duration_sec": 1.26},
        "M1  probe       ········· cycle 0 · 2 analyzers run (1.3s)\n",
    ),
    ("M1", "probe", {"cycle": -1, "analyzers": ["a"]}, "M1  probe       ········· 1 analyzer run\n"),
    (
        "M2",
        "analysis",
        {"cycle": 1, "n_findings": 1, "severity": "high", "figures": ["a"]},
        "M2  explore     ······· cycle 1 · 1 finding(s) · severity=high · 1 figure(s)\n",
    ),
    ("M2", "analysis", {"n_findings": 0, "severity": ""}, "M2  explore     ······· 0 finding(s)\n"),
    ("M2", "explore", {"cycle": 1}, "M2  explore     ······· cycle 1 · explore report ready\n"),
    (
        "M3",
        "diagnosis",
        {"cycle": 1, "n_hypotheses": 1},
        "M3  diagnose    ······ cycle 1 · 1 falsifiable hypothesis proposed\n",
    ),
    ("M3", "diagnosis", {"n_hypotheses": 2}, "M3  diagnose    ······ 2 falsifiable hypotheses proposed\n"),
    (
        "M4",
        "surgery",
        {"cycle": 1, "hypothesis": LONG, "status": "supported", "fixed": False},
        f"M4  verify      ········ cycle 1 · ✓ {'x' * 67}... — supported\n",
    ),
    (
        "M5",
        "surgery",
        {"hypothesis": "h", "status": "supported", "fixed": False},
        "M5  intervene   ····· ✗ h — supported\n",
    ),
    (
        "M5",
        "experiment",
        {"cycle": 2, "verdict": None, "status": "refuted", "fixed": True, "duration_sec": 2},
        "M5  intervene   ····· cycle 2 · ✓ repair experiment — refuted\n",
    ),
    (
        "M5",
        "fix",
        FIX,
        (
            "M5  intervene   ····· L0 n  ✓ +0.123 (n_fixed=2, n_broken=n/a)\n"
            "M5  intervene   ····· ? ?  ✗ -0.500 (n_fixed=n/a, n_broken=n/a)\n"
            "M5  intervene   ····· ? ?  ✗ ? (n_fixed=n/a, n_broken=n/a)\n"
            "M5  intervene   ····· best: n Δ=+0.100 (n_fixed=2, n_broken=0)\n"
        ),
    ),
    (
        "M5",
        "fix",
        {"attempted": [{}], "best": {}},
        (
            "M5  intervene   ····· ? ?  ✗ ? (n_fixed=n/a, n_broken=n/a)\n"
            "M5  intervene   ····· 1 candidate(s) tried — none selected\n"
        ),
    ),
    ("M1", "model_calls", {"cycle": 0}, ""),
    ("M5", "stage_skipped", {"cycle": -1}, ""),
]


def told(narrator_type: Any, stage: str, key: str, record: Any, *, color: bool = False) -> str:
    stream = io.StringIO()
    narrator = narrator_type(stream=stream, color=color)
    if key == "run_start":
        narrator.on_run_start(record)
    elif stage == "RUN":
        narrator.on_run_event(key, record)
    else:
        narrator.on_event(stage, key, record)
    return stream.getvalue()


@pytest.mark.contract("DL-109")
@pytest.mark.parametrize(("stage", "key", "record", "rows"), EVENTS)
def test_each_event_of_a_stage_has_its_row(stage: str, key: str, record: dict[str, Any], rows: str) -> None:
    assert told(LoopNarrator, stage, key, record) == rows


@pytest.mark.contract("DL-109")
def test_start_and_end_of_a_run_have_rows() -> None:
    start = "RUN loop        ·········· starting · model=m · n_cases=3\n"
    nameless = "RUN loop        ·········· starting · model=target model\n"
    end = "RUN loop        ·········· done · 2 cycle(s) · resolved=True · stopped_by=budget · 1 hypothesis\n"

    assert told(LoopNarrator, "RUN", "run_start", {"model": "m", "n_cases": 3}) == start
    assert told(LoopNarrator, "RUN", "run_start", {}) == nameless
    record = {"cycles": 2, "resolved": True, "stopped_by": "budget", "n_hypotheses": 1}
    assert told(LoopNarrator, "RUN", "loop_end", record) == end
    assert told(LoopNarrator, "RUN", "cases", {"case_id": "a"}) == ""


# Text without control characters, which the seed prints as they are, and without anything that looks like a secret.
texts = st.text(st.characters(categories=("Lu", "Nd", "Zs")), max_size=80)
numbers = st.none() | st.integers(-5, 5) | st.floats(-5, 5)
fields = st.fixed_dictionaries(
    {"attempted": st.lists(st.fixed_dictionaries({}, optional={"tier": texts, "name": texts, "effect": numbers}))},
    optional={
        "cycle": st.none() | st.integers(-1, 3),
        "duration_sec": st.floats(0, 1000),
        "analyzers": st.lists(texts, max_size=3),
        "n_findings": st.integers(0, 3),
        "severity": texts,
        "figures": st.lists(texts, max_size=3),
        "n_hypotheses": st.integers(0, 3),
        "hypothesis": texts,
        "status": st.none() | texts,
        "verdict": st.none() | texts,
        "fixed": st.booleans(),
        "best": st.fixed_dictionaries({}, optional={"name": texts, "effect": numbers, "n_broken": numbers}),
        "cycles": st.integers(0, 3),
        "resolved": st.booleans(),
        "stopped_by": texts,
    },
)
places = st.sampled_from(
    [(stage, key) for stage, key, _, _ in EVENTS] + [("RUN", "loop_end"), ("RUN", "run_start"), ("RUN", "probe")]
)


@pytest.mark.contract("DL-109", "DL-110")
@given(place=places, record=fields, color=st.booleans())
def test_rows_and_colours_are_those_of_the_seed(place: tuple[str, str], record: dict[str, Any], color: bool) -> None:
    assert told(LoopNarrator, *place, record, color=color) == told(SeedNarrator, *place, record, color=color)


@pytest.mark.contract("DL-110")
@pytest.mark.parametrize(
    ("no_color", "force", "is_terminal", "explicit", "coloured"),
    [
        (None, None, False, None, False),
        (None, None, True, None, True),
        (None, "1", False, None, True),
        (None, "", False, None, False),
        ("", "1", True, None, False),
        ("1", None, True, True, True),
        (None, "1", True, False, False),
    ],
)
def test_colour_is_chosen_by_argument_then_variables_then_terminal(
    monkeypatch: pytest.MonkeyPatch,
    no_color: str | None,
    force: str | None,
    is_terminal: bool,
    explicit: bool | None,
    coloured: bool,
) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    for name, value in (("NO_COLOR", no_color), ("EVALRX_FORCE_COLOR", force)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    stream = Stream()

    LoopNarrator(stream=stream, color=explicit).on_run_start({})

    assert ("\x1b[" in stream.getvalue()) is coloured


@pytest.mark.contract("DL-185")
def test_a_broken_stream_stops_neither_the_loop_nor_the_rows_after_it() -> None:
    class Pipe(io.StringIO):
        broken = True

        def write(self, text: str) -> int:
            if self.broken:
                raise BrokenPipeError(32, "Broken pipe")
            return super().write(text)

    pipe = Pipe()
    narrator = LoopNarrator(stream=pipe)
    narrator.on_run_start({})
    pipe.broken = False
    narrator.on_event("M1", "probe", {"analyzers": []})
    pipe.close()
    narrator.on_event("M1", "probe", {"analyzers": []})

    assert narrator.failures == 2


def test_a_record_of_another_shape_costs_its_row_only() -> None:
    stream = io.StringIO()
    narrator = LoopNarrator(stream=stream)

    narrator.on_event("M1", "probe", {"analyzers": 3})
    narrator.on_event("M2", "explore", {})

    assert narrator.failures == 1
    assert stream.getvalue() == "M2  explore     ······· explore report ready\n"


def test_text_of_a_record_cannot_start_a_row_or_move_the_cursor() -> None:
    rows = told(LoopNarrator, "M5", "surgery", {"hypothesis": "a\nM4  verify\x1b[2J\u2028b", "status": "ok"})

    assert rows == "M5  intervene   ····· ✗ a M4  verify\\x1b[2J b — ok\n"


def test_a_stream_without_the_characters_gets_the_row_with_others() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")

    LoopNarrator(stream=stream).on_event("M2", "explore", {"cycle": 1})

    assert raw.getvalue() == b"M2  explore     ??????? cycle 1 ? explore report ready\n"


@pytest.mark.contract("DL-176")
def test_secrets_do_not_reach_the_console() -> None:
    secret = "sk-proj-" + "Ab3dEf6hIj9l" * 4

    rows = told(LoopNarrator, "M4", "surgery", {"hypothesis": f"key {secret} leaks", "status": "supported"})

    assert secret not in rows
    assert "REDACTED" in rows


def test_rows_go_to_the_standard_output_of_the_moment_the_narrator_was_made() -> None:
    program = (
        "import io, sys\n"
        "from spanfold.diagnose import LoopNarrator\n"
        "narrator = LoopNarrator()\n"
        "sys.stdout = io.StringIO()\n"
        "narrator.on_event('M2', 'explore', {})\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60)

    assert done.stdout.decode() == "M2  explore     ······· explore report ready\n"
