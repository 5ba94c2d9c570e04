"""The rules that keep the rooms apart: who imports whom, who writes, who prints, and what the front door shows.

Each rule is a function from a source tree to a list of sentences, so that it can be tried on a small wrong tree too.
"""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "spanfold"

# DESIGN section 3, "Flow and rooms": a room imports the base and rooms to its left. This table is that sentence.
BASE = {"names", "routing", "moments", "intervals", "model", "errors", "settings", "fs"}
_RECORDER = {"base", "redact", "journal", "artifacts", "instrument"}
_ROOMS = {*_RECORDER, "diagnose", "agents", "experiments", "fold", "deliver", "bundle", "timings"}
MAY_IMPORT: dict[str, set[str]] = {
    "base": set(),
    "redact": {"base"},
    "journal": {"base", "redact"},
    "artifacts": {"base", "redact"},
    "instrument": {"base", "redact", "journal", "artifacts"},
    "diagnose": _RECORDER,
    "agents": _RECORDER,
    "experiments": _RECORDER,
    "fold": {"base", "journal"},
    "deliver": {"base", "redact", "journal"},
    "bundle": {"base", "journal", "fold"},
    "timings": {"base"},
    # The one short module that knows every room: it wires fold and deliver into instrument when configure() runs.
    "_connect": _ROOMS,
    # `spanfold/__init__.py`: re-exports, and the only importer of `_connect`.
    "front": {"base", "instrument", "_connect"},
    "testing": {*_ROOMS, "front"},
    "demo": {"front"},
    "cli": {*_ROOMS, "front", "demo", "testing"},
}
# The demo is the tutorial: whoever reads it must be able to write the same without our internals.
DEMO_MAY_ALSO_IMPORT = {"numpy", "sklearn", "threadpoolctl"}

WRITE_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC", "O_TMPFILE"}
CHANGES_THE_DISK = {
    *(f"os.{f}" for f in "replace rename renames mkdir makedirs link symlink mkfifo mknod truncate".split()),
    *(f"os.{f}" for f in "unlink remove rmdir removedirs".split()),
    *(f"shutil.{f}" for f in "copy copy2 copyfile copytree move rmtree make_archive unpack_archive".split()),
}
# Methods of pathlib.Path with the number of their positional arguments: the type of the object is not known here, and the
# safe methods of fs/ take a name first.
PATH_METHODS = {
    **dict.fromkeys(("?.touch", "?.mkdir", "?.unlink", "?.rmdir"), 0),
    **dict.fromkeys(("?.write_text", "?.write_bytes", "?.rename", "?.replace", "?.symlink_to", "?.hardlink_to"), 1),
}
TALKS = {"print", "input", "exit", "quit", "sys.exit", "os._exit", "breakpoint"}
TALKING_MODULES = {"argparse", "optparse", "getopt", "click", "typer", "readline", "getpass"}

FRONT_DOOR = {
    *("configure", "run", "traced", "stage", "model_call", "agent", "tool", "timed", "score", "artifact"),
    *("current_run", "event", "flush", "shutdown", "child_env", "traced_executor"),
    # What flush() returns, and the root of what configure() raises.
    *("FlushResult", "SpanfoldError"),
    # For annotations.
    *("Run", "Span", "ModelCallSpan", "AgentSpan", "ToolSpan"),
}
HEAVY = "grpc google.protobuf requests opentelemetry.exporter numpy matplotlib langfuse duckdb sklearn".split()

CHANGE_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\.(added|changed|fixed|removed|security)\.md")
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)[^)]*\)")


