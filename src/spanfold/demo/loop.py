"""The diagnose loop of `spanfold demo`, which is also the tutorial of spanfold.

A model fails on some cases; the loop finds out why and repairs it:

    M1  probe      what do the failures look like?
    M2  screen     which signals tell failures from successes?
    M3  propose    what would explain that?
    M4  verify     does each explanation hold on cases nobody has looked at?
    M5  repair     does what should help, help?

It goes round until nothing helps any more, `MAX_CYCLES` times at most. Then the
first and the last model meet on held-out cases, once, and a second program
reviews the claim. Nothing is simulated; where nothing is found it says so.

What records all this is a handful of words, each used below where it is natural:

    spanfold.run(name, dir=...)       the run: its directory, its trace, its journal
    spanfold.stage("M1", cycle=0)     a stage; `.set(...)` adds fields to its record
    spanfold.model_call(name, ...)    what went into a model, and what came out
    spanfold.agent(name)              another program that works for this run
    spanfold.timed("fit")             time, for `spanfold timings`
    spanfold.traced                   any of these as a decorator
    spanfold.artifact, score, event   an array, a number that judges, a moment

Take them all away and the same verdict comes out: recording never changes a
result, and an exception passes through as it came.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

import spanfold
from spanfold.demo.digits import MAX_CYCLES, Cases, Digits, Floats, split_digits
from spanfold.demo.hypotheses import propose
from spanfold.demo.models import PROVIDER, Model, Recipe, fit
from spanfold.demo.probes import Occlusion, confusions, contact_sheet, saliency, signals
from spanfold.demo.records import SIGNIFICANT, Confirmation, Diagnosis, Finding, Hypothesis, Repair, StoppedBy
from spanfold.demo.stats import holm, mcnemar, rank_test

BATCH: Final = 64
"""How many cases a model is asked about at once."""
HELD_OUT: Final = -1
"""Cycle number of the held-out pass, as diagnose loops count it."""
REVIEWER_TIMEOUT_S: Final = 60

Narrate = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run the loop."""

    seed: int
    n_cases: int | None
    """How many cases of the second half to use; None for all."""
    occlusion: Occlusion
    """How to compute saliency maps: the same maps, in another time."""


class Probe(NamedTuple):
    """What a model did with some cases, and what is measured about each."""

    probabilities: Floats
    failed: NDArray[np.bool_]
    signals: dict[str, Floats]


class Recorded(NamedTuple):
    """A diagnosis, and where its record is."""

    diagnosis: Diagnosis
    run_dir: Path
    trace_id: str


# --- the loop ----------------------------------------------------------------------------------------------------


def diagnose(run_dir: Path, plan: Plan, narrate: Narrate) -> Recorded:
    """Run the loop once and record it in `run_dir`."""
    with spanfold.run("digits", dir=run_dir, settings=asdict(plan)) as run:
        with spanfold.timed("load", phase="setup"):
            digits = split_digits(plan.seed, plan.n_cases)
        first = train(Recipe(), digits.train)
        model, n_failures, hypotheses, repairs = first, list[int](), list[Hypothesis](), list[Repair]()
        stopped_by: StoppedBy = "max cycles"
        for cycle in range(MAX_CYCLES):
            probe = look_at_failures(cycle, model, digits, plan, narrate)
            n_failures.append(int(probe.failed.sum()))
            findings = screen(cycle, probe, narrate)
            if not any(finding.separates for finding in findings):
                stopped_by = "no finding"
                break
            tested = verify(cycle, propose_reasons(cycle, findings, narrate), model, digits, narrate)
            hypotheses += tested
            verified = [h for h in tested if h.status == "verified"]
            if not verified:
                stopped_by = "no hypothesis"
                break
            repair, model = repair_model(cycle, verified, model, digits, narrate)
            if repair is None:
                stopped_by = "no repair"
                break
            repairs.append(repair)
        confirmation = confirm(first, model, digits, narrate)
        diagnosis = Diagnosis(
            n_explored=len(digits.explore),
            n_failures=tuple(n_failures),
            hypotheses=tuple(hypotheses),
            repairs=tuple(repairs),
            model=model.name,
            stopped_by=stopped_by,
            confirmation=confirmation,
        )
        run.set(stopped_by=stopped_by, repairs=repairs, model=model.name, confirmed=confirmation.confirmed)
    return Recorded(diagnosis, run.dir, run.trace_id)


