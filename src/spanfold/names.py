"""Every name spanfold emits, once: kinds, attributes, events, variables.

`gen_ai.*` names follow the GenAI semantic conventions at `GENAI_CONVENTIONS`.
They are in development upstream, so they are constants of our own and not
those of a package that marks them deprecated. Readers accept the older
spellings in `GENAI_OLDER`; writers emit one form only.
"""

import functools
import re
from typing import Final, Literal

SCOPE: Final = "spanfold"
"""Instrumentation scope of every span and log record of ours."""

PREFIX: Final = "spanfold."
"""The only attribute prefix of ours."""

GENAI_CONVENTIONS: Final = "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev"
"""Schema URL of the GenAI conventions these names were taken from."""

Kind = Literal[
    "run", "stage", "model_call", "agent", "tool", "timing", "span", "cell", "pass", "batch", "closeout", "tick", "step"
]
"""What a span of ours stands for; the value of `KIND`."""

OPEN_KINDS: Final[frozenset[str]] = frozenset(
    {"run", "stage", "model_call", "agent", "cell", "pass", "batch", "closeout", "tick", "step"}
)
"""Kinds whose start is journaled at once, so that a killed process leaves them visible as started."""

# --- structural attributes: how a record is routed and rebuilt ---------------------------------------------------

KIND: Final = "spanfold.kind"
"""str, a `Kind`."""
STAGE: Final = "spanfold.stage"
"""str. Name of the innermost enclosing stage, as given (`M2`); on a stage its own name."""
CYCLE: Final = "spanfold.cycle"
"""int. Iteration of the loop the record belongs to; inherited from the enclosing stage."""
FIELD: Final = "spanfold.field."
"""Prefix of a field whose plain name would clash with a structural attribute."""
JSON_FIELDS: Final = "spanfold.json_fields"
"""list of str. Keys of this record whose string value is JSON text (null, containers, integers over 64 bits)."""
NOTES: Final = "spanfold.notes"
"""str, JSON object: attribute key -> what had to be changed to store it (`nonfinite`, `surrogates`, `cut`, ...)."""
OUTCOME: Final = "spanfold.outcome"
"""str. How a span ended when not plainly: `cancelled`, `interrupted`, `exit`, `terminated`, `closed_early`, `left_open`,
`abandoned`."""
EXIT_CODE: Final = "spanfold.exit_code"
"""int. The code of a SystemExit that left the span."""
ITEMS: Final = "spanfold.items"
"""int. How many items a traced generator yielded."""
SELF_NS: Final = "spanfold.self_ns"
"""int, nanoseconds. Duration outside all recorded children; equals the definition of EP 8.2."""
DEPTH: Final = "spanfold.depth"
"""int. Number of enclosing recorded spans below the run."""
PARENT: Final = "spanfold.parent"
"""str. Timing stage token (`timing_token`) of the enclosing recorded span; absent at depth 0."""
PHASE: Final = "spanfold.phase"
"""str. Timing phase; inherited from the enclosing timing."""
ARTIFACTS: Final = "spanfold.artifacts"
"""list of objects: name, path, sha256 and form of each artifact of the span. A field of the record."""
CONTENT: Final = "spanfold.content"
"""str, `local` when message content of this record must not leave the machine."""
RUN_ID: Final = "spanfold.run.id"
"""str. Name of the run."""
RUN_LOSSES: Final = "run.losses"
"""Field of the root span: object, what its process could not keep while the run was open -> how often."""
RUN_DIR: Final = "spanfold.run.dir"
"""str. Folder name of the run directory."""
SEAL_HEAD: Final = "spanfold.seal.head"
"""str, 64 hex. Head of the journal when the root span ended: a copy outside the disk."""
SEAL_SEQ: Final = "spanfold.seal.seq"
"""int. Number of journal lines the head covers."""
RECORDED_PARENT: Final = "spanfold.recorded_parent"
"""str, 16 hex. Nearest recorded ancestor of a foreign span whose own parent was not recorded."""
OPEN_START: Final = "spanfold.start_time_unix_nano"
"""int. Start of the span, on its started event."""
FUNCTION: Final = "code.function.name"
"""str. Qualified name of a decorated function."""
INPUT: Final = "spanfold.input"
"""any. Input of a span in the caller's own form, when `GENAI_INPUT` cannot carry it exactly."""
OUTPUT: Final = "spanfold.output"
"""any. Output of a span in the caller's own form, when `GENAI_OUTPUT` cannot carry it exactly."""
INPUT_FORM: Final = "spanfold.input_form"
"""str, `text` or `messages`: how to get the caller's form back from `GENAI_INPUT`."""
OUTPUT_FORM: Final = "spanfold.output_form"
"""str, `text` or `messages`: how to get the caller's form back from `GENAI_OUTPUT`."""
SPAN_NAME: Final = "spanfold.span_name"
"""str. Name of the span a started event announces."""
SPAN_PARENT: Final = "spanfold.parent_span_id"
"""str, 16 hex. Parent of the span a started event announces."""
LINKS: Final = "spanfold.links"
"""int. Number of links a started event left for the span itself."""

