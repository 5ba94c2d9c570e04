"""How fast redaction is: the pre-filter on clean records, whole texts, and inputs made to be slow.

    python bench/bench_redact.py            a table
    python bench/bench_redact.py --json     one JSON document
    python bench/bench_redact.py --quick    small sizes, for a look

Numbers are the best of several rounds. `growth` is the factor by which time grows when a hostile input doubles; 2 is
linear. Targets (contract "agent invocations", 6.8): 4 MiB in at most 5 s, growth at most 2.6; pre-filter at least 400 MB/s.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson

from spanfold.redact import Redactor

MIB = 1024 * 1024
RULE = "-" * 5
BEGIN = f"{RULE}BEGIN RSA PRIVATE KEY{RULE}"

PROMPT = (
    "You are a careful engineer. Review this change and answer in JSON.\n\n"
    "def probe(model, cases):\n    for case in cases:\n        logits = model(case.x)  # (batch, classes)\n"
    '        yield {"margin": float(top2(logits)), "entropy": -(p * p.log()).sum()}\n\n'
    "The quick brown fox, 12 times: it's said that “quality” matters; see https://example.org/docs/page?x=1&y=2#part\n"
    "and README.md (sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08). max_tokens=4096.\n"
)

HOSTILE = {
    **{unit: unit for unit in ("a", "eyJ", " eyJ", "eyJaaaaa.", "://", "://a:", "token", "token=", "token =", 'token="')},
    **{unit: unit for unit in ("authorization: ", "_", "-", "=", "xoxb-", "glpat-", "AKIA", "M", "A", "a.", "\\n", "\n")},
    **{unit: unit for unit in ("12345678:", "ya29.", '{"k": "' + "v" * 200 + '"}', '"', "[", "\ud800", "\\", " -p", "mysql -px ")},
    **{unit: unit for unit in ("token='", "token: '", '"name": "token", ', "-eyJ", "%20", "https://a@", "Bearer ", "Cookie: a=b;")},
    **{unit: unit for unit in ("token:", "token:a/", "=keyAuthorization", "#AccountKey=")},
    BEGIN: BEGIN,
    "begin line and 1,000 A": BEGIN + "A" * 1000,
    "begin line and line end": BEGIN + "\n",
    "end line": f"{RULE}END RSA PRIVATE KEY{RULE}",
    "Private-Lines": "Private-Lines: 9999\n",
}  # fmt: skip
# One unit, then the other for the rest.
HOSTILE_RUNS = {
    "://:": ("://", ":"),
    "authorization and spaces": ("authorization", " "),
    "token= and quotes": ("token=", "'"),
    "token= and {-u=": ("token=", "{-u="),
}


def best(work: Callable[[], Any], rounds: int) -> float:
    """Return the shortest processor time of one call, in seconds: the machine may have other work."""
    times: list[float] = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def record(size_bytes: int) -> bytes:
    """Return the serialised line of a model call with a prompt of about `size_bytes`."""
    prompt = (PROMPT * (size_bytes // len(PROMPT) + 1))[: max(0, size_bytes - 800)]
    messages = orjson.dumps([{"role": "user", "parts": [{"type": "text", "content": prompt}]}]).decode()
    texts = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "some-model", "gen_ai.input.messages": messages}
    numbers = {"gen_ai.usage.input_tokens": 1234, "gen_ai.request.max_tokens": 4096, "spanfold.cycle": 0}
    attributes: list[dict[str, Any]] = [{"key": key, "value": {"stringValue": text}} for key, text in texts.items()]
    attributes += ({"key": key, "value": {"intValue": str(number)}} for key, number in numbers.items())
    return orjson.dumps(
        {"traceId": "5b8efff798038103d269b633813fc60c", "name": "chat", "kind": 3, "attributes": attributes}
    )


def prefilter(redactor: Redactor) -> list[dict[str, Any]]:
    """Measure `suspects()` on clean records of several sizes."""
    rows: list[dict[str, Any]] = []
    calls = 200
    for size in (0, 1024, 2048, 4096, 65_536):
        line = record(size) if size else b""
        assert not redactor.suspects(line)

        def work(line: bytes = line) -> None:
            suspects = redactor.suspects
            for _ in range(calls):
                suspects(line)

        seconds = best(work, 200 if size < 10_000 else 20) / calls
        rows.append({"size_bytes": len(line), "call_us": seconds * 1e6, "mb_per_s": len(line) / seconds / 1e6})
    return rows


def whole_texts(redactor: Redactor, size: int) -> list[dict[str, Any]]:
    """Measure `redact()` on clean text, on an ordinary log, and on one with a secret in every hundredth line."""
    clean = (PROMPT * (size // len(PROMPT) + 1))[:size]
    log = "".join(
        f"2026-01-02T03:04:05Z INFO worker-{n % 7} finished case {n} in {n % 97} ms\n" for n in range(size // 58)
    )
    seeded = "".join(
        line + ("MY_API_KEY=abcdefgh1234\n" if n % 100 == 0 else "\n") for n, line in enumerate(log.splitlines())
    )
    rows: list[dict[str, Any]] = []
    for name, text in (("clean prompt", clean), ("clean log", log), ("log with secrets", seeded)):
        seconds = best(partial(redactor.redact, text), 3)
        rows.append({"text": name, "size_bytes": len(text), "seconds": seconds, "mb_per_s": len(text) / seconds / 1e6})
    return rows


def hostile(redactor: Redactor, size: int) -> list[dict[str, Any]]:
    """Measure `redact()` on inputs that make careless rules slow, at half and at full size."""
    inputs = {name: (unit * (size // len(unit) + 1))[:size] for name, unit in HOSTILE.items()}
    inputs |= {name: (first + rest * size)[:size] for name, (first, rest) in HOSTILE_RUNS.items()}
    rows: list[dict[str, Any]] = []
    for name, text in inputs.items():
        half = best(partial(redactor.redact, text[: size // 2]), 2)
        full = best(partial(redactor.redact, text), 2)
        rows.append({"input": name[:28], "size_bytes": size, "seconds": full, "growth": full / half})
    return rows


def table(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    columns = list(rows[0])
    print("  ".join(f"{column:>28}" if index == 0 else f"{column:>12}" for index, column in enumerate(columns)))
    for row in rows:
        cells = [
            f"{cell:.3f}" if isinstance(cell, float) else ascii(cell) if index == 0 else str(cell)
            for index, cell in enumerate(row.values())
        ]
        print("  ".join(f"{cell:>28}" if index == 0 else f"{cell:>12}" for index, cell in enumerate(cells)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    options = parser.parse_args()
    size = MIB // 4 if options.quick else 4 * MIB
    redactor, fast = Redactor(), Redactor()
    built = best(lambda: Redactor().suspects(b""), 5)
    fast_built = best(fast.accelerate, 3)
    found = {
        "build_ms": built * 1e3,
        "prefilter": prefilter(redactor),
        "fast_build_ms": fast_built * 1e3,
        "fast_prefilter": prefilter(fast) if fast.accelerate() else [],
        "texts": whole_texts(redactor, size),
        "hostile": hostile(redactor, size),
    }
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print(f"automaton built in {built * 1e3:.1f} ms")
    table("pre-filter on clean records, RE2", found["prefilter"])
    if found["fast_prefilter"]:
        print(f"\nautomaton of Hyperscan built in {fast_built * 1e3:.0f} ms")
        table("pre-filter on clean records, Hyperscan", found["fast_prefilter"])
    table("whole texts", found["texts"])
    table("hostile inputs", found["hostile"])


if __name__ == "__main__":
    main()
