"""M3: from findings to hypotheses, by the rules below or by a language model of yours.

Rules are the default and need nothing. To let a model propose instead, name an
endpoint that speaks the OpenAI chat protocol (a local one will do):

    SPANFOLD_DEMO_MODEL   name of the model; setting it is what turns this on
    OPENAI_BASE_URL       where it answers, such as http://localhost:11434/v1
    OPENAI_API_KEY        sent as bearer token when set; never recorded

What the model sees is the table of findings: numbers, no images. What it
answers is checked like any other outside input, and its hypotheses have to
survive M4 like those of the rules. When it cannot be reached or its answer
cannot be used, the loop says so and goes on with the rules.
"""

import json
import os
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import Any, Final, cast

import spanfold
from spanfold.demo.records import Direction, Finding, Hypothesis, Repair

TIMEOUT_S: Final = 60


@dataclass(frozen=True, slots=True)
class _Rule:
    signals: tuple[str, ...]
    direction: Direction
    statement: str
    repair: Repair | None


RULES: Final = (
    _Rule(
        ("disagreement",),
        "higher",
        "The nearest training images mostly carry another label than the prediction: classes bend, boundaries do not.",
        "kernel",
    ),
    _Rule(
        ("doubt", "entropy"),
        "higher",
        "The model hesitates between two digits and picks the wrong one: a specialist for that pair would know.",
        "experts",
    ),
    _Rule(("novelty",), "higher", "The training half has nothing written like the failures.", "shifts"),
    _Rule(("off_centre",), "higher", "The digit is not where the training images have theirs.", "shifts"),
    _Rule(("width",), "lower", "Narrow digits look alike at eight by eight pixels.", None),
    _Rule(("width",), "higher", "Wide digits leave the columns where the training images have their ink.", "shifts"),
    _Rule(("ink",), "lower", "Thin strokes leave too little ink to tell digits apart.", None),
    _Rule(("ink",), "higher", "Thick strokes close the gaps that tell digits apart.", None),
)


def propose(cycle: int, findings: Sequence[Finding]) -> tuple[list[Hypothesis], str | None]:
    """Return hypotheses for the findings that separate, strongest first.

    Returns:
        The hypotheses, and why the rules stood in for a configured model (None when they did not).
    """
    separating = sorted((f for f in findings if f.separates), key=lambda f: -abs(f.auc - 0.5))
    model, base_url = os.environ.get("SPANFOLD_DEMO_MODEL"), os.environ.get("OPENAI_BASE_URL")
    reason = None
    if model and separating:
        if not base_url:
            reason = "SPANFOLD_DEMO_MODEL is set and OPENAI_BASE_URL is not"
        else:
            try:
                return _numbered(cycle, ask_model(model, base_url, separating)), None
            except (OSError, HTTPException, ValueError) as error:
                reason = f"{model} gave no usable answer ({type(error).__name__}: {error})"
    return _numbered(cycle, by_rules(separating)), reason


def by_rules(separating: Sequence[Finding]) -> list[Hypothesis]:
    """Return the hypothesis of every rule that applies, each once, in the order of the findings."""
    chosen: dict[str, Hypothesis] = {}
    for finding in separating:
        for rule in RULES:
            if finding.signal in rule.signals and finding.direction == rule.direction:
                proposed = Hypothesis("", rule.statement, finding.signal, rule.direction, rule.repair, "rules")
                chosen.setdefault(rule.statement, proposed)
    return list(chosen.values())


def _numbered(cycle: int, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    return [replace(h, id=f"c{cycle}.h{n}") for n, h in enumerate(hypotheses)]


PROMPT: Final = """A classifier of handwritten digits fails on some cases. Each finding below is a signal that separates \
its failures from its successes: `auc` is the chance that a failure has the larger value. Propose up to four distinct \
reasons for the failures. Answer with a JSON array only, strongest reason first, of objects with the keys "statement" \
(one sentence), "signal" (one of the findings), "direction" ("higher" or "lower": what the signal of a failure will be \
on fresh cases) and "repair" ("kernel": curved class boundaries, "experts": a specialist per pair of classes, "shifts": \
training images shifted by one pixel, or null).

Signals: doubt = 1 - margin between the two best classes; entropy = of the class probabilities; disagreement = share of \
the five nearest training images with another label than the prediction; novelty = distance to them; off_centre = \
distance of the ink from the centre; width = horizontal spread of the ink; ink = amount of ink.

Findings: """


def ask_model(model: str, base_url: str, separating: Sequence[Finding]) -> list[Hypothesis]:
    """Ask an OpenAI-compatible endpoint for hypotheses; the call is recorded with what was said and used.

    Raises:
        OSError: The endpoint cannot be reached or refuses.
        HTTPException: What answers there does not speak HTTP.
        ValueError: Its answer holds no usable hypothesis.
    """
    known = {f.signal: f for f in separating}
    table = [{"signal": f.signal, "direction": f.direction, "auc": round(f.auc, 3)} for f in separating]
    messages = [{"role": "user", "content": PROMPT + json.dumps(table)}]
    with spanfold.model_call(model, provider="openai", operation="chat", input=messages) as call:
        reply = _post(f"{base_url.rstrip('/')}/chat/completions", {"model": model, "messages": messages})
        match reply:
            case {"choices": [{"message": {"content": str(text)}}, *_]}:
                call.output(text)
            case _:
                raise ValueError("it is no chat completion")
        match reply:
            case {"usage": {"prompt_tokens": int(n_in), "completion_tokens": int(n_out)}}:
                call.usage(input_tokens=n_in, output_tokens=n_out)
            case _:
                pass  # not every server counts
        match reply:
            case {"model": str(served)}:
                call.served_model(served)
            case _:
                pass  # nor says who answered
    hypotheses = [h for item in _array_in(text) if (h := _checked(item, known, model))]
    if not hypotheses:
        raise ValueError("no item of it names a finding, a direction and a repair")
    return hypotheses[:4]


def _post(url: str, body: Mapping[str, Any]) -> Any:
    """Send JSON, return the JSON of the answer.

    Raises:
        OSError: No answer, or a status other than 2xx.
        HTTPException: What answered does not speak HTTP.
        ValueError: The URL is not http(s), or the answer is not JSON.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError("OPENAI_BASE_URL is no http or https address")
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    if key := os.environ.get("OPENAI_API_KEY"):
        # Not sent on to where a redirect points.
        request.add_unredirected_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        return json.loads(response.read())


def _array_in(text: str) -> list[Any]:
    """Return the JSON array in a text that may wrap it in prose or a code fence.

    Raises:
        ValueError: There is none.
    """
    start, end = text.find("["), text.rfind("]")
    if not 0 <= start < end:
        raise ValueError("it holds no JSON array")
    return cast("list[Any]", json.loads(text[start : end + 1]))


def _checked(item: Any, known: Mapping[str, Finding], model: str) -> Hypothesis | None:
    """Return a hypothesis for one item of an answer, or None if it does not keep to the question."""
    match item:
        case {
            "statement": str(statement),
            "signal": str(signal),
            "direction": "higher" | "lower" as direction,
            "repair": "kernel" | "experts" | "shifts" | None as repair,
        } if signal in known:
            # Literal patterns have checked both; a type checker does not see that in JSON.
            return Hypothesis(
                "", statement[:300], signal, cast("Direction", direction), cast("Repair | None", repair), model
            )
        case _:
            return None
