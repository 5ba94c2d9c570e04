"""Every command: its words, its arguments, its help. Nothing of a room is loaded here, so `--help` is quick.

`COMMANDS` is the one table: the parser is made from it, the tests walk it, and
docs/cli.md has a section for each of its entries.
"""

import argparse
import difflib
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final, NoReturn

from spanfold.cli._console import Console, say, wrapped
from spanfold.cli._exits import Exit

_MIN_CASES: Final = 20
"""What the demo needs; asking it would load numpy."""
_RUN_HELP: Final = "run directory, its name below the run folder, or 'latest'"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument, as argparse takes it."""

    names: tuple[str, ...]
    help: str
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    words: tuple[str, ...]
    summary: str
    about: str
    examples: tuple[str, ...]
    arguments: tuple[Argument, ...] = ()

    @property
    def module(self) -> str:
        """Module of this room that holds `command(arguments, console)`."""
        return "_".join(self.words)


def _cases(text: str) -> int:
    number = int(text)
    if number < _MIN_CASES:
        raise argparse.ArgumentTypeError(f"expected a number of at least {_MIN_CASES}, found {number}")
    return number


def _not_negative(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, found {number}")
    return number


def _ratio(text: str) -> float:
    number = float(text)
    if not (math.isfinite(number) and number >= 1):
        raise argparse.ArgumentTypeError(f"expected a finite ratio of at least 1, found {text}")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"expected seconds over 0, found {text}")
    return number


def _picture(text: str) -> str:
    if not text.lower().endswith((".png", ".svg")):
        raise argparse.ArgumentTypeError("expected a file name that ends in .png or .svg")
    return text


for _type, _name in (
    (_cases, "number"),
    (_not_negative, "number"),
    (_ratio, "ratio"),
    (_seconds, "seconds"),
    (_picture, "file name"),
):
    _type.__name__ = _name  # argparse says "invalid number value: 'x'"

_RUN: Final = Argument(("run",), _RUN_HELP, {"metavar": "RUN"})

COMMANDS: Final[tuple[Command, ...]] = (
    Command(
        ("demo",),
        "run a real diagnose loop on real data and look at what it left",
        "Diagnoses and repairs a classifier of handwritten digits, twice, and records both "
        "runs. Then shows the run directory, the verdict, where the time went, whether the "
        "second run was faster, and what to try next. Needs spanfold[demo].",
        ("spanfold demo", "spanfold demo --cases 100 --no-compare"),
        (
            Argument(
                ("directory",),
                "folder for the two run directories (default: the run folder)",
                {"metavar": "DIR", "nargs": "?"},
            ),
            Argument(
                ("--seed",),
                "which cases are explored and held out; one seed, one verdict (default: 0)",
                {"type": int, "default": 0, "metavar": "N"},
            ),
            Argument(
                ("--cases",),
                "use only so many of the 899 cases, at least 20",
                {"type": _cases, "metavar": "N"},
            ),
            Argument(("--no-compare",), "do not compare the two runs", {"action": "store_true"}),
        ),
    ),
    Command(
        ("run", "list"),
        "list the runs below a folder, newest first",
        "A run that was never ended and whose process is gone is shown as interrupted, "
        "with the time since its last record.",
        ("spanfold run list", "spanfold run list runs --json"),
        (Argument(("directory",), "where to look (default: the run folder)", {"metavar": "DIR", "nargs": "?"}),),
    ),
    Command(
        ("run", "show"),
        "say what happened in a run",
        "Stages, model calls, agents, tools, scores, artifacts, errors, and what was started "
        "and never ended. Reads the journal and changes nothing, so it tells the truth of a "
        "run that is going on, was killed, or was moved.",
        ("spanfold run show runs/001", "spanfold run show latest"),
        (_RUN,),
    ),
    Command(
        ("run", "tail"),
        "follow a run as it happens",
        "Prints stages, calls, agents, scores, events and errors line by line until the run "
        "ends, its process dies, or Ctrl-C. With --json, one object for each line.",
        ("spanfold run tail latest", "spanfold run tail runs/001 --lines 100 --all"),
        (
            _RUN,
            Argument(
                ("-n", "--lines"),
                "of what happened before, show only the last N (default: 10)",
                {"type": _not_negative, "default": 10, "metavar": "N"},
            ),
            Argument(("--from-start",), "show everything that happened before", {"action": "store_true"}),
            Argument(
                ("--all",),
                "show timings, plain spans and the starts of calls too",
                {"action": "store_true"},
            ),
            Argument(
                ("--no-follow",),
                "stop when what is there was shown",
                {"action": "store_true"},
            ),
        ),
    ),
    Command(
        ("run", "fold"),
        "make every document of a run again from its journal",
        "Replaces run.json, M1..M5, timings.jsonl and the others by what the journal says; "
        "the same journal gives the same bytes. A process that records keeps its documents up to date "
        "itself; with --follow --into DIR, another copy of them is kept up to date too.",
        ("spanfold run fold runs/001", "spanfold run fold runs/001 --follow --into view"),
        (
            _RUN,
            Argument(("--follow",), "go on until the run ends, or Ctrl-C", {"action": "store_true"}),
            Argument(("--into",), "write the documents here instead of into the run directory", {"metavar": "DIR"}),
            Argument(
                ("--force",),
                "replace the documents though the journal is damaged, and they may hold what it lost",
                {"action": "store_true"},
            ),
        ),
    ),
    Command(
        ("run", "recover"),
        "finish a run whose process died",
        "Ends what was left open as interrupted, sets a torn last line aside, seals the "
        "journal and makes the documents. Nothing that was written is changed. Harmless "
        "when repeated; exit code 6 says that there was nothing to do.",
        ("spanfold run recover runs/001 --dry-run", "spanfold run recover runs/001"),
        (
            _RUN,
            Argument(("--dry-run",), "only say what would be done", {"action": "store_true"}),
            Argument(
                ("--assume-dead",),
                "go on although the run was recorded on another machine, which cannot be asked",
                {"action": "store_true"},
            ),
        ),
    ),
    Command(
        ("run", "verify"),
        "say what of a run is not as it was recorded",
        "Checks the journal against its hash chain and seal, every document by folding "
        "again, and every artifact against its recorded hash. Names each file and byte "
        "range that changed. Reads, and changes nothing.",
        ("spanfold run verify runs/001", "spanfold run verify runs/001 --json"),
        (_RUN,),
    ),
    Command(
        ("run", "deliver"),
        "send what a destination has not acknowledged of a run",
        "To the collector and the Langfuse server that the standard variables name. What "
        "was acknowledged is never sent again. A directory that has only the documents of a "
        "diagnose loop gets a journal of them first, in .spanfold/backfill. Exit code 1 says "
        "that something waits still or was refused.",
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 spanfold run deliver runs/001",
            "spanfold run deliver runs/001 --to langfuse --dry-run",
        ),
        (
            _RUN,
            Argument(
                ("--to",),
                "only there (default: wherever the variables say)",
                {"choices": ("otlp", "langfuse")},
            ),
            Argument(("--dry-run",), "say what would be sent, and send nothing", {"action": "store_true"}),
            Argument(
                ("--timeout",),
                "seconds for each destination (default: 60)",
                {"type": _seconds, "default": 60.0, "metavar": "S"},
            ),
        ),
    ),
    Command(
        ("bundle", "export"),
        "pack a run into one file to keep",
        "Journal, documents, artifacts and a manifest with sizes and hashes. The same run gives the same bytes. Prints its SHA-256 and "
        "its name, as sha256sum does.",
        ("spanfold bundle export runs/001", "spanfold bundle export runs/001 -o run-001.spanfold.tar.zst"),
        (
            _RUN,
            Argument(
                ("-o", "--output"),
                "the file, or a folder for it (default: beside the run directory)",
                {"metavar": "FILE"},
            ),
            Argument(("--allow-open",), "pack a run that is still recorded, as it stands", {"action": "store_true"}),
            Argument(("--force",), "pack a run whose journal is damaged, and say so in it", {"action": "store_true"}),
            Argument(
                ("--recorded-only",),
                "leave out files that the run did not record, which the program put there itself",
                {"action": "store_true"},
            ),
        ),
    ),
    Command(
        ("bundle", "verify"),
        "check a bundle, with nothing but the bundle",
        "Every byte against the manifest, the journal against its chain and seal, documents "
        "and artifacts against the journal. Names what changed, with its place.",
        ("spanfold bundle verify runs/001.spanfold.tar.zst",),
        (Argument(("file",), "the bundle", {"metavar": "FILE"}),),
    ),
    Command(
        ("timings", "compare"),
        "did B get slower than A, where, and is it real?",
        "A side is a run, a timings.jsonl, or a folder of runs of the same thing; several "
        "runs a side say more. Each stage gets one of three verdicts: changed, same, "
        "inconclusive. docs/timings.md says what each number means.",
        ("spanfold timings compare runs/001 runs/002", "spanfold timings compare base new --fail-on slower"),
        (
            Argument(("a",), "the baseline", {"metavar": "A"}),
            Argument(("b",), "what is compared with it", {"metavar": "B"}),
            Argument(
                ("--tolerance",),
                "ratio up to which two times count as the same (default: 1.10)",
                {"type": _ratio, "default": 1.10, "metavar": "RATIO"},
            ),
            Argument(
                ("--measure",),
                "the whole time of a stage, or its time outside its children (default: total)",
                {"choices": ("total", "self"), "default": "total"},
            ),
            Argument(
                ("--seed",),
                "of the bootstrap; one seed, one result (default: 0)",
                {"type": int, "default": 0, "metavar": "N"},
            ),
            Argument(
                ("--all",),
                "show inconclusive stages on a terminal too; elsewhere they always are",
                {"action": "store_true"},
            ),
            Argument(
                ("--fail-on",),
                "exit with 7 when a stage changed, or got slower",
                {"choices": ("changed", "slower")},
            ),
        ),
    ),
    Command(
        ("timings", "plot"),
        "draw where the time of a run went",
        "In the terminal: bars over time, then the stages by the time they took themselves. "
        "With -o a figure, PNG or SVG; with --against two runs against each other. Figures "
        "need spanfold[figures].",
        (
            "spanfold timings plot runs/001",
            "spanfold timings plot runs/001 -o run-001.png",
            "spanfold timings plot runs/001 --against runs/002 -o 001-002.svg",
        ),
        (
            _RUN,
            Argument(("--against",), "a second run", {"metavar": "B"}),
            Argument(("-o", "--output"), "the figure, .png or .svg", {"metavar": "FILE", "type": _picture}),
        ),
    ),
    Command(
        ("doctor",),
        "say what is configured, what is reachable, and what was lost",
        "Settings and where each value came from, installed extras, destinations (a TCP "
        "connection is tried, nothing is sent), the run folder, losses of recent runs and "
        "runs that were left interrupted. Exit code 1 when something is wrong.",
        ("spanfold doctor", "spanfold doctor --json"),
        (
            Argument(
                ("--timeout",),
                "seconds to wait for a destination (default: 2)",
                {"type": _seconds, "default": 2.0, "metavar": "S"},
            ),
        ),
    ),
    Command(
        ("version",),
        "print the version",
        "The same as `spanfold --version`.",
        ("spanfold version", "spanfold version --json"),
    ),
)

GROUPS: Final[Mapping[str, str]] = {
    "run": "look at runs, fold, recover and verify them",
    "bundle": "one file to keep of a run",
    "timings": "where the time went, and whether it changed",
}
_WORDS: Final = tuple(command.words for command in COMMANDS)
_GROUP_WORDS: Final[tuple[tuple[str, ...], ...]] = tuple((group,) for group in GROUPS)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        say(f"{self.prog}: {message}; `{self.prog} --help` shows what it takes")
        raise SystemExit(Exit.USAGE)

    def print_help(self, file: Any = None) -> None:
        # argparse itself is silent when the help can be written nowhere.
        Console(as_json=False).line(self.format_help().removesuffix("\n"))


class _Help(argparse.HelpFormatter):
    """Wraps the paragraphs of a description to the terminal and keeps examples, which are there to be copied, whole."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = text.split("\n\n")
        return "\n\n".join(block if block.startswith("example") else wrapped(block, width) for block in blocks)