@spanfold.traced(kind="timing", name="fit", capture=False)
def train(recipe: Recipe, cases: Cases) -> Model:
    """Fit a model. The decorator does what `with spanfold.timed("fit"):` would do inside."""
    return fit(recipe, cases)


def predict(model: Model, cases: Cases) -> Floats:
    """Ask the model about every case and record each question: ids and answers, no pixels."""
    parts: list[Floats] = []
    with spanfold.timed("predict"):
        for batch in cases.batches(BATCH):
            with spanfold.model_call(
                model.name, provider=PROVIDER, operation="classify", input={"cases": batch.ids}
            ) as call:
                probabilities = model.predict_proba(batch.images)
                call.output({"digits": probabilities.argmax(axis=1)})
            parts.append(probabilities)
    return np.concatenate(parts)


def measure(model: Model, cases: Cases, digits: Digits) -> Probe:
    """Return predictions, failures and signals of these cases."""
    probabilities = predict(model, cases)
    with spanfold.timed("signals"):
        measured = signals(probabilities, cases, digits.train)
    return Probe(probabilities, probabilities.argmax(axis=1) != cases.labels, measured)


# --- M1: what do the failures look like? ---------------------------------------------------------------------------


def look_at_failures(cycle: int, model: Model, digits: Digits, plan: Plan, narrate: Narrate) -> Probe:
    """Measure every explored case, and draw what can be seen."""
    cases = digits.explore
    with spanfold.stage("M1", cycle=cycle, model=model.name) as stage:
        probe = measure(model, cases, digits)
        predicted = probe.probabilities.argmax(axis=1)
        confused = confusions(cases.labels, predicted)
        truth, taken_for = (int(i) for i in np.unravel_index(confused.argmax(), confused.shape))
        stage.set(
            n_cases=len(cases),
            n_failures=int(probe.failed.sum()),
            failed_cases=[cases.ids[row] for row in np.flatnonzero(probe.failed)],
            errors_per_class={str(digit): int(n) for digit, n in enumerate(confused.sum(axis=1))},
            most_confused={"digit": truth, "taken_for": taken_for, "times": int(confused.max())},
        )
        maps = mean_saliency(model, cases, probe.failed, plan.occlusion) if probe.failed.any() else {}
        with spanfold.timed("draw"):
            # An artifact is kept as an array; a name that says map, diff or scores also gets it a figure.
            spanfold.artifact("confusion_map", confused)
            spanfold.artifact("entropy_scores", np.sort(probe.signals["entropy"])[::-1])
            if maps:
                spanfold.artifact("failed_digits_map", contact_sheet(cases.images[probe.failed]))
                spanfold.artifact("failure_saliency_map", maps["failures"])
                spanfold.artifact("saliency_diff", maps["failures"] - maps["successes"])
    mostly = f", mostly {truth} taken for {taken_for} ({confused.max()}×)" if probe.failed.any() else ""
    narrate(f"M1 cycle {cycle}: {model.name} fails on {probe.failed.sum()} of {len(cases)} cases{mostly}")
    return probe


def mean_saliency(model: Model, cases: Cases, failed: NDArray[np.bool_], occlusion: Occlusion) -> dict[str, Floats]:
    """Return which pixels the decisions hang on: of the failures, and of as many successes to compare them with."""
    means: dict[str, Floats] = {}
    for name, group in (("failures", failed), ("successes", ~failed)):
        maps: list[Floats] = []
        for row in np.flatnonzero(group)[: failed.sum()]:
            with spanfold.timed("saliency", case=cases.ids[row]):
                maps.append(saliency(model, cases.images[row], occlusion))
        means[name] = np.mean(maps, axis=0)
    return means


