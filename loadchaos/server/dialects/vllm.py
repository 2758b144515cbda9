"""vLLM 0.8 to 0.33, as measured on 0.32 and 0.33 and read in its sources."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from loadchaos.server.dialects.base import DetectionSign, Dialect, Era, Limits, MetricName, ServerSettings, patterns
from loadchaos.server.dialects.openai import PROCESS_METRICS
from loadchaos.server.dialects.vllm_admin_operations import ADMIN_OPERATIONS, DEVELOPMENT_GATE

_PARAMETER = (
    r"\b(?:temperature|top_p|top_k|min_p|n|seed|logprobs|top_logprobs|prompt_logprobs|frequency_penalty|"
    r"presence_penalty|repetition_penalty|length_penalty|min_tokens|max_tokens|max_completion_tokens|best_of|stop|"
    r"truncate_prompt_tokens)\b.{0,30} must be "
)

_VALIDATION = patterns(
    r"maximum context length is \d+ tokens",
    r"longer than the maximum model length of \d+",
    r"exceeds model's maximum context length \(\d+\)",
    r"[Pp]lease reduce the length of the (?:input )?(?:prompt|messages)",
    r"max(?:_completion)?_tokens(?:=\d+| must be at least 1, got -?\d+|' or .{0,30} is too large)",
    r"(?:prompt|Prompt) cannot be empty",
    r"At most \d+ \w+(?:\(s\)|s)? may be provided",
    r"is not a multimodal model",
    r"Failed to load image: |cannot identify image file|image file is truncated",
    r"Decompressed data too large for PngImagePlugin",
    r"Failed to apply \w+ on data=",
    r"aspect ratio must be smaller than",
    r"Non-base64 digit found|Incorrect padding|Invalid base64|Only base64 data(?: URLs)? ",
    r"The URL must be either a HTTP, data or file URL",
    r"multi_modal_data\[",
    r"Request decoded media exceeds VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES",
    r"Structured output processing only supports one backend per engine",
    r"structured outputs backend does not support",
    r"Grammar error: |Invalid grammar specification: |Invalid structured outputs: ",
    r"Failed to fetch media from URL",
    # Of the request's own models only: a ValidationError of a *Response is the server's fault.
    r"\d+ validation errors?(?: for (?!\w*Response)\w+|:)",
    r"JSON decode error|json_invalid",
    r"Only 'application/json' is allowed",
    r"The model `[^`]*` does not exist",
    r"Cannot apply chat template to an empty conversation",
    _PARAMETER,
    r"when using `top_logprobs`, `logprobs` must",
    r"Stream options can only be defined when",
    r"tool.choice\b.{0,80} requires --",
    r"out-of-vocab token ids|is out of vocabulary",
    r"Either prompt or prompt_embeds must be provided",
    r"TextEncodeInput must be Union",
    r"Response with id '[^']*' not found",
    r"\(parameter=\w+(?:, value=|\))",  # VLLMValidationError ends with it
    r"not (?:yet )?supported with speculative decoding",
)

_SHED = patterns(
    r"The engine is currently busy and cannot accept new requests",
    r"The engine has reached its prefill token backlog limit",
    r"The model is currently scaling\. Please try again later",
    r"Generation is paused\. Please retry after it resumes",
    r"This data-parallel rank has been retired and is awaiting shutdown",
)

_ENGINE_DEAD = patterns(
    r"EngineCore encountered an issue",  # in answers until 0.32; from 0.33 on only in the log
    r"The server had an error while processing your request\.(?! ?Sorry)",  # answers of 0.33; OpenAI's own goes on
    r"EngineDeadError",  # V0 has it as AsyncEngineDeadError and MQEngineDeadError
    r"[Bb]ackground loop (?:has errored|is stopped|is not running)",
    r"Engine loop has died",
    r"Engine process \(pid \d+\) died",
    r"engine (?:core )?(?:process )?is (?:dead|not alive)",
)

_METRICS = (
    MetricName("requests_running", ("vllm:num_requests_running",)),
    MetricName("requests_waiting", ("vllm:num_requests_waiting",)),
    MetricName("kv_usage_ratio", ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")),
    MetricName("prompt_tokens_total", ("vllm:prompt_tokens_total",)),
    MetricName("generation_tokens_total", ("vllm:generation_tokens_total",)),
    MetricName("iterations_total", ("vllm:iteration_tokens_total",), part="_count"),
    MetricName("preemptions_total", ("vllm:num_preemptions_total",)),
    MetricName("requests_finished_total", ("vllm:request_success_total",)),
    MetricName("spec_drafts_total", ("vllm:spec_decode_num_drafts_total",)),
    MetricName("spec_draft_tokens_total", ("vllm:spec_decode_num_draft_tokens_total",)),
    MetricName("spec_accepted_tokens_total", ("vllm:spec_decode_num_accepted_tokens_total",)),
    MetricName("mm_cache_queries_total", ("vllm:mm_cache_queries_total",)),
    MetricName("mm_cache_hits_total", ("vllm:mm_cache_hits_total",)),
    MetricName(
        "prefix_cache_queries_total", ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
    ),
    MetricName("prefix_cache_hits_total", ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")),
    MetricName("corrupted_requests_total", ("vllm:corrupted_requests_total",)),
    MetricName("admission_rejections_total", ("vllm:admission_rejections_total",)),
    MetricName("kv_blocks", ("vllm:cache_config_info",), label="num_gpu_blocks"),
    MetricName("kv_block_size", ("vllm:cache_config_info",), label="block_size"),
    MetricName("kv_cache_tokens", ("vllm:cache_config_info",), label="kv_cache_size_tokens"),
    *PROCESS_METRICS,
)

# Our name: its own names, newest first, anywhere in the configuration of /server_info.
_SETTINGS: Mapping[str, Sequence[str]] = {
    "prefix_caching": ("enable_prefix_caching",),
    "mm_processor_cache_gb": ("mm_processor_cache_gb",),
    "max_num_batched_tokens": ("max_num_batched_tokens",),
    "max_num_seqs": ("max_num_seqs",),
    "async_scheduling": ("async_scheduling",),
    "chunked_prefill": ("enable_chunked_prefill", "chunked_prefill_enabled"),
    "sleep_mode": ("enable_sleep_mode",),
    "speculative_method": ("method",),
    "speculative_tokens": ("num_speculative_tokens",),
    "tensor_parallel_size": ("tensor_parallel_size",),
    "pipeline_parallel_size": ("pipeline_parallel_size",),
    "model": ("model",),
}
_SYSTEM = {
    "nvidia_gpu_models": "GPU", "nvidia_driver_version": "driver", "cuda_runtime_version": "CUDA", "torch_version": "torch",
    "python_version": "Python", "os": "OS",
}  # fmt: skip
_MOST_TEXT = 300
_CACHE_INFO = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_STEP_IN_LOG = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def _cache_info(metrics: str) -> Mapping[str, str]:
    """Labels of vllm:cache_config_info, which every V1 version has."""
    line = _CACHE_INFO.search(metrics)
    return dict(_LABEL.findall(line[1])) if line is not None else {}


def _limits(metrics: str, _version: str | None) -> Limits:
    labels = _cache_info(metrics)
    try:
        blocks, block_size = int(labels["num_gpu_blocks"]), int(labels["block_size"])
    except (KeyError, ValueError):
        return {}
    return {"kv_blocks": blocks, "kv_block_size": block_size, "capacity_tokens": blocks * block_size}


def _log_limits(log: str, _version: str | None) -> Limits:
    """Most tokens of a step, by the log of the newest start. /server_info tells them in development mode only."""
    steps = _STEP_IN_LOG.findall(log)
    return {"step_tokens": int(steps[-1])} if steps else {}


def _metrics_settings(metrics: str) -> Mapping[str, tuple[Any, str]]:
    value = _cache_info(metrics).get("enable_prefix_caching")
    return {"prefix_caching": (value == "True", "vllm:cache_config_info")} if value in ("True", "False") else {}


def _read_settings(data: Any) -> ServerSettings:
    if not isinstance(data, dict):
        return ServerSettings()
    env, config = data.get("system_env"), data.get("vllm_config")
    system = {
        label: " ".join(str(env[key]).split())[:_MOST_TEXT]
        for key, label in _SYSTEM.items()
        if isinstance(env, dict) and env.get(key)
    }
    values: dict[str, object] = {}
    if not isinstance(config, dict):
        return ServerSettings(values, system)
    drafts = config.get("speculative_config")
    for name, keys in _SETTINGS.items():
        inside: Any = (drafts or {}) if name.startswith("speculative") else config
        value = next((v for k in keys if (v := _anywhere(inside, k)) is not None), None)
        if isinstance(value, bool | int | float | str):
            values[name] = value
    if "kv_transfer_config" in config:
        values["kv_connector"] = (config["kv_transfer_config"] or {}).get("kv_connector") or "none"
    runner = (data.get("vllm_env") or {}).get("VLLM_USE_V2_MODEL_RUNNER")
    if runner is not None:
        values["v2_model_runner"] = runner
    limit = _anywhere(config, "limit_mm_per_prompt") or _anywhere(config, "limit_per_prompt")
    images = limit.get("image") if isinstance(limit, dict) else limit
    images = images.get("count") if isinstance(images, dict) else images
    if isinstance(images, int) and not isinstance(images, bool):
        values["max_images"] = images
    return ServerSettings(values, system)


def _anywhere(data: Any, key: str) -> Any:
    """Value of `key` in nested mappings, nearest to the root. Returns None if there is none."""
    level = [data]
    while level:
        mappings = [d for d in level if isinstance(d, dict)]
        for mapping in mappings:
            if mapping.get(key) is not None:
                return mapping[key]
        level = [v for mapping in mappings for v in mapping.values()]
    return None


_OLD_RESET, _GUIDED = {"development_path": "/reset_prefix_cache"}, {"regex_field": "guided_regex"}

VLLM = Dialect(
    name="vllm",
    title="vLLM",
    owned_by="vllm",
    metrics_prefix="vllm:",
    signs=(DetectionSign("/version", json_key="version"), DetectionSign("/reset_mm_cache", (405,))),
    command_word="vllm",
    repository="vllm-project/vllm",
    length_flag="--max-model-len",
    size_flags=("--num-gpu-blocks-override", "--max-num-batched-tokens"),
    switches=(
        "--no-async-scheduling",
        "--no-enable-prefix-caching",
        "--no-enable-chunked-prefill",
        "--disable-chunked-mm-input",
        "--mm-processor-cache-gb 0",
        "--enforce-eager",
        "--max-num-seqs 1",
    ),
    health_dead=patterns(r"(?i:EngineDead|engine is dead)"),
    log_dead=patterns(r"EngineCore encountered a fatal error"),
    log_shutdown=patterns(
        r"Shutting down FastAPI HTTP server",
        r"Shutdown initiated \(timeout=",
        r"\[shutdown\] API server: shutdown triggered",
    ),
    limits_page="/metrics",
    limits=_limits,
    log_limits=_log_limits,
    limits_source="vllm:cache_config_info",
    draft_counter=re.compile(r"^vllm:spec_decode_num_drafts(?:_total)?\{", re.MULTILINE),
    metrics_settings=_metrics_settings,
    settings_path="/server_info?config_format=json",
    read_settings=_read_settings,
    log_flags=patterns(r"non-default args: (?P<flags>.+)", r"(?:^|\s)args: Namespace(?P<flags>.+)"),
    log_version=r"(?:vLLM API server version|LLM engine \(v|llm_engine.*\(v)[ v]*(\d[\w.+!-]*)",
    prompt_counters=("render", "tokenize"),
    kv_gauge="requests",
    validation=_VALIDATION,
    shed=_SHED,
    engine_dead=_ENGINE_DEAD,
    metrics=_METRICS,
    admin={operation.name: operation for operation in ADMIN_OPERATIONS},
    development_gate=DEVELOPMENT_GATE,
    development_path="/reset_mm_cache",
    endpoint_paths={"score": "/score", "rerank": "/rerank"},
    exact_output={"ignore_eos": "true", "min_tokens": "tokens"},
    regex_field="structured_outputs",
    guides_tools=True,
    process_roles=(
        (re.compile(r"EngineCore"), "engine_core"),
        (re.compile(r"VLLM::Worker|VllmWorker|ray::RayWorker"), "worker"),
        (re.compile(r"VLLM::APIServer|vllm serve|vllm\.entrypoints"), "api_server"),
    ),
    # /health only logged a dead engine before 0.9 and said 200 until the process was gone.
    eras=(
        Era("0.9", {**_OLD_RESET, **_GUIDED, "health_knows_death": False}),
        Era("0.11", {**_OLD_RESET, **_GUIDED}),
        Era("0.11.2", _OLD_RESET),
    ),
)