def sources(package: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(package.rglob("*.py")):
        yield path, parsed(path.read_text(encoding="utf-8"))


@functools.cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


def room_of_file(path: Path, package: Path) -> str:
    first = path.relative_to(package).parts[0].removesuffix(".py")
    named = {"__init__": "front", "__main__": "cli"}
    return named.get(first, "base" if first in BASE else first)


def room_of_import(dotted: str, package: Path) -> str:
    """Return the room that an import of a spanfold name reaches; a name that is no module is the front door's."""
    parts = dotted.split(".")
    if len(parts) == 1 or not ((package / parts[1]).is_dir() or (package / f"{parts[1]}.py").is_file()):
        return "front"
    return "base" if parts[1] in BASE else parts[1]


def imported_names(path: Path, tree: ast.Module, package: Path) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of every import: at the top, in a function, for types only, or by importlib."""
    here = [package.name, *path.relative_to(package).with_suffix("").parts]
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                origin = [*(here[:-level] if level else []), *([module] if module else [])]
                yield from ((node.lineno, ".".join([*origin, alias.name])) for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(dotted)), *_],
            ):
                yield node.lineno, dotted


def wrong_arrows(package: Path) -> list[str]:
    wrong: list[str] = []
    for path, tree in sources(package):
        room = room_of_file(path, package)
        for line, dotted in imported_names(path, tree, package):
            at = f"{path.relative_to(package.parent)}:{line}"
            top, *rest = dotted.split(".")
            if top != package.name:
                if room == "demo" and top not in sys.stdlib_module_names | DEMO_MAY_ALSO_IMPORT:
                    wrong.append(f"{at}: demo imports {top}; the demo may import spanfold and its own extra only")
                continue
            target = room_of_import(dotted, package)
            if room not in MAY_IMPORT:
                wrong.append(f"{at}: the room {room} is not in the table of DESIGN section 3; add it to MAY_IMPORT")
            elif target not in {room, *MAY_IMPORT[room]}:
                allowed = ", ".join(sorted(MAY_IMPORT[room])) or "nothing of ours"
                wrong.append(f"{at}: {room} imports {dotted} ({target}); {room} may import: {allowed}")
            elif target != room and any(re.match("_(?!_)", part) for part in rest[1:]):
                wrong.append(
                    f"{at}: {room} imports {dotted}; a name that starts with _ is private to the room {target}"
                )
    return wrong


def calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    """Yield every call with the dotted name of what it calls, seen through import aliases; `?.name` for a method."""
    origin: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                origin |= {
                    alias.asname or alias.name.split(".")[0]: (alias.asname and alias.name) or "" for alias in names
                }
            case ast.ImportFrom(module=str(module), names=names, level=0):
                origin |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in names}

    def dotted(node: ast.expr) -> str:
        match node:
            case ast.Name(id=name):
                return origin.get(name) or name
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in origin:
                return f"{origin[name] or name}.{attr}"
            case ast.Attribute(attr=attr):
                return f"?.{attr}"
        return "?"

    yield from ((node, dotted(node.func)) for node in ast.walk(tree) if isinstance(node, ast.Call))


def flag_words(flags: ast.expr, tree: ast.Module) -> set[str]:
    """Return the O_ words of an expression, also of a variable that this module assigns; empty when it names none."""
    where: list[ast.AST] = [flags]
    if isinstance(flags, ast.Name):
        assigned = (n for n in ast.walk(tree) if isinstance(n, ast.Assign | ast.AugAssign | ast.AnnAssign))
        where = [n for n in assigned if flags.id in ast.unparse(n).split("=")[0]]
    nodes = [node for part in where for node in ast.walk(part)]
    words = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    words |= {str(n.value) for n in nodes if isinstance(n, ast.Constant)}  # getattr(os, "O_NOFOLLOW", 0)
    return {word for word in words if word.startswith("O_")}


def is_write(call: ast.Call, name: str, tree: ast.Module) -> bool:
    if name in CHANGES_THE_DISK or name.startswith("tempfile."):
        return True
    if name == "os.open":
        # Only flags that are spelled out and harmless are known to be harmless.
        words = flag_words(call.args[1], tree) if len(call.args) > 1 else set[str]()
        return not words or bool(words & WRITE_FLAGS)
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if name in PATH_METHODS:
        return len(call.args) == PATH_METHODS[name]
    if name != "open" and not name.endswith((".open", "os.fdopen")):
        return False
    if "fileobj" in keywords:
        return False  # an archive inside a file that somebody else opened
    mode = keywords.get("mode")
    candidates = [mode] if mode else call.args[0 if name == "?.open" else 1 : 2]
    if name == "?.open":
        candidates = [c for c in candidates if isinstance(c, ast.Constant)]
    # A mode that is computed may be anything.
    return any(
        not isinstance(c, ast.Constant) or re.fullmatch(r"[rbt|]*[wax+][rwabt+|]*(:\w+)?", str(c.value))
        for c in candidates
    )


def writes_outside_fs(package: Path) -> list[str]:
    return [
        f"{path.relative_to(package.parent)}:{call.lineno}: {name}() changes the disk; only fs/ does, so that every path is "
        "reached without following a link"
        for path, tree in sources(package)
        if not path.is_relative_to(package / "fs")
        for call, name in calls(tree)
        if is_write(call, name, tree)
    ]


def talk_outside_cli(package: Path) -> list[str]:
    wrong: list[str] = []
    for path, tree in sources(package):
        if room_of_file(path, package) in {"cli", "demo"}:
            continue
        at = path.relative_to(package.parent)
        found = [(call.lineno, f"calls {name}()") for call, name in calls(tree) if name in TALKS]
        found += [
            (line, f"imports {dotted}")
            for line, dotted in imported_names(path, tree, package)
            if dotted.split(".")[0] in TALKING_MODULES
        ]
        found += [
            (node.lineno, "raises SystemExit")
            for node in ast.walk(tree)
            if isinstance(node, ast.Raise) and node.exc and "SystemExit" in ast.unparse(node.exc)
        ]
        wrong += [f"{at}:{line}: {what}; only cli/ and demo/ print, exit or read arguments" for line, what in found]
    return wrong


def broken_links(page: Path) -> list[str]:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    return [
        f"{page.relative_to(ROOT)}: {target} does not exist"
        for target in targets
        if not (page.parent / target).exists()
    ]


def test_rooms_import_only_rooms_to_their_left() -> None:
    assert not wrong_arrows(PACKAGE), "\n".join(wrong_arrows(PACKAGE))


def test_only_fs_opens_files_for_writing() -> None:
    assert not writes_outside_fs(PACKAGE), "\n".join(writes_outside_fs(PACKAGE))


def test_only_the_command_line_and_the_demo_print_exit_or_read_arguments() -> None:
    assert not talk_outside_cli(PACKAGE), "\n".join(talk_outside_cli(PACKAGE))


def tree_of(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "spanfold"
    for name in (
        "__init__.py",
        "errors.py",
        "_connect.py",
        "fs/__init__.py",
        "journal/__init__.py",
        "fold/__init__.py",
    ):
        files.setdefault(name, "")
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text, encoding="utf-8")
    return package


@pytest.mark.parametrize(
    ("file", "source", "sentence"),
    [
        ("journal/reader.py", "\nimport spanfold.fold", "journal/reader.py:2: journal imports spanfold.fold (fold)"),
        ("journal/reader.py", "from spanfold import fold", "journal imports spanfold.fold (fold)"),
        ("journal/reader.py", "from ..fold import engine", "journal imports spanfold.fold.engine (fold)"),
        ("journal/reader.py", "def f():\n    from spanfold.fold import engine", "reader.py:2: journal imports"),
        (
            "journal/reader.py",
            "import importlib\nimportlib.import_module('spanfold.fold')",
            "reader.py:2: journal imports",
        ),
        ("journal/reader.py", "from spanfold import configure", "journal imports spanfold.configure (front)"),
        ("journal/reader.py", "import spanfold._connect", "journal imports spanfold._connect (_connect)"),
        ("fs/root.py", "from spanfold.journal import Journal", "base imports spanfold.journal.Journal (journal)"),
        ("fold/engine.py", "from spanfold.journal._codec import line", "private to the room journal"),
        ("demo/loop.py", "from spanfold.journal import read", "demo may import: front"),
        ("demo/loop.py", "import pandas", "demo imports pandas"),
        ("corner/thing.py", "from spanfold.errors import X", "the room corner is not in the table"),
    ],
)
def test_a_wrong_arrow_is_named_with_file_line_and_rule(tmp_path: Path, file: str, source: str, sentence: str) -> None:
    wrong = wrong_arrows(tree_of(tmp_path, {file: source}))

    assert len(wrong) == 1
    assert sentence in wrong[0]


def test_right_arrows_pass(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from spanfold._connect import configure",
        "journal/reader.py": "import json\nfrom spanfold.errors import X\nfrom ._codec import line\nfrom . import _chain",
        "fold/engine.py": "from spanfold.journal import Journal\nfrom spanfold.journal.reader import read",
        "_connect.py": "from spanfold.fold import engine",
        "demo/loop.py": "import spanfold\nimport numpy as np\nfrom spanfold.demo import data",
        "cli/main.py": "import argparse\nfrom spanfold.fold import engine",
    }

    assert wrong_arrows(tree_of(tmp_path, files)) == []


@pytest.mark.parametrize(
    "source",
    [
        "open('x', 'w')",
        "open('x', mode='ab')",
        "open('x', 'r+')",
        "open('x', mode)",
        "p.open('xb')",
        "import io\nio.open('x', 'w')",
        "import gzip\ngzip.open('x', 'wb')",
        "import os\nos.open('x', os.O_RDONLY | os.O_CREAT)",
        "import os\nos.open('x', flags)",
        "import os\nflags = os.O_RDONLY\nflags |= os.O_CREAT\nos.open('x', flags)",
        "from os import open as o\no('x', flags)",
        "import os\nos.fdopen(3, 'w')",
        "import os as system\nsystem.replace('a', 'b')",
        "from os import rename\nrename('a', 'b')",
        "p.write_text('x')",
        "p.replace(q)",
        "p.mkdir(parents=True)",
        "Path('x').unlink()",
        "import shutil\nshutil.copy2('a', 'b')",
        "from tempfile import mkdtemp\nmkdtemp()",
        "import tarfile\ntarfile.open('x.tar', 'w:gz')",
    ],
)
def test_a_write_outside_fs_is_found(tmp_path: Path, source: str) -> None:
    assert len(writes_outside_fs(tree_of(tmp_path, {"journal/writer.py": source, "fs/root.py": source}))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "open('x')",
        "open('x', 'rb')",
        "p.open()",
        "p.open('rb')",
        "import os\nos.open('x', os.O_RDONLY | os.O_NOFOLLOW)",
        "import os\nflags = os.O_RDONLY | getattr(os, 'O_NOFOLLOW', 0)\nos.open('x', flags)",
        "text.replace('a', 'b')",
        "when.replace(tzinfo=UTC)",
        "from dataclasses import replace\nreplace(record, name='x')",
        "import tarfile\ntarfile.open(fileobj=handle, mode='w|')",
        "stream.write('x')",
        "root.unlink('x')",
        "root.write_bytes('x', data)",
    ],
)
def test_reading_and_text_work_pass_as_no_write(tmp_path: Path, source: str) -> None:
    assert writes_outside_fs(tree_of(tmp_path, {"journal/writer.py": source})) == []


@pytest.mark.parametrize(
    "source",
    [
        "print('x')",
        "import sys\nsys.exit(1)",
        "import argparse",
        "x = input()",
        "raise SystemExit(2)",
        "import os\nos._exit(0)",
    ],
)
def test_talk_outside_the_command_line_is_found(tmp_path: Path, source: str) -> None:
    files = {"journal/writer.py": source, "cli/main.py": source, "demo/loop.py": source, "__main__.py": source}

    wrong = talk_outside_cli(tree_of(tmp_path, files))

    assert [w.split(":")[0] for w in wrong] == ["spanfold/journal/writer.py"]


def test_the_front_door_shows_the_documented_names() -> None:
    import spanfold

    assert sorted(set(spanfold.__all__) - {"__version__"}) == sorted(FRONT_DOOR)


@pytest.mark.parametrize("name", sorted(FRONT_DOOR))
def test_every_name_of_the_front_door_has_a_docstring(name: str) -> None:
    import spanfold

    assert (getattr(spanfold, name).__doc__ or "").strip()


@pytest.mark.parametrize("room", sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py")))
def test_a_room_states_its_public_names_and_has_them(room: str) -> None:
    module = __import__(f"spanfold.{room}", fromlist=["__all__"])

    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_importing_spanfold_loads_no_exporter_and_no_extra() -> None:
    # Import time is told, not judged: the machine that runs this is shared. The budget of DESIGN section 10 is 150 ms.
    script = (
        "import sys, time; start = time.perf_counter(); import spanfold; took = time.perf_counter() - start\n"
        f"loaded = sorted(m for m in sys.modules if any(m == h or m.startswith(h + '.') for h in {HEAVY!r}))\n"
        "sys.exit(f'importing spanfold took {took * 1000:.0f} ms and loaded {loaded}' if loaded else 0)\n"
    )

    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)

    assert result.returncode == 0, result.stderr


def test_every_docs_page_is_listed_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {(ROOT / "docs" / target).resolve() for target in LINK.findall(index)}
    pages = {p.resolve() for p in (ROOT / "docs").rglob("*.md")} - {(ROOT / "docs" / "index.md").resolve()}

    assert {str(p.relative_to(ROOT)) for p in pages - listed} == set()


@pytest.mark.parametrize(
    "page", sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("changes/*.md")}), ids=lambda p: p.name
)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_a_change_is_named_by_id_and_kind() -> None:
    names = [p.name for p in (ROOT / "changes").iterdir() if p.name != "README.md"]

    assert [name for name in names if not CHANGE_NAME.fullmatch(name)] == []


def variables_in(tree: ast.AST) -> set[str]:
    """Return the variables of ours that the texts of a module are the name of."""
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and re.fullmatch("SPANFOLD_[A-Z_]+[A-Z]", text)}


def test_every_variable_that_a_room_reads_is_a_known_one() -> None:
    from spanfold.settings import KNOWN_VARIABLES

    read = {name for path, tree in sources(PACKAGE) if path.name != "settings.py" for name in variables_in(tree)}
    functions = (PACKAGE / "settings.py").read_text(encoding="utf-8").partition("\ndef ")[2]
    read |= variables_in(parsed(f"def {functions}"))  # what is before it is the list itself

    assert read - KNOWN_VARIABLES == set()
    assert KNOWN_VARIABLES - read == {"SPANFOLD_COLLECTOR", "SPANFOLD_CI"}
    assert "SPANFOLD_OTHER" in variables_in(parsed("os.environ['SPANFOLD_OTHER']"))


Rule = Callable[[Path], list[str]]


@pytest.mark.parametrize("rule", [wrong_arrows, writes_outside_fs, talk_outside_cli])
def test_a_rule_looks_at_every_module_of_the_package(tmp_path: Path, rule: Rule) -> None:
    wrong = "import spanfold.fold\nprint(open('x', 'w'))"

    found = rule(tree_of(tmp_path, {"journal/a.py": wrong, "journal/deep/b.py": wrong, "errors.py": wrong}))

    assert len(found) == 3