# --- M2: which signals tell failures from successes? -----------------------------------------------------------------


def screen(cycle: int, probe: Probe, narrate: Narrate) -> list[Finding]:
    """Test every signal, corrected for having tested them all."""
    with spanfold.stage("M2", cycle=cycle) as stage:
        tests = {name: rank_test(values, probe.failed) for name, values in probe.signals.items()}
        corrected = holm([test.p_value for test in tests.values()])
        findings = [
            Finding(name, test.direction, test.auc, p_value)
            for (name, test), p_value in zip(tests.items(), corrected, strict=True)
        ]
        found = sorted((f for f in findings if f.separates), key=lambda f: f.p_value)
        for finding in found:
            spanfold.score(f"auc_{finding.signal}", finding.auc, comment=f"p={finding.p_value:.2g}")
        stage.set(findings=findings, n_separating=len(found))
    listed = ", ".join(f"{f.signal} {f.direction} (AUC {f.auc:.2f})" for f in found) or "none"
    narrate(f"M2 cycle {cycle}: {len(found)} of {len(findings)} signals separate failures from successes: {listed}")
    return findings


# --- M3: what would explain that? ------------------------------------------------------------------------------------


@spanfold.traced(stage="M3", capture="output")
def propose_reasons(cycle: int, findings: Sequence[Finding], narrate: Narrate) -> list[Hypothesis]:
    """Turn findings into hypotheses that can fail. Nothing but its result is to be recorded, so a decorator does."""
    proposed, fell_back = propose(cycle, findings)
    if fell_back:
        spanfold.event("rules_stood_in", reason=fell_back)
        narrate(f"M3 cycle {cycle}: {fell_back}; going on with the rules")
    by = proposed[0].proposed_by if proposed else "rules"
    narrate(f"M3 cycle {cycle}: {len(proposed)} hypothes{'is' if len(proposed) == 1 else 'es'} by {by}")
    return proposed


# --- M4: does each hold on cases nobody has looked at? -----------------------------------------------------------------


def verify(
    cycle: int, proposed: Sequence[Hypothesis], model: Model, digits: Digits, narrate: Narrate
) -> list[Hypothesis]:
    """Test the prediction of each hypothesis on the fresh cases of this cycle, one-sided."""
    cases = digits.verify[cycle]
    with spanfold.stage("M4", cycle=cycle, n_cases=len(cases)) as stage:
        probe = measure(model, cases, digits)
        tests = [rank_test(probe.signals[h.signal], probe.failed, h.direction) for h in proposed]
        corrected = holm([test.p_value for test in tests])
        tested = [
            replace(h, status="verified" if p_value < SIGNIFICANT else "not verified", p_value=p_value)
            for h, p_value in zip(proposed, corrected, strict=True)
        ]
        stage.set(n_failures=int(probe.failed.sum()), hypotheses=tested)
    for h in tested:
        narrate(f"M4 cycle {cycle}: {h.id} {h.status} on {len(cases)} fresh cases (p={h.p_value:.2g}): {h.statement}")
    return tested


# --- M5: does what should help, help? ----------------------------------------------------------------------------------


