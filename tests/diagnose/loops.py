"""Small models and judges, and the three loops of evalrx run with them, offline."""

import json
import re
from typing import Any

from evalrx.core import Capability, CaseBatch, FailureCase
from evalrx.core.case import Inputs, Label
from evalrx.core.model import Model
from evalrx.eval_agent.agentic.loop import AgenticDiagnoseLoop
from evalrx.eval_agent.legacy import AutoDiagnoseLoop
from evalrx.eval_agent.loop import VLDiagnoseLoop
from evalrx.eval_agent.stages.diagnosis import DiagnosisAgent
from evalrx.eval_agent.stages.fix_agent import FixAgent
from evalrx.eval_agent.stages.hypothesis_tester import HypothesisTester
from evalrx.eval_agent.stages.probe_agent import ProbeAgent
from evalrx.eval_agent.stages.protocol import ExperimentProtocol

HYPOTHESES = """HYPOTHESIS: It says yes whatever it is asked.
PLAIN_STATEMENT: It always agrees.
FAILURE_MODE: yes_bias
TEST: compare answers to positive and negative questions
"""


class Target(Model):
    """Says yes to everything unless it is told to look closely, and so is wrong half of the time."""

    capabilities = frozenset({Capability.GENERATE})

    def generate(self, inputs: Any, **kwargs: Any) -> str:
        prompt = inputs if isinstance(inputs, str) else inputs.prompt
        number = re.search(r"Is (\d+) even", prompt)
        if number and "close" in prompt.lower():  # told to look closely, it is right
            return "yes" if int(number[1]) % 2 == 0 else "no"
        return "yes"

    def forward(self, inputs: Any, capture: Any, spec: Any = None) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "Target()"


class Judge(Model):
    """Answers each kind of question with one text."""

    capabilities = frozenset({Capability.GENERATE})

    def __init__(self, actions: list[dict[str, Any]] | None = None) -> None:
        self._actions = list(actions or [])

    def generate(self, inputs: Any, **kwargs: Any) -> str:
        if self._actions:
            return json.dumps(self._actions.pop(0))
        return HYPOTHESES

    def forward(self, inputs: Any, capture: Any, spec: Any = None) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "Judge()"


def cases(count: int = 12) -> CaseBatch:
    return CaseBatch(
        FailureCase(
            Inputs(prompt=f"Is {number} even?"),
            expected="yes" if number % 2 == 0 else "no",
            observed="yes",
            label=Label.PASS if number % 2 == 0 else Label.FAIL,
            id=f"case-{number}",
        )
        for number in range(count)
    )


def protocol() -> ExperimentProtocol:
    return ExperimentProtocol(description="Does it tell even from odd?", task_domain="numbers")


def _parts(logger: Any) -> dict[str, Any]:
    return {
        "probe_agent": ProbeAgent(analyzer_overrides=None, max_analyzers=2, run_logger=logger),
        "diagnosis_agent": DiagnosisAgent(judge=Judge()),
        "hypothesis_tester": HypothesisTester(),
        "fix_agent": FixAgent(judge=Judge(), run_logger=logger, allow_codegen=False),
    }


def fixed(logger: Any) -> Any:
    loop = VLDiagnoseLoop(Target(), protocol(), run_logger=logger, confirm_split=0.5, max_cycles=1, **_parts(logger))
    data = cases(24)
    report = loop.run(data)
    loop.run_fix(report, data, allow_unverified=True)
    return report


def legacy(logger: Any) -> Any:
    loop = AutoDiagnoseLoop(
        Target(),
        probe_agent=ProbeAgent(max_analyzers=2, run_logger=logger),
        diagnosis_agent=DiagnosisAgent(judge=Judge()),
        run_logger=logger,
        max_cycles=2,
    )
    return loop.run(cases())


def tool_calling(logger: Any) -> Any:
    actions = [
        {"tool": name, "params": {}, "rationale": "because"}
        for name in ("run_probe", "run_stats", "no_such_tool", "propose_hypotheses", "stop")
    ]
    loop = AgenticDiagnoseLoop(
        Target(), protocol(), judge=Judge(actions), run_logger=logger, max_actions=6, **_parts(logger)
    )
    return loop.run(cases(24))


LOOPS = {"fixed": fixed, "legacy": legacy, "tool_calling": tool_calling}
