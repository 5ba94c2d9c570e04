"""Passwords on command lines: quoted in running text, and as argument lists."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanfold.redact import redact, redact_argv
from tests.redact.samples import secret_values, secrets

A = "(REDACTED-assignment)"
H = "(REDACTED-header)"


@pytest.mark.contract("AI-105")
def test_a_user_is_looked_for_in_a_word_as_long_as_one_may_be_and_no_further() -> None:
    user, longer = "u" * 4096, "u" * 4097

    assert redact(f"curl -u {user}:hunter https://h/") == f"curl -u {user}:{A} https://h/"
    assert redact(f"curl -u {longer}:hunter https://h/") == f"curl -u {longer}:hunter https://h/"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run tool --password hunter2 --verbose", f"run tool --password {A} --verbose"),
        ("tool --api-key 'a b' x", f"tool --api-key '{A}' x"),
        ("tool -token Xy12 x", f"tool -token {A} x"),
        (r'"tool --password \"a b\" x"', rf'"tool --password \"{A}\" x"'),
        ("mysql -uroot -phunter db", f"mysql -uroot -p{A} db"),
        ("x; mysqldump --all -p'a b' > y", f"x; mysqldump --all -p'{A}' > y"),
        ("sshpass -p hunter ssh -p 22 h", f"sshpass -p {A} ssh -p 22 h"),
        ("redis-cli -h x -a hunter ping", f"redis-cli -h x -a {A} ping"),
        ("docker login -u bob -p hunter host", f"docker login -u bob -p {A} host"),
        ("curl -u bob:hunter https://h/", f"curl -u bob:{A} https://h/"),
        ("wget --user bob:hunter https://h/", f"wget --user bob:{A} https://h/"),
    ],
)
def test_a_password_in_a_quoted_command_is_replaced(text: str, expected: str) -> None:
    assert redact(text) == expected


@pytest.mark.contract("AI-099")
@pytest.mark.parametrize(
    "text",
    ["use --token to pass one", "--api-key KEY", "--password PASSWORD_FILE", "tool --password $PW", "tool --token --verbose",
     "mkdir -p some/dir", "docker run -p 8080:80 -u 1000:1000 x", "ssh -p 2222 host", "rsync -u host:path .", "login with -p",
     "mysql -p", "cp -a src dst", "curl -u bob h", "sort -u a:b", 'say "--token ", "x"'],
)  # fmt: skip
def test_options_without_a_password_stay(text: str) -> None:
    assert redact(text) is text


@pytest.mark.contract("AI-095")
@pytest.mark.case("C-062")
@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["x", "--token", "V", "y"], ["x", "--token", A, "y"]),
        (["x", "--api-key", "two words, [x]"], ["x", "--api-key", A]),
        (["x", "-password", "V"], ["x", "-password", A]),
        (["x", "--token=V W", "-Dpassword=V", "NAME_TOKEN=V, W"], ["x", f"--token={A}", f"-Dpassword={A}", f"NAME_TOKEN={A}"]),
        (["curl", "-H", "Authorization: Bearer V"], ["curl", "-H", f"Authorization: Bearer {H}"]),
        (["curl", "--header", "X-Api-Key: V"], ["curl", "--header", f"X-Api-Key: {H}"]),
        (["curl", "-HCookie: a=b"], ["curl", f"-HCookie: {H}"]),
        (["curl", "-H", "Accept: x"], ["curl", "-H", "Accept: x"]),
        (["curl", "-u", "U:P"], ["curl", "-u", f"U:{A}"]),
        (["x", "--user", "U:P"], ["x", "--user", f"U:{A}"]),
        (["x", "--proxy-user", "U:P"], ["x", "--proxy-user", f"U:{A}"]),
        (["docker", "run", "-e", "A_SECRET=V", "--env", "X=1"], ["docker", "run", "-e", f"A_SECRET={A}", "--env", "X=1"]),
        (["docker", "run", "--env=A_SECRET=V"], ["docker", "run", f"--env=A_SECRET={A}"]),
        (["helm", "--set", "db.password=V"], ["helm", "--set", f"db.password={A}"]),
        (["curl", "-d", "password=V&x=1"], ["curl", "-d", f"password={A}&x=1"]),
        (["curl", "--data-raw", "x=1"], ["curl", "--data-raw", "x=1"]),
        (["sshpass", "-p", "V", "ssh"], ["sshpass", "-p", A, "ssh"]),
        (["sshpass", "-pV", "ssh"], ["sshpass", f"-p{A}", "ssh"]),
        (["mysql", "-pV", "db"], ["mysql", f"-p{A}", "db"]),
        (["psql", "postgres://u:p4ss@h/db"], ["psql", "postgres://u:(REDACTED-url-userinfo)@h/db"]),
        (["redis-cli", "-a", "V"], ["redis-cli", "-a", A]),
        (["docker", "login", "-p", "V"], ["docker", "login", "-p", A]),
        (["prog", "-pAb3Xy9Qz", "-p8080", "-pthread", "-p", "x"], ["prog", f"-p{A}", "-p8080", "-pthread", "-p", "x"]),
        (["x", "--token", "-v"], ["x", "--token", "-v"]),
        (["x", "--token", ""], ["x", "--token", ""]),
        (["x", "--token", "$TOKEN"], ["x", "--token", "$TOKEN"]),
        (["ssh", "-p", "22", "h"], ["ssh", "-p", "22", "h"]),
        (["mkdir", "-p", "a/b"], ["mkdir", "-p", "a/b"]),
        (["prog", 7, None, b"x"], ["prog", "7", "", "x"]),
        (["sh", "-c", "curl -u bob:hunter h"], ["sh", "-c", f"curl -u bob:{A} h"]),
    ],
)  # fmt: skip
def test_an_option_decides_about_the_argument_behind_it(argv: list[object], expected: list[str]) -> None:
    before = list(argv)

    assert redact_argv(argv) == expected
    assert argv == before


def test_a_json_body_is_redacted_as_structure() -> None:
    command, option, body = redact_argv(["curl", "--json", '{"password": "a b", "n": 1}'])

    assert (command, option) == ("curl", "--json")
    assert json.loads(body) == {"password": A, "n": 1}


@pytest.mark.contract("AI-095")
@given(
    argv=st.lists(
        st.one_of(
            secrets(), secret_values(),
            st.sampled_from(["-u", "-p", "-H", "-d", "--token", "--user", "mysql", "sshpass", "curl", "docker", "login", ""]),
        ),
        max_size=8,
    )
)  # fmt: skip
def test_argument_lists_keep_their_length_and_redact_once(argv: list[str]) -> None:
    redacted = redact_argv(argv)

    assert len(redacted) == len(argv)
    assert redact_argv(redacted) == redacted
