"""Private keys: whole, cut off, quoted in strings, listed line by line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.redact import redact
from tests.redact.samples import WORD, private_keys

K = "(REDACTED-private-key)"
RULE = "-" * 5
BEGIN = f"{RULE}BEGIN RSA PRIVATE KEY{RULE}"
END = f"{RULE}END RSA PRIVATE KEY{RULE}"
LINES = ["".join(WORD[(7 * line + 11 * at) % 62] for at in range(64)) for line in range(3)]


@pytest.mark.contract("AI-093")
@given(
    key=private_keys(),
    before=st.sampled_from(["", "x\n", "key: ", '"']),
    after=st.sampled_from(["", "\nrest", '"', " rest"]),
)
def test_a_private_key_is_replaced_whole_and_the_text_around_it_stays(key: str, before: str, after: str) -> None:
    assert redact(before + key + after) == before + K + after


def test_a_private_key_without_an_end_is_replaced_to_its_last_line() -> None:
    text = "\n".join(["x", BEGIN, *LINES, "Ab1=", "and then prose, not key"])

    assert redact(text) == f"x\n{K}\nand then prose, not key"


def test_headers_of_an_encrypted_key_belong_to_it() -> None:
    text = "\n".join([BEGIN, "Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-128-CBC,0011", "", *LINES])

    assert redact(text) == K


def test_a_pgp_block_is_replaced() -> None:
    armour = f"{RULE}BEGIN PGP PRIVATE KEY BLOCK{RULE}\n\n{LINES[0]}\n=AbCd\n{RULE}END PGP PRIVATE KEY BLOCK{RULE}"

    assert redact(f"a\n{armour}\nb") == f"a\n{K}\nb"


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\\n"])
def test_the_private_lines_of_a_putty_key_are_replaced_and_no_line_after_them(line_break: str) -> None:
    text = line_break.join(["Private-Lines: 2", LINES[0], LINES[1][:20], "Private-MAC: 00ff"])

    redacted = redact(text)

    assert redacted == line_break.join(["Private-Lines: 2", K, "Private-MAC: 00ff"])
    assert redact(redacted) == redacted


def test_a_key_in_a_list_of_lines_leaves_the_list_a_list() -> None:
    text = json.dumps({"lines": [BEGIN, *LINES, END, "x"], "n": 1}, indent=1)

    redacted = redact(text)

    assert not any(line in redacted for line in LINES)
    assert json.loads(redacted)["n"] == 1


@pytest.mark.contract("AI-099")
@pytest.mark.parametrize(
    "text",
    [f"{RULE}BEGIN PUBLIC KEY{RULE}\n{LINES[0]}\n{RULE}END PUBLIC KEY{RULE}", f"{RULE}BEGIN CERTIFICATE{RULE}\n{LINES[0]}",
     "a PRIVATE KEY is private", "Private-Lines: 0\nx", "Public-Lines: 2\nx\ny"],
)  # fmt: skip
def test_what_is_no_private_key_stays(text: str) -> None:
    assert redact(text) is text


def test_prose_after_a_begin_line_stays() -> None:
    text = f"A key starts with {BEGIN} and goes on.\nSee the manual.\n"

    assert redact(text) == f"A key starts with {K} and goes on.\nSee the manual.\n"
