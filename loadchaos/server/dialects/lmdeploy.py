"""LMDeploy 0.6 to 0.18. Its versions answer the same fault in five different ways."""

from __future__ import annotations

import re
from collections.abc import Mapping

from loadchaos.core.foreign_json import json_value
from loadchaos.core.http_answer import HttpAnswer
from loadchaos.server.dialects.base import (
    SLOWEST_GAUGES_S,
    AdminOperation,
    DetectionSign,
    Dialect,
    Era,
    Limits,
    MetricName,
    VersionBounds,
    patterns,
    version_key,
)
from loadchaos.server.dialects.openai import PROCESS_METRICS

# Texts of 0.16 to 0.18, each seen live, then those of 0.6 to 0.15 (422 with "detail" and pydantic's own words).
_VALIDATION = patterns(
    r"Input length \(\d+\) must be smaller than the model context length",
    r"The request exceeds the model context length",
    r"The request conflicts with existing server state",
    r"The requested feature is not supported",
    r"Request preprocessing failed",
    r"Multimodal input is not supported by this model",
    r"Invalid (?:data URL|multimodal item)|Invalid number of data characters|Non-base64 digit found|Incorrect padding",
    r"The URL must be either a HTTP, data or file URL",
    r"URL is blocked for security reasons",
    r"The model .{0,200} does not exist",
    r"JSON decode error|json_invalid",
    r"Unsupported Media Type: Only 'application/json'",
    r"\b\w+: (?:Input should be|Field required|Value error)",
    r"\bThe (?:top_p|top_k|min_p|n|max_tokens|temperature|max_completion_tokens|stop|seed) .{0,60}",
    r"requested but not enabled logprobs_mode",
    r"Please launch the api_server with --",
    r"out-of-vocab token id",
    r"messages must not be empty",
    r'"detail"\s*:\s*\[\s*\{',
    r"Session \d+ not found",
    r"Unsupported by turbomind",
)

_METRICS = (
    MetricName("requests_running", ("lmdeploy:num_requests_running",)),
    MetricName("requests_waiting", ("lmdeploy:num_requests_waiting",)),
    MetricName("requests_waiting_for_slot", ("lmdeploy:num_api_requests_waiting",)),
    MetricName("kv_usage_ratio", ("lmdeploy:gpu_cache_usage_perc",)),
    MetricName("prompt_tokens_total", ("lmdeploy:prompt_tokens_total",)),
    MetricName("generation_tokens_total", ("lmdeploy:generation_tokens_total",)),
    MetricName("iterations_total", ("lmdeploy:iteration_tokens_total",), part="_count"),
    MetricName("requests_finished_total", ("lmdeploy:num_requests_succeeded", "lmdeploy:num_requests_finished")),
    MetricName("requests_failed_total", ("lmdeploy:num_requests_failed",)),
    MetricName("spec_drafts_total", ("lmdeploy:spec_decode_num_drafts_total",)),
    MetricName("spec_draft_tokens_total", ("lmdeploy:spec_decode_num_draft_tokens_total",)),
    MetricName("spec_accepted_tokens_total", ("lmdeploy:spec_decode_num_accepted_tokens_total",)),
    MetricName("prefix_cache_hit_ratio", ("lmdeploy:prefix_cache_hit_rate",)),
    *PROCESS_METRICS,
)

_ABORT = "start the server with --enable-abort-handling"

ADMIN_OPERATIONS = (
    # The only reset of a cache over HTTP. It aborts what runs, and refuses inference with 503 until woken.
    AdminOperation(
        "sleep", "POST", "/sleep", params={"level": "1"}, body={}, since="0.10.0", undo="wakeup",
        effects=("finish_abort", "shed", "http_error", "stream_error"), limit_s=120.0,
    ),
    AdminOperation("wakeup", "POST", "/wakeup", body={}, since="0.10.0", limit_s=120.0),
    AdminOperation(
        "abort_request", "POST", "/abort_request", body={"abort_all": True}, gate=_ABORT, since="0.11.0",
        effects=("finish_abort",),
    ),
    AdminOperation(
        "terminate", "GET", "/terminate", gate="start the server with --allow-terminate-by-client", since="0.9.0",
        effects=("connect_error", "reset", "stream_error", "truncated", "http_error", "server_terminated"),
    ),
    AdminOperation("is_sleeping", "GET", "/is_sleeping", since="0.11.0", destructive=False),
    AdminOperation("engine_info", "GET", "/distserve/engine_info", since="0.9.0", destructive=False),
)  # fmt: skip

# Up to 0.15 a prompt too long for session_len is 200, empty, finish_reason "length".
_QUIET_OVER_LENGTH = {"over_length": ("rejected", "empty", "ok")}


def _version_bounds(pages: Mapping[str, HttpAnswer]) -> VersionBounds:
    """The paths changed with 0.9, 0.11, 0.14 and 0.16, /health changed with 0.14."""
    openapi = pages.get("/openapi.json")
    paths = openapi.fields.get("paths") if openapi is not None else None
    if isinstance(paths, dict) and paths:
        if "/v1/chat/interactive" not in paths:
            return "0.16", None
        for path, version, next_one in (
            ("/v1/responses", "0.14", "0.16"),
            ("/generate", "0.11", "0.14"),
            ("/distserve/engine_info", "0.9", "0.11"),
        ):
            if path in paths:
                return version, next_one
        return None, "0.9"
    health = pages.get("/health")
    if health is not None and health.status in (200, 503):
        return ("0.14", None) if '"status"' in health.text else (None, "0.14")
    return None, None