def repair_model(
    cycle: int, verified: Sequence[Hypothesis], model: Model, digits: Digits, narrate: Narrate
) -> tuple[Repair | None, Model]:
    """Try the repair of each verified hypothesis; keep the best if it fails less on the cases seen so far."""
    seen = seen_cases(cycle, digits)
    wanted: list[Repair] = [h.repair for h in verified if h.repair and not getattr(model.recipe, h.repair)]
    with spanfold.stage("M5", cycle=cycle, n_cases=len(seen)) as stage:
        fewest, best, kept = count_failures(model, seen), model, None
        n_failures: dict[str, int] = {"as it is": fewest}
        for repair in dict.fromkeys(wanted):
            with spanfold.timed("trial", repair=repair):
                candidate = train(model.recipe.with_repair(repair), digits.train)
                n_failures[repair] = count_failures(candidate, seen)
            if n_failures[repair] < fewest:
                fewest, best, kept = n_failures[repair], candidate, repair
        stage.set(n_failures=n_failures, kept=kept)
    tried = ", ".join(f"{name} {n}" for name, n in n_failures.items())
    narrate(f"M5 cycle {cycle}: failures of {len(seen)} cases: {tried}; {f'keeps {kept}' if kept else 'nothing helps'}")
    return kept, best


def seen_cases(cycle: int, digits: Digits) -> Cases:
    """Return the cases any decision up to this cycle was based on, the training half aside."""
    return sum(digits.verify[: cycle + 1], start=digits.explore)


def count_failures(model: Model, cases: Cases) -> int:
    """Return how many of these cases the model gets wrong."""
    return int((predict(model, cases).argmax(axis=1) != cases.labels).sum())


# --- the held-out pass ---------------------------------------------------------------------------------------------------


def confirm(first: Model, last: Model, digits: Digits, narrate: Narrate) -> Confirmation:
    """Compare the first model with the last on cases no choice was made on, and have the claim reviewed."""
    test = digits.test
    with spanfold.stage("M5", cycle=HELD_OUT, n_cases=len(test)) as stage:
        before = predict(first, test).argmax(axis=1)
        after = predict(last, test).argmax(axis=1)
        was_right, is_right = before == test.labels, after == test.labels
        n_fixed, n_broken = int((is_right & ~was_right).sum()), int((was_right & ~is_right).sum())
        p_value = mcnemar(n_fixed, n_broken)
        digits_by_case = {"truth": test.labels, "before": before, "after": after}
        agrees = ask_reviewer(
            {name: dict(zip(test.ids, given.tolist(), strict=True)) for name, given in digits_by_case.items()}
            | {"seen": seen_cases(MAX_CYCLES, digits).ids}
            | {"claim": {"n_fixed": n_fixed, "n_broken": n_broken, "p_value": p_value}}
        )
        outcome = Confirmation(
            n_cases=len(test),
            n_right_before=int(was_right.sum()),
            n_right_after=int(is_right.sum()),
            n_fixed=n_fixed,
            n_broken=n_broken,
            p_value=p_value,
            reviewer_agrees=agrees,
        )
        spanfold.score("accuracy_before", outcome.accuracy_before, comment=f"held out, {len(test)} cases")
        spanfold.score("accuracy_after", outcome.accuracy_after, comment=f"held out, {len(test)} cases")
        stage.set(**asdict(outcome), confirmed=outcome.confirmed)
    narrate(
        f"M5 held out: {outcome.accuracy_before:.1%} -> {outcome.accuracy_after:.1%} of {len(test)} cases right; "
        f"{n_fixed} fixed, {n_broken} broken, McNemar p={p_value:.2g}; the reviewer {'agrees' if agrees else 'objects'}: "
        f"{'confirmed' if outcome.confirmed else 'not confirmed'}"
    )
    return outcome


def ask_reviewer(evidence: dict[str, Any]) -> bool:
    """Have another program check the claim. Its environment says which run it works for, so what it records joins."""
    with spanfold.agent("reviewer") as agent:
        answer = subprocess.run(
            [sys.executable, "-m", "spanfold.demo.reviewer"],
            input=json.dumps(evidence),
            env=spanfold.child_env(),
            capture_output=True,
            text=True,
            check=True,
            timeout=REVIEWER_TIMEOUT_S,
        )
        review = json.loads(answer.stdout)
        agent.set(**review)
        return bool(review["agrees"])
