"""The demo: a real diagnose loop on real data, recorded; its code is the tutorial.

    from spanfold.demo import run_demo

    result = run_demo(Path("runs"), narrate=print)

`loop.py` is the place to start reading: the loop itself, with everything that
records it. Beside it: `digits` (the data), `models` (what is diagnosed and its
repairs), `probes` (what is measured), `hypotheses` (what might explain it),
`stats` (what is significant) and `reviewer` (the agent that checks the claim).
Needs scikit-learn: `pip install 'spanfold[demo]'`.
"""

from collections.abc import Callable
from pathlib import Path

from spanfold.demo.records import Confirmation, DemoResult, Diagnosis, Finding, Hypothesis

__all__ = ["Confirmation", "DemoResult", "Diagnosis", "Finding", "Hypothesis", "run_demo"]


def run_demo(directory: Path, *, seed: int = 0, cases: int | None = None, narrate: Callable[[str], None]) -> DemoResult:
    """Diagnose and repair a classifier of handwritten digits, twice, and record both runs.

    The second run does the same work in another way (saliency maps in batches),
    so that there is something true to compare.

    Args:
        directory: Where the run directories go: the next two free numbers, `001` and `002` in a new one.
        seed: Which cases are explored, verified on and held out. The same seed gives the same verdict.
        cases: Use only so many of the 899 cases, at least 20; None uses all.
        narrate: Told what happens, one line at a time.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: `cases` is less than 20.
    """
    # Here and not above: the reviewer imports this package too, and starts in a fraction of the time without them.
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it publishes no types

    from spanfold.demo.loop import Plan, diagnose

    one, two = _next_two(directory)
    # With matrices this small several threads mostly wait for each other: a fit took 70 times longer on two busy cores.
    with threadpool_limits(limits=1):
        narrate(f"run {one.name}: saliency maps are computed one question at a time")
        first = diagnose(one, Plan(seed, cases, "one by one"), narrate)
        narrate(f"run {two.name}: the same loop again, saliency maps are computed in batches")
        second = diagnose(two, Plan(seed, cases, "batched"), lambda line: None)
    diagnosis, confirmation = first.diagnosis, first.diagnosis.confirmation
    return DemoResult(
        run_dir=first.run_dir,
        trace_id=first.trace_id,
        second_run_dir=second.run_dir,
        same_verdict=first.diagnosis == second.diagnosis,
        explored=diagnosis.n_explored,
        failures=diagnosis.n_failures[0],
        hypotheses=diagnosis.hypotheses,
        repair="+".join(diagnosis.repairs) or None,
        held_out=confirmation.n_cases,
        accuracy_before=confirmation.accuracy_before,
        accuracy_after=confirmation.accuracy_after,
        n_fixed=confirmation.n_fixed,
        n_broken=confirmation.n_broken,
        mcnemar_p=confirmation.p_value,
        reviewer_agrees=confirmation.reviewer_agrees,
        confirmed=confirmation.confirmed,
    )


def _next_two(directory: Path) -> tuple[Path, Path]:
    """Return the run directories after the highest number there is."""
    entries = directory.iterdir() if directory.is_dir() else ()
    last = max((int(e.name) for e in entries if e.name.isascii() and e.name.isdigit()), default=0)
    return directory / f"{last + 1:03d}", directory / f"{last + 2:03d}"
