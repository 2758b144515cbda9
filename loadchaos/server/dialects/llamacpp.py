"""llama.cpp's own server (llama-server) at commit 0c1e570, seen live."""

from __future__ import annotations

import re
from collections.abc import Mapping

from loadchaos.core.foreign_json import json_object
from loadchaos.server.dialects.base import DetectionSign, Dialect, Limits, MetricName, patterns

_METRICS = (
    MetricName("requests_running", ("llamacpp:requests_processing",)),
    MetricName("requests_waiting", ("llamacpp:requests_deferred",)),
    MetricName("prompt_tokens_total", ("llamacpp:prompt_tokens_total",)),
    MetricName("generation_tokens_total", ("llamacpp:tokens_predicted_total",)),
    MetricName("iterations_total", ("llamacpp:n_decode_total",)),
    MetricName("prefix_cache_hits_total", ("llamacpp:prompt_tokens_cached_total",)),
    MetricName("spec_drafts_total", ("llamacpp:spec_decode_num_drafts_total",)),
    MetricName("spec_draft_tokens_total", ("llamacpp:spec_decode_num_draft_tokens_total",)),
    MetricName("spec_accepted_tokens_total", ("llamacpp:spec_decode_num_accepted_tokens_total",)),
)


def _limits(page: str, _version: str | None) -> Limits:
    """Context of one slot by /props: -c divided by the slots (-np)."""
    settings = json_object(page).get("default_generation_settings")
    length = settings.get("n_ctx") if isinstance(settings, Mapping) else None
    return {"max_model_len": length} if isinstance(length, int) and length > 0 else {}


LLAMACPP = Dialect(
    name="llamacpp",
    title="llama.cpp",
    owned_by="llamacpp",
    metrics_prefix="llamacpp:",
    signs=(DetectionSign("/props", json_key="build_info", weight=2),),
    version_page=("/props", "build_info"),
    command_word="llama-server",
    default_port=8080,
    repository="ggml-org/llama.cpp",
    switches=("-np 1", "--no-cont-batching", "-fa off", "--no-cache-prompt"),
    length_flag="-c",
    size_flags=("--ctx-size", "-b", "--batch-size"),
    limits_page="/props",
    limits=_limits,
    keeps_streams=False,
    # It answers 500 "server_error" to broken JSON and to an image it cannot read: no refusal.
    validation=patterns(
        r"exceeds the available context size",
        r'"type"\s*:\s*"(?:invalid_request_error|exceed_context_size_error|not_found_error)"',
    ),
    shed=patterns(r'"message"\s*:\s*"Loading model"'),
    log_shutdown=patterns(r"cleaning up before exit|Received second interrupt"),
    token_counters=(),  # its /tokenize takes "content", and answers an empty list to anything else
    metrics=_METRICS,
    exact_output={"ignore_eos": "true"},
    process_roles=((re.compile(r"llama-server"), "api_server"),),
)
