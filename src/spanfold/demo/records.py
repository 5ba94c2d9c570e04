"""What the stages of the loop hand to each other, and what `run_demo` returns. Plain records, no computation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

SIGNIFICANT: Final = 0.05
"""Corrected p-values below this count as evidence, everywhere in the demo."""

Direction = Literal["higher", "lower"]
"""How the failures compare with the successes in one signal."""

Repair = Literal["kernel", "shifts", "experts"]
"""What can be added to a model; `models.Recipe` says what each is."""
REPAIRS: Final[tuple[Repair, ...]] = get_args(Repair)

StoppedBy = Literal["no finding", "no hypothesis", "no repair", "max cycles"]
"""Why the loop did not go round again."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What M2 says of one signal."""

    signal: str
    direction: Direction
    auc: float
    """0 to 1. Chance that a random failure has the larger value; 0.5 is no separation."""
    p_value: float
    """Corrected for all signals tested together."""

    @property
    def separates(self) -> bool:
        """Whether the signal tells failures from successes."""
        return self.p_value < SIGNIFICANT


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A reason for the failures, with the prediction it stands or falls with."""

    id: str
    """`c<cycle>.h<n>`."""
    statement: str
    signal: str
    """The prediction: on fresh cases the failures have `direction` values of this signal."""
    direction: Direction
    repair: Repair | None
    """What should help if it is true; None when nothing here would."""
    proposed_by: str
    """`rules`, or the name of a language model."""
    status: Literal["proposed", "verified", "not verified"] = "proposed"
    p_value: float | None = None
    """M4's: one-sided, corrected for all hypotheses of the cycle."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The first model against the repaired one, on cases that no choice was made on."""

    n_cases: int
    n_right_before: int
    n_right_after: int
    n_fixed: int
    """Cases only the repaired model has right."""
    n_broken: int
    """Cases only the first model has right."""
    p_value: float
    """McNemar's exact test, two-sided."""
    reviewer_agrees: bool
    """Whether an independent program came to the same numbers."""

    @property
    def accuracy_before(self) -> float:
        """Share of the cases the first model has right, 0 to 1."""
        return self.n_right_before / self.n_cases

    @property
    def accuracy_after(self) -> float:
        """Share of the cases the last model has right, 0 to 1."""
        return self.n_right_after / self.n_cases

    @property
    def confirmed(self) -> bool:
        """Whether the repair is an improvement, beyond chance and with the reviewer's consent."""
        return self.n_fixed > self.n_broken and self.p_value < SIGNIFICANT and self.reviewer_agrees


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What one run of the loop came to. Equal when all verdicts are."""

    n_explored: int
    """Cases whose failures were looked at."""
    n_failures: tuple[int, ...]
    """How many of them the model of each cycle got wrong; the first is the model under diagnosis."""
    hypotheses: tuple[Hypothesis, ...]
    """Of all cycles, in the order proposed, with what M4 found."""
    repairs: tuple[Repair, ...]
    """Adopted, in this order; empty when none helped."""
    model: str
    """Name of the last model."""
    stopped_by: StoppedBy
    confirmation: Confirmation


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What `run_demo` did and where it is."""

    run_dir: Path
    """The run whose verdict this is."""
    trace_id: str
    """Its trace, 32 hex digits; empty when recording is switched off."""
    second_run_dir: Path
    """The same loop again, with its saliency maps computed in batches: what to compare the first run's timings with."""
    same_verdict: bool
    """Whether the second run came to exactly the same diagnosis."""
    failures: int
    """Failures of the first model among the cases explored."""
    explored: int
    """Number of cases explored."""
    hypotheses: tuple[Hypothesis, ...]
    """All hypotheses with their status."""
    repair: str | None
    """Repairs adopted, such as `kernel+experts`; None when none helped."""
    accuracy_before: float
    """Share of held-out cases the first model has right, 0 to 1."""
    accuracy_after: float
    """Share the repaired model has right; the same as before when nothing was repaired."""
    held_out: int
    """Number of held-out cases."""
    n_fixed: int
    n_broken: int
    mcnemar_p: float
    """McNemar's exact test on the held-out cases, two-sided."""
    reviewer_agrees: bool
    """Whether an independent program came to the same numbers."""
    confirmed: bool
    """Whether the repair is an improvement: better, beyond chance at 5 %, and the reviewer agrees."""
