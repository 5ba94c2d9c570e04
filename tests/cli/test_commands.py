"""Every command has help, an example and a page; usage is refused in one line; exit codes are as documented."""

import re
import shlex
import sys
import tomllib

import pytest

from spanfold.cli._commands import COMMANDS
from spanfold.cli._exits import Exit
from tests.cli.conftest import DOCUMENTED, ROOT, Spanfold

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
WORDS = [" ".join(command.words) for command in COMMANDS]


@pytest.mark.parametrize("command", COMMANDS, ids=WORDS)
def test_every_command_has_help_with_an_example_that_parses(spanfold: Spanfold, command) -> None:
    from spanfold.cli._commands import parse

    answer = spanfold(*command.words, "--help")

    assert answer.code == Exit.DONE
    assert answer.err == ""
    assert f"\n{command.summary[0].upper()}{command.summary[1:]}" in answer.out
    assert all(example in answer.out for example in command.examples)
    assert "--json" in answer.out
    for columns in (60, 80):
        told = spanfold(*command.words, "--help", COLUMNS=str(columns)).out.partition("\nexample")[0].splitlines()
        assert max(map(len, told)) <= columns
    for example in command.examples:
        words = [word for word in shlex.split(example) if "=" not in word]
        assert words[0] == "spanfold"
        assert parse(words[1:]).module == command.module


@pytest.mark.parametrize("command", COMMANDS, ids=WORDS)
def test_every_command_has_a_section_in_the_docs_with_its_arguments_and_real_output(command) -> None:
    title = f"## spanfold {' '.join(command.words)}\n"
    assert title in PAGE
    section = PAGE.split(title)[1].split("\n## ")[0]

    assert re.search(r"^```text$", section, re.MULTILINE), "no output is shown"
    for argument in command.arguments:
        assert f"`{argument.names[-1]}" in section or f"`{argument.more.get('metavar')}`" in section


def test_the_docs_have_no_section_for_a_command_that_is_not_there() -> None:
    assert re.findall(r"^## spanfold (.+)$", PAGE, re.MULTILINE) == WORDS


@pytest.mark.parametrize("code", Exit)
def test_every_exit_code_is_in_the_table_of_the_docs(code: Exit) -> None:
    assert re.search(rf"^\| {code.value} \| ", PAGE, re.MULTILINE)


def test_every_documented_document_belongs_to_a_command_that_the_docs_name() -> None:
    for name in DOCUMENTED["$defs"]:
        assert f"`{name}`" in PAGE


@pytest.mark.parametrize("words", [(), ("--help",), ("run",), ("bundle",), ("timings",)])
def test_whoever_asks_without_a_command_is_shown_the_commands(spanfold: Spanfold, words: tuple[str, ...]) -> None:
    answer = spanfold(*words)

    assert answer.code == Exit.DONE
    assert answer.err == ""
    group = words[0] if words and words[0] != "--help" else ""
    for command in COMMANDS:
        if not group or command.words[0] == group:
            assert command.summary in " ".join(answer.out.split())


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_the_list_of_commands_fits_the_terminal_and_keeps_commands_whole(spanfold: Spanfold, columns: int) -> None:
    answer = spanfold("--help", COLUMNS=str(columns))

    assert max(map(len, answer.lines)) <= columns
    assert "`spanfold COMMAND --help`" in answer.out


def test_version_is_json_on_request(spanfold: Spanfold) -> None:
    from spanfold.instrument import version

    for words in (("version", "--json"), ("--version", "--json")):
        assert spanfold(*words).document["spanfold_version"] == version()


def test_version_is_that_of_the_package(spanfold: Spanfold) -> None:
    from spanfold.instrument import version

    assert spanfold("--version").out == f"spanfold {version()}\n"


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ("help", "--help"),
        ("help run show", "run show --help"),
        ("help run", "run --help"),
        ("run help", "run --help"),
        ("version", "--version"),
    ],
)
def test_help_and_version_are_commands_too(spanfold: Spanfold, words: str, same: str) -> None:
    answer = spanfold(*words.split())

    assert (answer.code, answer.err) == (Exit.DONE, "")
    assert answer.out == spanfold(*same.split()).out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("show", "spanfold: expected a command, found 'show'; did you mean `spanfold run show`? "),
        ("runs", "did you mean `spanfold run`? "),
        ("rn", "did you mean `spanfold run`? "),
        ("verify x", "did you mean `spanfold run verify` or `spanfold bundle verify`? "),
        ("run lst", "spanfold run: expected a command, found 'lst'; did you mean `spanfold run list`? "),
        ("run export x", "did you mean `spanfold bundle export`? "),
        ("timings verfy", "did you mean `spanfold run verify` or `spanfold bundle verify`? "),
        ("zzz", "spanfold: expected a command, found 'zzz'; `spanfold --help` shows what it takes\n"),
    ],
)
def test_a_word_that_is_no_command_names_the_command_meant(spanfold: Spanfold, words: str, told: str) -> None:
    answer = spanfold(*words.split())

    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert told in answer.err
    assert len(answer.err.splitlines()) == 1


@pytest.mark.parametrize("words", ["run fold R", "doctor", "run"])
def test_an_argument_that_is_unknown_is_refused_with_the_help_of_its_command(spanfold: Spanfold, words: str) -> None:
    answer = spanfold(*words.split(), "--bogus")

    assert answer.code == Exit.USAGE
    assert answer.err == (
        f"spanfold {words.removesuffix(' R')}: unrecognized arguments: --bogus; "
        f"`spanfold {words.removesuffix(' R')} --help` shows what it takes\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("run", "nonsense"),
        ("run", "show"),
        ("run", "list", "--nonsense"),
        ("run", "tail", "x", "--lines", "-1"),
        ("timings", "compare", "a", "b", "--tolerance", "0.5"),
        ("timings", "compare", "a", "b", "--tolerance", "nan"),
        ("timings", "plot", "a", "-o", "figure.bmp"),
        ("demo", "--cases", "many"),
        ("doctor", "--timeout", "0"),
    ],
)
def test_wrong_usage_is_refused_in_one_line_with_code_2(spanfold: Spanfold, words: tuple[str, ...]) -> None:
    answer = spanfold(*words)

    assert answer.code == Exit.USAGE
    assert answer.out == ""
    assert len(answer.err.splitlines()) == 1
    assert "--help` shows what it takes" in answer.err


def test_the_console_script_calls_main(spanfold: Spanfold) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    module, name = scripts["spanfold"].split(":")
    # What an installed script does, word for word.
    import subprocess

    line = f"import sys; from {module} import {name}; sys.exit({name}())"
    done = subprocess.run(
        [sys.executable, "-c", line, "run", "show", "nowhere"], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == Exit.NOT_FOUND
    assert done.stderr.startswith("spanfold: nowhere: ")


def test_help_loads_no_room() -> None:
    import subprocess

    line = (
        "import sys; from spanfold.cli import main\n"
        "before = set(sys.modules)\n"
        "assert main(['run', 'show', '--help']) == 0\n"
        "print(sorted(m for m in set(sys.modules) - before if m.startswith('spanfold.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, timeout=60, check=False)

    assert done.stderr.strip() == "[]"
