"""Fields: what each field of a request means to each kind of upstream.

A field has a type, and an effect if it changes how long, how many or how expensive completions are,
who pays for them, or which stored data they read. The fields without an effect are harmless. A
field that is in no description is not known. It judges nothing: see ``contract``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

from adacompute.models.formats.responses_format import RESPONSES
from adacompute.models.messages import Capabilities, UpstreamKind

CHAT, COMPLETIONS, EMBEDDINGS = "chat/completions", "completions", "embeddings"
DESCRIBED = (CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS)
"""Endpoints whose fields are described here."""

OPTIONS = "adacompute"
"""Field with options for the gateway; it is not sent to the upstream."""

Effect = Literal["", "length", "number", "price", "payer", "stored"]


class Field(NamedTuple):
    """The type of a field, and what it changes."""

    type: Any
    effect: Effect = ""


def _of(kind: Any, names: str, effect: Effect = "") -> dict[str, Field]:  # noqa: ANN401 - a type
    return {name: Field(kind, effect) for name in names.split()}


_Object = dict[str, Any]
_Objects = list[dict[str, Any]]

LENGTHS = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n_predict",
    "num_predict",
    "max_new_tokens",
)
"""Spellings of the largest output."""

_LENGTHS = _of(int, " ".join(LENGTHS), "length")
_NUMBERS = _of(int, "n n_cmpl best_of", "number")
THINKING = (
    "thinking_budget",
    "thinking_token_budget",
    "thinking_budget_tokens",
    "reasoning_budget",
)
"""Fields that limit hidden reasoning, which some servers may count beside the output."""

_OTHERS = {
    **_of(bool, "use_beam_search", "number"),
    **_of(Any, "chat_template prompt_embeds mm_processor_kwargs options prediction", "length"),
    **_of(str, "service_tier"),
    **_of(Any, "web_search_options audio priority lora", "price"),
    **_of(
        Any,
        "models fallbacks route provider plugins transforms api_base base_url api_key api_version "
        "organization project custom_llm_provider user_config extra_body extra_headers "
        "kv_transfer_params",
        "payer",
    ),
    **_of(Any, "previous_response_id conversation background id_slot", "stored"),
}
"""Fields with an effect, whatever the kind of the upstream."""

_EVERYWHERE = {
    **_of(str, "model user safety_identifier prompt_cache_key prompt_cache_retention"),
    **_of(dict[str, Any], f"metadata {OPTIONS}"),
    **_of(bool, "stream"),
    **_of(bool, "store", "stored"),
}
_SAMPLING = {
    **_of(float, "temperature top_p presence_penalty frequency_penalty"),
    **_of(int, "seed"),
    **_of(str | list[str], "stop"),
    **_of(Any, "logit_bias"),
    **_of(dict[str, bool | None], "stream_options"),
}
_OPENAI: Mapping[str, Mapping[str, Field]] = {
    CHAT: {
        **_SAMPLING,
        **_of(_Objects, "messages tools functions"),
        **_of(str | _Object, "tool_choice function_call"),
        **_of(_Object, "response_format"),
        **_of(str, "reasoning_effort verbosity"),
        **_of(bool, "logprobs parallel_tool_calls"),
        **_of(int, "top_logprobs"),
        **_of(list[str], "modalities"),
    },
    COMPLETIONS: {
        **_SAMPLING,
        **_of(Any, "prompt"),
        **_of(bool | int, "logprobs"),
        **_of(bool, "echo"),
        **_of(str, "suffix"),
    },
    RESPONSES: {
        **_of(str | _Objects, "input"),
        **_of(str, "instructions truncation"),
        **_of(float, "temperature top_p"),
        **_of(int, "top_logprobs max_tool_calls"),
        **_of(list[str], "include"),
        **_of(_Object, "reasoning text"),
        **_of(dict[str, bool | None], "stream_options"),
        **_of(str | _Object, "tool_choice"),
        **_of(_Objects, "tools"),
        **_of(bool, "parallel_tool_calls"),
        **_of(_Object, "prompt", "stored"),
    },
    EMBEDDINGS: {
        **_of(Any, "input"),
        **_of(str, "encoding_format input_type task output_dtype request_id"),
        **_of(int, "dimensions output_dimension truncate_prompt_tokens embd_normalize"),
        **_of(bool, "normalize add_special_tokens"),
    },
}
_SERVED_LOCALLY = {
    **_SAMPLING,
    **_of(float, "min_p repetition_penalty"),
    **_of(int, "top_k min_tokens"),
    **_of(bool, "ignore_eos add_generation_prompt"),
    **_of(dict[str, bool | int | float | str | None], "chat_template_kwargs"),
    **_of(_Object, "response_format"),
}
_EXTENSIONS: Mapping[UpstreamKind, Mapping[str, Field]] = {
    "openai": {},
    "vllm": {
        **_SERVED_LOCALLY,
        **_of(float, "length_penalty"),
        **_of(int, "truncate_prompt_tokens prompt_logprobs"),
        **_of(int, "thinking_token_budget", "length"),
        **_of(Any, "repetition_detection"),
        **_of(list[int], "logprob_token_ids"),
        **_of(bool, "echo"),
        **_of(
            bool,
            "skip_special_tokens spaces_between_special_tokens include_stop_str_in_output "
            "add_special_tokens continue_final_message return_tokens_as_token_ids "
            "return_token_ids include_reasoning",
        ),
        **_of(list[int], "stop_token_ids allowed_token_ids"),
        **_of(list[str], "bad_words guided_choice"),
        **_of(str | _Object, "guided_json"),
        **_of(
            str,
            "guided_regex guided_grammar guided_whitespace_pattern guided_decoding_backend "
            "request_id cache_salt",
        ),
        **_of(_Object, "structured_outputs"),
        **_of(_Objects, "documents"),
    },
    "llama.cpp": {
        **_SERVED_LOCALLY,
        **_of(
            float,
            "typical_p repeat_penalty dynatemp_range dynatemp_exponent xtc_probability "
            "xtc_threshold mirostat_tau mirostat_eta dry_multiplier dry_base top_n_sigma",
        ),
        **_of(
            int,
            "repeat_last_n dry_allowed_length dry_penalty_last_n mirostat min_keep n_probs "
            "n_indent n_keep n_discard t_max_predict_ms t_max_prompt_ms n_cache_reuse",
        ),
        **_of(
            bool,
            "cache_prompt timings_per_token post_sampling_probs return_tokens return_progress "
            "parse_tool_calls grammar_lazy thinking_forced_open",
        ),
        **_of(int, "reasoning_budget thinking_budget_tokens", "length"),
        **_of(str, "grammar reasoning_format"),
        **_of(Any, "json_schema grammar_triggers preserved_tokens"),
        **_of(str | list[str], "samplers"),
        **_of(list[str], "dry_sequence_breakers response_fields"),
    },
    "ollama": {
        **_of(bool | str, "think"),
        **_of(_Object, "reasoning"),
        **_of(str | _Object, "format"),
    },
    "generic": {
        **_SAMPLING,
        **_of(_Object, "thinking reasoning usage"),
        **_of(bool, "enable_thinking safe_prompt separate_reasoning"),
        **_of(int, "random_seed"),
        **_of(float, "top_a"),
        **_of(str, "regex ebnf prompt_mode"),
        **_of(int, "thinking_budget", "length"),
    },
}
LENGTH_FIELDS = {COMPLETIONS: ("max_tokens",), RESPONSES: ("max_output_tokens",)}
"""Spelling of the largest output at the endpoints that have one only."""


@cache
def describe(kind: UpstreamKind, path: str) -> Mapping[str, Field]:
    """Return the fields that an endpoint of a kind of upstream is known to have.

    A generic upstream may be of any kind, so it has the fields of all of them.
    """
    kinds = tuple(_EXTENSIONS) if kind == "generic" else (kind,)
    extensions = [] if path == EMBEDDINGS else [_EXTENSIONS[one] for one in kinds]
    found = {name: field for one in extensions for name, field in one.items()}
    return {**found, **_OTHERS, **_LENGTHS, **_NUMBERS, **_EVERYWHERE, **_OPENAI[path]}


@cache
def types_of(kind: UpstreamKind, path: str) -> Mapping[str, Any]:
    """Return the types of the fields of an endpoint."""
    return {name: field.type for name, field in describe(kind, path).items()}


def chat_length_fields(kind: UpstreamKind, known: Capabilities) -> tuple[str, ...]:
    """Return the field by which a chat takes the largest number of output tokens.

    While it is not known which of two a generic server honours, both are returned.
    """
    is_unknown = known.max_tokens == known.max_completion_tokens == "unknown"
    if kind == "openai" and known.max_completion_tokens not in {"ignored", "rejected"}:
        return ("max_completion_tokens",)
    if kind == "generic" and is_unknown:
        return ("max_tokens", "max_completion_tokens")
    return (known.max_tokens_field,)


def names_with(effect: Effect) -> frozenset[str]:
    """Return the fields with an effect, whatever the endpoint."""
    known = {**_OTHERS, **_LENGTHS, **_NUMBERS, **_EVERYWHERE}
    return frozenset(name for name, field in known.items() if field.effect == effect)