class _Front(_Parser):
    """Shows every command at once: whoever asks does not know the groups yet."""

    def format_help(self) -> str:
        words = [" ".join(command.words) for command in COMMANDS]
        width = max(map(len, words)) + 2
        room = shutil.get_terminal_size().columns - 2  # as argparse counts
        listed = "\n".join(
            wrapped(f"  {word:{width}}{command.summary}", room, " " * (width + 2))
            for word, command in zip(words, COMMANDS, strict=True)
        )
        more = "`spanfold COMMAND --help` shows arguments and examples; every command takes --json. Exit codes: docs/cli.md."
        return f"usage: spanfold COMMAND [arguments]\n\n{wrapped(self.description or '', room)}\n\n{listed}\n\n{wrapped(more, room)}\n"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments, with `module` naming the module of the command.

    Raises:
        SystemExit: Help or version was asked for, or the usage is wrong; it was printed.
    """
    words = _as_options(argv)
    _refuse_unknown(words)
    parser, groups, commands = _parsers()
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        # By the parser of the command: its help shows what there is instead.
        at = commands.get(arguments.module) or groups[arguments.group]
        at.error(f"unrecognized arguments: {' '.join(unknown)}")
    if arguments.module is None:
        groups[arguments.group].print_help()
        raise SystemExit(Exit.DONE)
    return arguments


def _as_options(argv: Sequence[str]) -> list[str]:
    """Return what was typed, with `help` as the option that many type so, and `--version` as the command it is."""
    first, rest = argv[:1], argv[1:]
    if first == ["help"]:
        return [*rest, "--help"]
    if tuple(first) in _GROUP_WORDS and rest[:1] == ["help"]:
        return [*first, *rest[1:], "--help"]
    return ["version", *rest] if first == ["--version"] else list(argv)


def _refuse_unknown(words: Sequence[str]) -> None:
    """Refuse a word that is no command, and name the commands that may be meant.

    Raises:
        SystemExit: It is none.
    """
    typed = tuple(takewhile(lambda word: not word.startswith("-"), words[:2]))
    typed = typed if typed[:1] in _GROUP_WORDS else typed[:1]
    if typed in _WORDS or typed in _GROUP_WORDS or not typed:
        return
    program = " ".join(["spanfold", *typed[:-1]])
    meant = _meant(typed)
    told = f"did you mean {' or '.join(f'`spanfold {name}`' for name in meant)}? " if meant else ""
    say(f"{program}: expected a command, found {typed[-1]!r}; {told}`{program} --help` shows what it takes")
    raise SystemExit(Exit.USAGE)


def _meant(typed: Sequence[str]) -> list[str]:
    """Return the commands that somebody may mean who typed words that are none."""
    *group, word = typed
    beside: dict[str, list[str]] = {}
    anywhere: dict[str, list[str]] = {}
    for words in (*_GROUP_WORDS, *_WORDS):
        anywhere.setdefault(words[-1], []).append(" ".join(words))
        if group and [*words[:-1]] == group:
            beside[words[-1]] = [" ".join(words)]
    for names in (beside, anywhere):
        if found := difflib.get_close_matches(word.lower(), names, 1):
            return names[found[0]]
    return []


def _parsers() -> tuple[_Parser, dict[str | None, _Parser], dict[str, _Parser]]:
    """Return the parser of everything, those of the groups by their name, and those of the commands by their module."""
    parser = _Front(
        prog="spanfold", description="Durable run records: one journal, and everything else folded from it."
    )
    parser.set_defaults(module=None, group=None)
    top = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    groups: dict[str | None, _Parser] = {None: parser}
    commands: dict[str, _Parser] = {}
    verbs: dict[str, Callable[..., _Parser]] = {}
    for command in COMMANDS:
        *group, word = command.words
        if group and group[0] not in verbs:
            made = top.add_parser(group[0], help=GROUPS[group[0]], description=f"{GROUPS[group[0]].capitalize()}.")
            made.set_defaults(group=group[0])
            verbs[group[0]] = made.add_subparsers(title="commands", metavar="COMMAND").add_parser
            groups[group[0]] = made
        commands[command.module] = _add(verbs[group[0]] if group else top.add_parser, word, command)
    return parser, groups, commands


def _add(add: Callable[..., _Parser], word: str, command: Command) -> _Parser:
    examples = "\n".join(f"  {example}" for example in command.examples)
    title = "examples" if len(command.examples) > 1 else "example"
    parser = add(
        word,
        help=command.summary,
        description=f"{command.summary[0].upper()}{command.summary[1:]}"
        f"{'' if command.summary.endswith('?') else '.'}\n\n{command.about}",
        epilog=f"{title}:\n{examples}",
        formatter_class=_Help,
    )
    for argument in command.arguments:
        parser.add_argument(*argument.names, help=argument.help, **argument.more)
    parser.add_argument("--json", action="store_true", help="print one JSON document (a stream: one object a line)")
    parser.set_defaults(module=command.module)
    return parser
