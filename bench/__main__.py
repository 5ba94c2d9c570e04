"""Run the benchmarks and print their tables.

    .venv/bin/python -m bench                    all of them, about ten minutes
    .venv/bin/python -m bench overhead --quick   one, small, for a look
    .venv/bin/python -m bench --json             one JSON document

`make setup` makes that `.venv`, with what the benchmarks compare spanfold with.
`delivery` needs the collector of `make services`. Each is also a module of its own: bench.overhead, bench.journal,
bench.growth, bench.sparse, bench.delivery, bench.diagnose, bench.bench_redact. `diagnose` takes some minutes, nearly
all of them for the logger ours is compared with.
"""

import argparse
import json
import sys

try:
    from bench import delivery, diagnose, growth, journal, overhead, sparse
except ModuleNotFoundError as error:
    sys.exit(
        f"bench: expected the packages of .venv, found no module {error.name} in {sys.executable}. "
        "Run `make setup`, then `.venv/bin/python -m bench`; `make bench` does both."
    )

BENCHMARKS = {
    "overhead": overhead.measure,
    "journal": journal.measure,
    "growth": growth.measure,
    "sparse": sparse.measure,
    "delivery": delivery.measure,
    "diagnose": diagnose.measure,
}
RENDER = {
    "overhead": overhead.render,
    "journal": journal.render,
    "growth": growth.render,
    "sparse": sparse.render,
    "delivery": delivery.render,
    "diagnose": diagnose.render,
}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which: {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="small sizes, for a look")
    args = parser.parse_args()
    unknown = sorted(set(args.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    results = {}
    for name in args.names or BENCHMARKS:
        results[name] = BENCHMARKS[name](quick=args.quick)
        if not args.json:
            print(RENDER[name](results[name]), flush=True)
    if args.json:
        json.dump(results, sys.stdout, indent=2)
        print()


if __name__ == "__main__":
    main()