def _limits(page: str, version: str | None) -> Limits:
    """KV cache capacity by /distserve/engine_info (JSON inside JSON)."""
    info = json_value(page)
    info = json_value(info) if isinstance(info, str) else info
    if not isinstance(info, dict) or not info.get("num_gpu_blocks") or not info.get("block_size"):
        return {}
    return _limits_of(int(info["num_gpu_blocks"]), int(info["block_size"]), version)


def _limits_of(blocks: int, block_size: int, version: str | None) -> Limits:
    """Longest prompt, as `_get_max_session_len` of lmdeploy/pytorch/engine/engine.py has it. The context may be
    shorter.
    """
    capacity = {"kv_blocks": blocks, "kv_block_size": block_size, "capacity_tokens": blocks * block_size}
    oldest, newest = _versions(version)
    if _kept_blocks(oldest) != _kept_blocks(newest):
        return capacity  # the formula changed in between: which one holds is not known
    return {**capacity, "input_limit": (blocks - _kept_blocks(oldest)) * block_size}


def _versions(text: str | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Oldest and newest version of a text like "0.9 to 0.10"."""
    key = version_key(text)
    if text is None or key is None or text.endswith("later"):
        return key or (99,), (99,)
    if text.endswith("earlier"):
        return (0,), (*key, 99)
    last = text.partition(" to ")[2]
    return key, (*(version_key(last) or ()), 99) if last else key


def _kept_blocks(version: tuple[int, ...]) -> int:
    return 0 if version < (0, 9, 2) else 1 if version < (0, 12) else 2


# The settings come first in the log, with num_gpu_blocks=0 for a number that is still to be computed.
_BLOCKS_IN_LOG = re.compile(
    r"num_gpu_blocks=([1-9]\d*)|\bblock num: ([1-9]\d*)|Initialize cache engine with ([1-9]\d*) gpu blocks"
)
_SESSION_IN_LOG = re.compile(r"\bsession_len=(\d+)")
_BLOCK_SIZE_IN_LOG = re.compile(r"\bblock_size=(\d+)")


def _log_limits(log: str, version: str | None) -> Limits:
    """Context length and KV cache capacity by the log (--log-level INFO). No endpoint tells the context length."""
    found: dict[str, int] = {}
    if sessions := _SESSION_IN_LOG.findall(log):
        found["max_model_len"] = int(sessions[-1])  # the last one is after its own adjustments
    blocks, size = _BLOCKS_IN_LOG.search(log), _BLOCK_SIZE_IN_LOG.search(log)
    if blocks is not None and size is not None:
        n = int(next(group for group in blocks.groups() if group))
        found.update(_limits_of(n, int(size[1]), version))
    return found


LMDEPLOY = Dialect(
    name="lmdeploy",
    title="LMDeploy",
    owned_by="lmdeploy",
    metrics_prefix="lmdeploy:",
    signs=(DetectionSign("/distserve/engine_info", (200, 500), weight=2),),
    version_page=None,
    capacity_flag="--num-gpu-blocks or --cache-max-entry-count",
    version_bounds=_version_bounds,
    command_word="lmdeploy",
    switches=("--eager-mode", "--max-batch-size 1", "--backend pytorch"),
    default_port=23333,
    repository="InternLM/lmdeploy",
    length_flag="--session-len",
    size_flags=("--num-gpu-blocks", "--max-prefill-token-num"),
    length_failure="lmdeploy_input_length_error",
    health_dead=patterns(r"(?i:not alive|has stopped|stopped:)"),
    health_hung=patterns(r"(?i:has not advanced|probe timed out|No successful health probe)"),
    limits_page="/distserve/engine_info",
    limits=_limits,
    log_limits=_log_limits,
    log_flags=patterns(r"\binput backend=\w+, backend_config=(?P<flags>.+)"),
    log_version=r"\blmdeploy(?:\.version)?[ =:v]+(\d+\.\d+[\w.+-]*)",
    token_counters=("encode", "tokenize", "render"),
    kv_gauge="requests and cache",
    prefix_cache_flag=("api_server", "--enable-prefix-caching"),
    validation=_VALIDATION,
    shed=patterns(r"Engine is sleeping; call POST /wakeup"),
    engine_dead=patterns(
        r"ZMQ engine process is not alive",
        r"PyTorch engine (?:request loop is not alive|(?:main loop|loop task) has stopped)",
    ),
    # The first is also the text of a lost session, the second that of a server which is still starting.
    engine_unavailable=patterns(r"The inference engine is unavailable", r"TurboMind engine has not been created"),
    metrics=_METRICS,
    admin={operation.name: operation for operation in ADMIN_OPERATIONS},
    context_fits=False,
    exact_output={"ignore_eos": "true", "min_new_tokens": "tokens"},
    regex_field="response_format",
    metrics_refresh_s=SLOWEST_GAUGES_S,  # its scheduler gauges: read in the sources, and seen live
    process_roles=(
        (re.compile(r"MPEngine|mp_engine"), "engine_core"),
        (re.compile(r"RayWorkerWrapper|ExecutorProc|TPWorker"), "worker"),
        (re.compile(r"lmdeploy serve|api_server"), "api_server"),
    ),
    eras=(
        Era("0.14", {**_QUIET_OVER_LENGTH, "health_knows_death": False}),
        Era("0.16", _QUIET_OVER_LENGTH),
    ),
)
