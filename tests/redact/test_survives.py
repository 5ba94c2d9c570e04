"""What must come through unchanged: real-looking logs, diffs, code and prose without secrets."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.redact import StreamRedactor, redact, redact_dict

ORDINARY = (Path(__file__).parent / "ordinary.txt").read_text(encoding="utf-8")


@pytest.mark.contract("AI-099")
@pytest.mark.case("C-064")
@pytest.mark.parametrize("line", ORDINARY.splitlines())
def test_an_ordinary_line_stays(line: str) -> None:
    assert redact(line) is line


@pytest.mark.contract("AI-099")
def test_an_ordinary_text_stays_as_one_and_in_pieces() -> None:
    assert len(ORDINARY.splitlines()) >= 200
    assert redact(ORDINARY) is ORDINARY
    stream = StreamRedactor()
    assert stream.feed(ORDINARY) + stream.flush() == ORDINARY


def hexadecimal(size: int) -> st.SearchStrategy[str]:
    return st.text("0123456789abcdef", min_size=size, max_size=size)


@pytest.mark.contract("AI-099")
@given(
    value=st.one_of(
        *map(hexadecimal, (16, 32, 40, 64, 128)),
        st.uuids().map(str),
        st.text("0123456789ABCDEFGHJKMNPQRSTVWXYZ", min_size=26, max_size=26).map(lambda text: "0" + text[1:]),
        st.datetimes().map(lambda time: time.isoformat()),
        st.integers().map(str),
    ),
    frame=st.sampled_from(
        ["{}", "id={}", "commit {}", "sha256:{}", '"span_id": "{}"', "/runs/{}/log.json", "cache-key-{}", "{}-{}"]
    ),
)
def test_digests_ids_and_times_stay(value: str, frame: str) -> None:
    text = frame.format(value, value)

    assert redact(text) is text
    assert redact_dict({"id": value, "digest": value}) == {"id": value, "digest": value}


@pytest.mark.contract("AI-099")
@given(
    count=st.integers(0, 10**9),
    name=st.sampled_from(["max_tokens", "input_tokens", "tokens", "output_tokens", "token_count"]),
)
def test_counts_of_tokens_stay(count: int, name: str) -> None:
    for text in (f"{name}={count}", f'{{"{name}": {count}}}', f"{name}: {count}", f"--{name} {count}"):
        assert redact(text) is text
    assert redact_dict({name: count}) == {name: count}
