"""How a server is configured and what it runs on, as far as it tells: /server_info, /metrics, the head of its log."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from loadchaos.core.model import Facts
from loadchaos.server.discovery.client import DiscoveryClient, DiscoveryResponse

_SERVER_INFO_S = 30.0  # vLLM collects its environment on the first call, which runs a dozen programs

# Ours: (the server's own names for it, newest first, anywhere in its configuration).
_CONFIGURED: Mapping[str, Sequence[str]] = {
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
}
_SYSTEM = {
    "nvidia_gpu_models": "GPU", "nvidia_driver_version": "driver", "cuda_runtime_version": "CUDA", "torch_version": "torch",
    "python_version": "Python", "os": "OS",
}  # fmt: skip
# What vLLM, LMDeploy and SGLang say of their own flags when they start; the newest start counts.
_FLAGS = re.compile(
    r"(?:non-default args: |(?:^|\s)args: Namespace|server_args=|\binput backend=\w+, backend_config=)(?P<flags>.+)"
)
_MOST_FLAGS = 4_000
_MOST_TEXT = 300

Configured = Mapping[str, tuple[Any, str]]
"""Settings by our names, each with where it was learned."""


async def configuration(asker: DiscoveryClient, facts: Facts) -> tuple[Configured, Mapping[str, str]]:
    """What vLLM's /metrics and, in development mode, /server_info tell of its settings; and of its machine, in words."""
    found: dict[str, tuple[Any, str]] = {}
    system: Mapping[str, str] = {}
    if facts.dialect == "vllm":
        found.update(_from_metrics(asker.pages.get("/metrics")))
        if facts.development_endpoints:
            path = "/server_info?config_format=json"
            data = (await asker.ask("GET", path, admin=True, limit_s=_SERVER_INFO_S)).json()
            found.update(_from_server_info(data))
            system = _system(data)
    return found, system


def flags_in_log(head: str) -> str | None:
    """The flags that a server says it was started with; None where its log does not tell."""
    told = [hit["flags"] for line in head.splitlines() if (hit := _FLAGS.search(line)) is not None]
    return told[-1].strip()[:_MOST_FLAGS] if told else None


def _from_metrics(page: DiscoveryResponse | None) -> dict[str, tuple[Any, str]]:
    line = re.search(r"^vllm:cache_config_info\{(.*)\}", page.text, re.MULTILINE) if page is not None else None
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line[1])) if line is not None else {}
    value = labels.get("enable_prefix_caching")
    return {"prefix_caching": (value == "True", "vllm:cache_config_info")} if value in ("True", "False") else {}


def _from_server_info(data: Any) -> dict[str, tuple[Any, str]]:
    config = data.get("vllm_config") if isinstance(data, dict) else None
    if not isinstance(config, dict):
        return {}
    found: dict[str, tuple[Any, str]] = {}
    drafts = config.get("speculative_config")
    for name, keys in _CONFIGURED.items():
        inside: Any = (drafts or {}) if name.startswith("speculative") else config
        value = next((v for k in keys if (v := _anywhere(inside, k)) is not None), None)
        if isinstance(value, bool | int | float | str):
            found[name] = (value, "/server_info")
    limit = _anywhere(config, "limit_mm_per_prompt") or _anywhere(config, "limit_per_prompt")
    images = limit.get("image") if isinstance(limit, dict) else limit
    images = images.get("count") if isinstance(images, dict) else images
    if isinstance(images, int) and not isinstance(images, bool):
        found["max_images"] = (images, "/server_info")
    return found


def _system(data: Any) -> dict[str, str]:
    told = data.get("system_env") if isinstance(data, dict) else None
    if not isinstance(told, dict):
        return {}
    return {words: " ".join(str(told[key]).split())[:_MOST_TEXT] for key, words in _SYSTEM.items() if told.get(key)}


def _anywhere(data: Any, key: str) -> Any:
    """The value of `key` in nested mappings, nearest to the root; None where there is none."""
    level = [data]
    while level:
        mappings = [d for d in level if isinstance(d, dict)]
        for mapping in mappings:
            if mapping.get(key) is not None:
                return mapping[key]
        level = [v for mapping in mappings for v in mapping.values()]
    return None
