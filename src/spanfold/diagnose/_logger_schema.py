"""What the published schema, version 6, demands of each event (DL 14.1), as a table, and who breaks it.

Only asked when `EVALRX_VALIDATE_LOG` is set. Records are written whatever
the answer is.
"""

import functools
from collections.abc import Mapping
from typing import Any, Final

from spanfold.diagnose._logger_values import tree

_TYPES: Final[Mapping[str, Any]] = {
    "str": {"type": "string"},
    "str?": {"type": ["string", "null"]},
    "int": {"type": "integer"},
    "int?": {"type": ["integer", "null"]},
    "num": {"type": "number"},
    "num?": {"type": ["number", "null"]},
    "bool": {"type": "boolean"},
    "bool?": {"type": ["boolean", "null"]},
    "obj": {"type": "object"},
    "obj?": {"type": ["object", "null"]},
    "list": {"type": "array"},
    "strs": {"type": "array", "items": {"type": "string"}},
    "data": {"type": ["object", "array"]},
    "any": {},
}
_EVENTS: Final[Mapping[str, str]] = {
    "run_start": "evalrx_version:str python_version:str data_fingerprint:str model:str decision_judge:str explorer:str "
    "git_commit:str? label_distribution:obj n_cases:int max_actions:int",
    "probe": "cycle!int analyzers!strs findings!obj artifact_paths!obj selection_rationale:str n_model_calls:int "
    "duration_sec:num",
    "analysis": "cycle!int severity!str n_findings!int findings!strs narrative!str conclusion:str evidence_chain:list "
    "visualizations:list figures:list stats_tool_results:data stats_plan:data stats_results:data "
    "corrected_rejections:data duration_sec:num",
    "explore": "cycle!int ok!bool n_observations!int n_charts!int n_tables!int n_charts_rendered:int "
    "n_candidate_signals:int n_hypotheses:int attempts:int adjudication:obj observations:strs caveats:strs figures:strs "
    "error:str out_dir:str report_path:str duration_sec:num",
    "diagnosis": "cycle!int model_name!str? n_hypotheses!int hypotheses!list raw_judge_output!str? referenced_charts:strs "
    "explore_figures:strs explore_context_used:bool failure_modes_used:bool duration_sec:num",
    "surgery": "cycle!int module!str hypothesis!str failure_mode!str? status!str fixed!bool confidence_score:num? "
    "evidence:obj? n_refocused_cases:int? duration_sec:num",
    "experiment": "cycle!int module!str hypothesis!str failure_mode!str? status!str? fixed!bool provider:str? metrics:obj? "
    "workspace_snapshot:obj? returncode:int? llm_calls:int? timed_out:bool?",
    "fix": "cycle!int module!str",
    "loop_end": "cycles!int n_hypotheses:int n_verified:int tokens_used:int? timings_sec:obj total_duration_sec:num "
    "resolved:bool final_hypotheses:list stopped_by:str? verified_hypotheses:list",
    "tool_codegen": "cycle!int module!str tool_name!str need!str source!str ok!bool error:str?",
    "tool_registry": "cycle!int module!str n_tools!int tools!list",
    "agent_decision": "step!int action!str valid!bool repair_attempts:int rationale:str params:obj fallback_used:bool "
    "duration_sec:num",
    "agent_tool": "step!int tool!str ok!bool summary:str error:str? duration_sec:num",
    "case_record": "case_id!str case!obj media_paths!strs",
    "report_published": "report_schema_version!int catalog_version!str sha256!str generated_by!obj report_paths:strs",
    "stage_skipped": "cycle!int reason_code!str",
    "model_call": "cycle!int inputs!any output!any duration_sec:num error:str?",
    "diagnose_report": "cycles!any hypotheses!list m4_results!list discovery!list",
}


@functools.cache
def _schema(event: str) -> dict[str, Any]:
    """Return the JSON Schema of one event's payload."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    for word in _EVENTS.get(event, "").split():
        name, mark, kind = word.partition("!") if "!" in word else word.partition(":")
        properties[name] = _TYPES[kind]
        if mark == "!":
            required.append(name)
    return {"type": "object", "properties": properties, "required": required}


def complaints(event: str, record: Mapping[str, Any]) -> list[str]:
    """Return what the schema refuses of an event, as it is written; nothing without the package `jsonschema`."""
    try:
        import jsonschema
    except ImportError:
        return []
    validator: Any = jsonschema.Draft202012Validator(_schema(event))
    found = validator.iter_errors(tree(dict(record))[0])
    # Never the text of the error: it quotes the value.
    return [f"{'/'.join(map(str, error.absolute_path)) or 'the record'} ({error.validator})" for error in found]