# --- the diagnose-loop recorder -----------------------------------------------------------------------------------

LAYOUT: Final = "spanfold.layout"
"""str, on the root span: `diagnose` when the documents are those of the diagnose-loop contract. A field."""
DL_FIELD: Final = "diagnose."
"""Begins the names of fields of ours on spans and events of a diagnose loop."""
DL_OWN: Final[frozenset[str]] = frozenset(
    f"{DL_FIELD}{name}"
    for name in (
        *("event", "trace_id", "late", "notes", "value", "stage", "figures", "out_dir"),
        *("analyzer", "findings", "n_scored", "records"),
        *("backfilled", "event_id", "event_seq", "label", "artifact_refs"),
    )
)
"""Those of them that stand beside fields of a record; they are in no document."""
DL_EVENT: Final = "spanfold.diagnose.event"
"""str. Event name of the document record (DL 4.1); `analyzer` and `stage` for spans that are in no document."""
DL_TRACE_ID: Final = "spanfold.diagnose.trace_id"
"""str, on the root span: trace id of the documents, as the caller gave it."""
DL_LATE: Final = "spanfold.diagnose.late"
"""bool, on the root span of records that came after the logger was closed: the run itself is that of the root before."""

# --- conventions of others ---------------------------------------------------------------------------------------

GENAI_OPERATION: Final = "gen_ai.operation.name"
GENAI_PROVIDER: Final = "gen_ai.provider.name"
GENAI_MODEL: Final = "gen_ai.request.model"
GENAI_SERVED_MODEL: Final = "gen_ai.response.model"
GENAI_RESPONSE_ID: Final = "gen_ai.response.id"
GENAI_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GENAI_AGENT: Final = "gen_ai.agent.name"
GENAI_TOOL: Final = "gen_ai.tool.name"
GENAI_TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
GENAI_TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
GENAI_TOOL_RESULT: Final = "gen_ai.tool.call.result"
GENAI_INPUT: Final = "gen_ai.input.messages"
GENAI_OUTPUT: Final = "gen_ai.output.messages"
GENAI_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GENAI_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GENAI_CACHE_READ: Final = "gen_ai.usage.cache_read.input_tokens"
GENAI_CACHE_WRITE: Final = "gen_ai.usage.cache_write.input_tokens"
GENAI_REASONING: Final = "gen_ai.usage.reasoning.output_tokens"
ERROR_TYPE: Final = "error.type"
"""str. Class of the exception that left the span, or a reason code."""

USAGE_KEYS: Final[dict[str, str]] = {
    "input_tokens": GENAI_INPUT_TOKENS,
    "output_tokens": GENAI_OUTPUT_TOKENS,
    "cache_read_tokens": GENAI_CACHE_READ,
    "cache_write_tokens": GENAI_CACHE_WRITE,
    "reasoning_tokens": GENAI_REASONING,
}
"""Names of `usage(...)` -> attribute. The three last are parts of the first two, never added to them."""

USAGE_ALIASES: Final[dict[str, str]] = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
"""Names some clients still answer with -> the name in `USAGE_KEYS`."""

