"""LMDeploy 0.6 to 0.18: its endpoints, metrics and refusals; one fault has five different answers over its versions."""

from __future__ import annotations

import re

from loadchaos.server.dialects.base import AdminOperation, Dialect, Era, MetricName, patterns
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

_OPERATIONS = (
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

LMDEPLOY = Dialect(
    name="lmdeploy",
    title="LMDeploy",
    validation=_VALIDATION,
    shed=patterns(r"Engine is sleeping; call POST /wakeup"),
    engine_dead=patterns(
        r"The inference engine is unavailable",
        r"PyTorch ZMQ engine process is not alive",
        r"PyTorch engine (?:request loop is not alive|main loop has stopped|loop task has stopped)",
        r"TurboMind engine has not been created",
    ),
    metrics=_METRICS,
    admin={operation.name: operation for operation in _OPERATIONS},
    context_fits=False,
    exact_output={"ignore_eos": "true", "min_new_tokens": "tokens"},
    metrics_refresh_s=10.0,
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
