"""Stage names lead to documents by DL section 5, and never out of the run directory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.fs import split_relative
from spanfold.routing import place, route


@pytest.mark.contract("DL-031")
@pytest.mark.parametrize(
    ("tag", "stage"),
    [
        ("m1_probe", "M1"),
        ("M4_SURGERY", "M4"),
        ("codegen_m2_stats", "M2"),
        ("M2", "M2"),
        ("fix_pipeline", "M5"),
        (" Fix ", "M5"),
        ("EXPLORE", "M2"),
        ("m3 then m4", "M3"),
        ("m6", None),
        ("m0", None),
        ("gemma2", None),
        ("", None),
        (None, None),
        ("prefix", None),
    ],
)
def test_a_tag_routes_as_the_contract_says(tag: str | None, stage: str | None) -> None:
    assert route(tag) == stage


@pytest.mark.contract("DL-036")
@pytest.mark.parametrize("tag", ["team5", "llm3", "m12", "m1x", "xm1", "ém2", "gemm2_5"])
def test_a_letter_and_digit_inside_a_word_name_no_stage(tag: str) -> None:
    assert route(tag) is None


def test_stages_without_a_number_get_a_folder_of_their_own() -> None:
    assert place("load").document == "stages/load/log.json"
    assert place("load").label == "load"
    assert (place("load").folder, place("m2_stats").folder, place(None).folder) == ("stages/load/", "M2/", "")
    assert place("m2_stats") == ("M2/log.json", "M2")
    assert place(None) == place("") == ("run.json", "RUN")


@given(st.text(min_size=1))
def test_no_stage_name_leads_out_of_the_run_directory(name: str) -> None:
    parts = split_relative(place(name).document)

    assert parts[-1] in ("log.json", "run.json")
    assert parts[0] in ("stages", "M1", "M2", "M3", "M4", "M5", "run.json")


@given(st.text(), st.text())
def test_two_stage_names_never_share_a_folder(one: str, other: str) -> None:
    if one != other and place(one).document == place(other).document:
        assert place(one).document.startswith("M") or not (one and other)
