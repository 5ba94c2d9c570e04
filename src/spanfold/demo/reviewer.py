"""The reviewer that the loop calls as an agent: a program of its own that trusts no number it is given.

It reads evidence as JSON on standard input, recomputes the claim from the raw
predictions, and answers JSON on standard output. It shares no code with the
loop, so an error there cannot hide here. Its environment says which run it
works for, so what it records joins that run's trace:

    python -m spanfold.demo.reviewer < evidence.json
"""

import json
import sys
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import spanfold


@spanfold.traced(capture="output")
def review(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Check a claim of improvement against the predictions behind it.

    Args:
        evidence: `truth`, `before` and `after` (case id to digit), `seen` (ids of all cases that any choice was made
            on) and `claim` (`n_fixed`, `n_broken`, `p_value`).

    Returns:
        `agrees`, the recomputed numbers, and one sentence per objection.
    """
    truth, before, after, claim = (evidence[key] for key in ("truth", "before", "after", "claim"))
    n_fixed = sum(before[case] != digit == after[case] for case, digit in truth.items())
    n_broken = sum(before[case] == digit != after[case] for case, digit in truth.items())
    p_value = coin_p_value(n_fixed, n_broken)
    objections: list[str] = []
    if leaked := truth.keys() & set(evidence["seen"]):
        objections.append(f"{len(leaked)} of the test cases had been used to choose the repair.")
    if (n_fixed, n_broken) != (claim["n_fixed"], claim["n_broken"]):
        objections.append(f"{n_fixed} fixed and {n_broken} broken, not {claim['n_fixed']} and {claim['n_broken']}.")
    if abs(p_value - claim["p_value"]) > 1e-9:
        objections.append(f"p = {p_value:.3g}, not {claim['p_value']:.3g}.")
    return {
        "agrees": not objections,
        "n_fixed": n_fixed,
        "n_broken": n_broken,
        "p_value": p_value,
        "objections": objections,
    }


def coin_p_value(heads: int, tails: int) -> float:
    """Return how likely a fair coin is to fall at least this unevenly, by building up the whole distribution."""
    chances = [Fraction(1)]
    for _ in range(heads + tails):
        chances = [(a + b) / 2 for a, b in zip([Fraction(0), *chances], [*chances, Fraction(0)], strict=True)]
    uneven = abs(heads - tails)
    return float(sum(c for n, c in enumerate(chances) if abs(2 * n - heads - tails) >= uneven))


def main() -> None:
    """Answer one request on standard input."""
    answer = review(json.load(sys.stdin))
    json.dump(answer, sys.stdout)
    spanfold.shutdown()


if __name__ == "__main__":
    main()