GENAI_OLDER: Final[dict[str, str]] = {
    "gen_ai.system": GENAI_PROVIDER,
    "gen_ai.usage.prompt_tokens": GENAI_INPUT_TOKENS,
    "gen_ai.usage.completion_tokens": GENAI_OUTPUT_TOKENS,
    "gen_ai.usage.cache_creation.input_tokens": GENAI_CACHE_WRITE,
    "gen_ai.usage.cache_creation_input_tokens": GENAI_CACHE_WRITE,
    "gen_ai.usage.cache_read_input_tokens": GENAI_CACHE_READ,
    "gen_ai.prompt": GENAI_INPUT,
    "gen_ai.completion": GENAI_OUTPUT,
    "llm.model_name": GENAI_MODEL,
    "llm.provider": GENAI_PROVIDER,
    "llm.system": GENAI_PROVIDER,
    "llm.token_count.prompt": GENAI_INPUT_TOKENS,
    "llm.token_count.completion": GENAI_OUTPUT_TOKENS,
    "llm.token_count.prompt_details.cache_read": GENAI_CACHE_READ,
    "llm.token_count.prompt_details.cache_write": GENAI_CACHE_WRITE,
    "llm.token_count.completion_details.reasoning": GENAI_REASONING,
    "llm.request.type": GENAI_OPERATION,
    "input.value": GENAI_INPUT,
    "output.value": GENAI_OUTPUT,
    "tool.name": GENAI_TOOL,
}
"""Older and foreign spellings readers accept -> the name written here."""

INFERENCE_OPERATIONS: Final[frozenset[str]] = frozenset(
    {"chat", "text_completion", "generate_content", "embeddings", "completion"}
)
"""Values of `GENAI_OPERATION` that make a foreign span a model call."""

SCOPE_ALLOW: Final[tuple[str, ...]] = (
    "spanfold",
    "gen_ai",
    "openinference.",
    "opentelemetry.instrumentation.openai",
    "opentelemetry.instrumentation.anthropic",
    "opentelemetry.instrumentation.bedrock",
    "opentelemetry.instrumentation.cohere",
    "opentelemetry.instrumentation.google_genai",
    "opentelemetry.instrumentation.google_generativeai",
    "opentelemetry.instrumentation.groq",
    "opentelemetry.instrumentation.langchain",
    "opentelemetry.instrumentation.llamaindex",
    "opentelemetry.instrumentation.mistralai",
    "opentelemetry.instrumentation.ollama",
    "opentelemetry.instrumentation.vertexai",
    "opentelemetry.instrumentation.watsonx",
    "opentelemetry.instrumentation.transformers",
    "opentelemetry.util.genai",
    "traceloop",
    "pydantic-ai",
    "langfuse-sdk",
    "litellm",
    "haystack",
    "agno",
    "vllm",
)
"""Prefixes of instrumentation scopes journaled by default; a span with any `gen_ai.` attribute is too."""


DL_CONTENT: Final[frozenset[str]] = frozenset(
    {
        *("judge_prompt", "judge_response", "raw_judge_output", "critic_prompt", "critic_raw_output"),
        *("review_prompt", "review_response", "prompt", "raw_output", "raw_stream", "raw_outputs", "cli_raw_output"),
        *("case", "examples", "validation_examples", "model_calls", "outputs"),
    }
)
"""Fields of a diagnose loop that hold what a model was asked or said, and so are message content too."""


@functools.lru_cache(maxsize=4096)
def is_content(key: str) -> bool:
    """Whether an attribute holds message content: what `content="none"` and `"local"` are about, in any dialect."""
    return _CONTENT.match(key) is not None or (key.startswith(PREFIX) and key[len(PREFIX) :] in DL_CONTENT)


