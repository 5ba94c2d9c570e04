"""Is the new way faster, where, and is it real? Two runs of the same work, compared.

python examples/faster.py
"""

from collections.abc import Callable

import spanfold
from spanfold.timings import compare, render_comparison

N = 600


def by_list(values: range) -> int:
    known: list[int] = []
    for value in values:
        if value % N not in known:  # looks at every element
            known.append(value % N)
    return len(known)


def by_set(values: range) -> int:
    return len({value % N for value in values})


def measure(name: str, count_distinct: Callable[[range], int]) -> str:
    with spanfold.run(name) as run:
        for repeat in range(20):
            values = range(repeat, repeat + 2 * N)
            with spanfold.timed("distinct"):
                assert count_distinct(values) == N
            with spanfold.timed("sort"):
                sorted(values, key=lambda value: -value)
    return str(run.dir)


def main() -> None:
    before, after = measure("by-list", by_list), measure("by-set", by_set)
    print(render_comparison(compare(before, after)))
    print(f"the same from the command line:\n  spanfold timings compare {before} {after}")


if __name__ == "__main__":
    main()
