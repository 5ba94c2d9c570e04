"""Prepare the record of a probe (DL 7.9): findings, results, arrays as files, pictures. One bad part costs that part."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from spanfold.artifacts import is_array, store
from spanfold.diagnose._logger_files import scrub, scrub_tree
from spanfold.diagnose._logger_values import attr, called, listed, probe_examples, sized, text, tree, type_name
from spanfold.fs import SafeRoot, safe_name

FOLDER: Final = "M1/artifacts"
Problem = Callable[[str, BaseException | None], None]


@dataclass(slots=True)
class ProbeParts:
    """What a probe is recorded with."""

    payload: dict[str, Any] = field(default_factory=dict[str, Any])
    figures: list[Path] = field(default_factory=list[Path])
    """Pictures, as paths below the run directory as it was given."""
    analyzers: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Name -> what the span of the analyzer says."""


class _Probe:
    """The record in the making."""

    def __init__(self, given_dir: Path, run_dir: Path, cycle: Any, problem: Problem) -> None:
        self.given_dir, self.run_dir, self.cycle, self.problem = given_dir, run_dir, cycle, problem
        self.root = SafeRoot(run_dir, create=True)
        self.findings: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self.paths: dict[str, str] = {}
        self.inline: dict[str, Any] = {}
        self.not_stored: dict[str, Any] = {}
        self.overlays: list[Path] = []
        self.pictures: list[str] = []

    def add(self, name: str, result: Any) -> None:
        """Take in one result."""
        findings = attr(result, "findings")
        if findings is None:
            self.problem(f"the findings of the analyzer {name}, which are missing", None)
        self.findings[name] = findings
        artifacts = attr(result, "artifacts")
        if isinstance(artifacts, Mapping):
            for key, value in cast("Mapping[Any, Any]", artifacts).items():
                self._guarded(f"an artifact of the analyzer {name}", self._artifact, name, text(key), value)
        if callable(attr(result, "image_overlays")):
            self._guarded(f"the overlays of the analyzer {name}", self._overlays, name, result)
        if callable(attr(result, "to_dict")):
            self._guarded(f"the result of the analyzer {name}", self._result, name, result)

    def _guarded(self, what: str, act: Callable[..., None], *args: Any) -> None:
        try:
            act(*args)
        except Exception as error:
            self.problem(what, error)

    def _artifact(self, name: str, artifact: str, value: Any) -> None:
        key = f"{name}/{artifact}"
        reason = "it is no array, dict or list"
        if is_array(value):
            stem = f"c{self.cycle}_{name}_{artifact}"
            stored = store(self.root, FOLDER, stem, value, scrub=scrub, to_tree=_clean_tree, is_stem=True)
            if stored.path is not None:
                self.paths[key] = stored.path
                if stored.figure is not None:
                    self.pictures.append(stored.figure)
                return
            reason = stored.reason or "it could not be stored"
        if isinstance(value, dict | list):
            self.inline[key] = tree(value)[0]
            return
        self.not_stored[key] = {"type": type_name(value), "reason": reason}

    def _overlays(self, name: str, result: Any) -> None:
        self.root.ensure_dir(FOLDER)
        # A colon, as in `generated:x`, is no part of a file name everywhere.
        painted = result.image_overlays(self.given_dir / FOLDER, safe_name(f"c{self.cycle}_{name}", limit=150))
        self.overlays += [path for path in listed(painted) if isinstance(path, Path)]

    def _result(self, name: str, result: Any) -> None:
        told = result.to_dict()
        known = dict(cast("Mapping[str, Any]", told)) if isinstance(told, Mapping) else {"value": told}
        if callable(attr(result, "summary")):
            known["summary"] = called(result, "summary")
        self.results[name] = known


def _clean_tree(value: Any) -> tuple[Any, str | None]:
    data, note = tree(value)
    return scrub_tree(data), note


def prepare_probe(given_dir: Path, run_dir: Path, cycle: Any, results: Any, cases: Any, problem: Problem) -> ProbeParts:
    """Return everything a probe is recorded with, whatever its results are.

    Args:
        given_dir: The run directory as the caller named it.
        run_dir: The same, absolute.
        cycle: Of the loop; part of the file names.
        results: Name of each analyzer -> its result.
        cases: The cases examples are taken from.
        problem: Told of each part that could not be recorded.
    """
    known: dict[str, Any] = {}
    if isinstance(results, Mapping):
        known = {text(name): result for name, result in cast("Mapping[Any, Any]", results).items()}
    probe = _Probe(given_dir, run_dir, cycle, problem)
    for name, result in known.items():
        probe.add(name, result)
    examples: list[dict[str, Any]] = []
    try:
        examples = probe_examples(known, cases)
    except Exception as error:
        problem("the examples of a probe", error)
    figures = [*probe.overlays, *(given_dir / path for path in probe.pictures)]
    payload: dict[str, Any] = {
        "analyzers": list(known),
        "findings": probe.findings,
        "results": probe.results,
        "artifact_paths": probe.paths,
        "artifacts": probe.inline,
        "n_model_calls": 0,
    }
    if examples:
        payload["examples"] = examples
    if probe.not_stored:
        payload["artifacts_not_stored"] = probe.not_stored
    payload["diagnose.figures"] = [_relative(path, given_dir, run_dir) for path in figures]
    facts = {
        name: {"diagnose.findings": findings, "diagnose.n_scored": _scored(findings)}
        for name, findings in probe.findings.items()
    }
    return ProbeParts(payload, figures, facts)


def _relative(path: Path, given_dir: Path, run_dir: Path) -> str:
    for base in (given_dir, run_dir):
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return os.fspath(path)


def _scored(findings: Any) -> Any:
    if not isinstance(findings, Mapping):
        return None
    known = cast("Mapping[str, Any]", findings)
    if known.get("per_case") is not None:
        return sized(known["per_case"])
    return known.get("n_cases", known.get("n_scored"))