_CONTENT: Final = re.compile(
    r"""
      spanfold\.(input|output)(_form)?$
    | gen_ai\.(input|output)\.messages | gen_ai\.system_instructions | gen_ai\.(prompt|completion)($|\.\d|\.variable\.)
    | gen_ai\.tool\.(definitions|call\.(arguments|result)) | gen_ai\.(retrieval|memory)\.(query\.text|documents|records)
    | (input|output)\.value$
    | llm\.(prompts|completions|input_messages|output_messages|prompt_template|tools|function_call)(\.|$)
    | tool\.parameters$ | tool_call\.function\.arguments$ | (retrieval\.documents|reranker|embedding)\.
    | traceloop\.(entity\.(input|output)|prompt) | langfuse\.(observation|trace)\.(input|output)$
    | (pydantic_ai\.)?all_messages | events$ | final_result$ | tool_(arguments|response)$ | model_request_parameters$
    """,
    re.VERBOSE,
)

CONTENT_EVENT: Final = re.compile(
    r"gen_ai\.((system|user|assistant|tool)\.message|choice|content\.\w+|client\.inference\.operation\.details)$"
)
"""Names of span events of other instrumentors that exist to carry message content."""

# --- journal lines -----------------------------------------------------------------------------------------------

JOURNAL_FORMAT: Final = "spanfold.journal/1"
BOOKKEEPING: Final = frozenset({".fold", ".deliver", ".recover.lock"})
"""What stands beside the files of a journal and is no part of the run: how far documents and deliveries have come."""
LINE_SEQ: Final = "spanfold.journal.seq"
"""int, from 1. Position of the line in its file."""
LINE_PREV: Final = "spanfold.journal.prev"
"""str, 64 hex. SHA-256 of the bytes of the line before, newline included; of the writer's name on the first line."""

# --- events (log records) ----------------------------------------------------------------------------------------

EVENT_STARTED: Final = "spanfold.span.started"
EVENT_SCORE: Final = "gen_ai.evaluation.result"
EVENT_ARTIFACT: Final = "spanfold.artifact"
EVENT_EXCEPTION: Final = "exception"
EVENT_LOST: Final = "spanfold.journal.lost"
"""Records that could not be written, counted, once there is room again."""
EVENT_SEALED: Final = "spanfold.journal.sealed"
"""Last line of a run: the head of every file of the journal."""
EVENT_RECOVERED: Final = "spanfold.run.recovered"
"""A run that its process did not finish was finished by `recover`."""

SCORE_NAME: Final = "gen_ai.evaluation.name"
SCORE_VALUE: Final = "gen_ai.evaluation.score.value"
SCORE_LABEL: Final = "gen_ai.evaluation.score.label"
SCORE_COMMENT: Final = "gen_ai.evaluation.explanation"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"

# --- schemas of documents ----------------------------------------------------------------------------------------

TIMING_SCHEMA: Final = "spanfold.timing/1"
RUN_SCHEMA: Final = "spanfold.run/1"
DL_SCHEMA_VERSION: Final = 6
"""`schema_version` of every record in the diagnose-loop layout (DL 4.1)."""

# --- environment of a child process ------------------------------------------------------------------------------

ENV_RUN_DIR: Final = "SPANFOLD_PARENT_RUN_DIR"
ENV_RUN_NAME: Final = "SPANFOLD_PARENT_RUN"
ENV_STAGE: Final = "SPANFOLD_PARENT_STAGE"
ENV_CYCLE: Final = "SPANFOLD_PARENT_CYCLE"
ENV_DEPTH: Final = "SPANFOLD_PARENT_DEPTH"
ENV_TOKEN: Final = "SPANFOLD_PARENT_TOKEN"
ENV_CONTENT: Final = "SPANFOLD_CONTENT"
"""A setting, too: a child without settings of its own takes over the policy of the run."""
ENV_TRACEPARENT: Final = "TRACEPARENT"


@functools.lru_cache(maxsize=4096)
def timing_token(kind: str, name: str) -> str:
    """Return the `stage` of a timing row for a span: a token of EP 3.1, `[a-z][a-z0-9_]{0,63}`.

    Stages, timings and plain spans keep their name; a call of a model, agent
    or tool is named by its kind, since its name is an attribute of the row.
    """
    if kind in ("model_call", "agent", "tool", "run"):
        return kind
    token = "".join(c if c in _TOKEN else "_" for c in name.lower())[:64]
    return token if token and token[0] in _LETTERS else f"s_{token}"[:64]


_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_TOKEN: Final = frozenset(_LETTERS + "0123456789_")
