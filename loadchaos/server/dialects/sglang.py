"""SGLang 0.5, seen live as version 0.5.23."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from loadchaos.core.foreign_json import json_object
from loadchaos.server.dialects.base import (
    AdminOperation,
    DetectionSign,
    Dialect,
    Limits,
    MetricName,
    ServerSettings,
    patterns,
)
from loadchaos.server.dialects.openai import PROCESS_METRICS

_METRICS = (
    MetricName("requests_running", ("sglang:num_running_reqs",)),
    MetricName("requests_waiting", ("sglang:num_queue_reqs",)),
    MetricName("kv_usage_ratio", ("sglang:token_usage",)),
    MetricName("kv_cache_tokens", ("sglang:max_total_num_tokens",)),
    MetricName("kv_block_size", ("sglang:page_size",)),
    MetricName("prompt_tokens_total", ("sglang:prompt_tokens_total",)),
    MetricName("generation_tokens_total", ("sglang:generation_tokens_total",)),
    MetricName("preemptions_total", ("sglang:num_retracted_requests_total", "sglang:num_retracted_reqs")),
    MetricName("requests_finished_total", ("sglang:num_requests_total",)),
    MetricName("prefix_cache_hits_total", ("sglang:cached_tokens_total",)),
    *PROCESS_METRICS,
)

ADMIN_OPERATIONS = (
    AdminOperation("flush_cache", "POST", "/flush_cache", get_acts=True, empties_a_cache=True),
    AdminOperation("abort_request", "POST", "/abort_request", body={"abort_all": True}, effects=("finish_abort",)),
    AdminOperation(
        "pause_generation", "POST", "/pause_generation", body={"mode": "abort"}, undo="continue_generation",
        effects=("finish_abort", "alive_but_hung", "stalled", "timeout"), limit_s=120.0,
    ),
    AdminOperation("continue_generation", "POST", "/continue_generation", body={}),
    AdminOperation(
        "release_memory_occupation", "POST", "/release_memory_occupation", body={}, undo="resume_memory_occupation",
        gate="start the server with --enable-memory-saver", effects=("alive_but_hung", "stalled", "timeout"),
        limit_s=120.0,
    ),
    AdminOperation(
        "resume_memory_occupation", "POST", "/resume_memory_occupation", body={},
        gate="start the server with --enable-memory-saver", limit_s=120.0,
    ),
    AdminOperation("server_info", "GET", "/server_info", destructive=False),
)  # fmt: skip

_SERVER_INFO = "/get_server_info"  # also /server_info, which vLLM answers slowly

_SETTINGS = {
    "chunked_prefill_size": "chunked_prefill_size",
    "max_num_seqs": "max_running_requests",
    "speculative_method": "speculative_algorithm",
    "speculative_tokens": "speculative_num_draft_tokens",
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
}


def _whole(info: Mapping[str, object], key: str) -> int:
    value = info.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _limits(page: str, _version: str | None) -> Limits:
    """A prompt of `max_req_input_len` is refused: the longest is one less, and 7 less than the context or the KV cache."""
    info = json_object(page)
    longest, capacity, page_size = (_whole(info, k) for k in ("max_req_input_len", "max_total_num_tokens", "page_size"))
    if not capacity:
        return {}
    found = {"capacity_tokens": capacity, "kv_block_size": page_size, "input_limit": max(0, longest - 1)}
    known: dict[str, int] = {name: value for name, value in found.items() if value}
    if "speculative_algorithm" in info:
        known["speculative_decoding"] = info["speculative_algorithm"] is not None
    return known


def _read_settings(data: Any) -> ServerSettings:
    if not isinstance(data, dict):
        return ServerSettings()
    values = {ours: data[theirs] for ours, theirs in _SETTINGS.items() if isinstance(data.get(theirs), int | str)}
    if isinstance(data.get("disable_radix_cache"), bool):
        values["prefix_caching"] = not data["disable_radix_cache"]
    return ServerSettings(values)


SGLANG = Dialect(
    name="sglang",
    title="SGLang",
    owned_by="sglang",
    metrics_prefix="sglang:",
    signs=(DetectionSign(_SERVER_INFO, weight=2),),
    version_page=(_SERVER_INFO, "version"),
    command_word="sglang",
    default_port=30000,
    repository="sgl-project/sglang",
    switches=(
        "--disable-overlap-schedule",
        "--disable-radix-cache",
        "--disable-cuda-graph",
        "--max-running-requests 1",
    ),
    context_fits=False,
    answer_beyond_prompt=5,
    length_flag="--context-length",
    size_flags=("--max-total-tokens", "--chunked-prefill-size", "--max-prefill-tokens"),
    capacity_flag="--max-total-tokens or --mem-fraction-static",
    limits_page=_SERVER_INFO,
    limits=_limits,
    settings_path=_SERVER_INFO,
    read_settings=_read_settings,
    log_flags=patterns(r"server_args=(?P<flags>.+)"),
    log_version=r"\bsglang(?:\.version)?[ =:v]+(\d+\.\d+[\w.+-]*)",
    # /health sends a generation of its own through the engine; its 503 during a long prefill is no death.
    validation=patterns(
        r"is longer than the model's context length",
        r"exceeds the (?:model's )?maximum (?:context|allowed) length",
        r"Requested token count exceeds the model's maximum context length",
        r'"type"\s*:\s*"(?:Bad ?Request(?:Error)?|BAD_REQUEST)"',  # the last in a stream, with code 400
        r"does not exist|JSON decode error",
    ),
    refusal_statuses=frozenset({400}),  # a schema that cannot be compiled is refused inside a stream
    shed=patterns(r"The request queue is full", r"Request (?:waiting|running) timeout reached"),
    # A long prefill causes the first as well; the second names a cause behind it. Neither was seen live.
    engine_unavailable=patterns(
        r"Server couldn't get a response from detokenizer",
        r"(?:Scheduler|DetokenizerManager|TokenizerManager|DataParallelController) hit an exception",
    ),
    metrics=_METRICS,
    admin={operation.name: operation for operation in ADMIN_OPERATIONS},
    exact_output={"ignore_eos": "true", "min_tokens": "tokens"},
    regex_field="regex",
    guides_tools=True,
    process_roles=(
        (re.compile(r"sglang::scheduler"), "engine_core"),
        (re.compile(r"sglang::detokenizer|sglang::data_parallel"), "worker"),
        (re.compile(r"sglang\.launch_server|sglang serve|sglang::server"), "api_server"),
    ),
)
