"""vLLM's /render: the token ids of a request's prompt, without running it. It exists since 0.18. Up to 0.22 at least it
is always enabled; 0.32 answers 403 unless started with --enable-scale-out (vllm-project/vllm#54579, merged between the
two).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadchaos.simulator.media.processor import DecodedImage
from loadchaos.simulator.vllm.errors import VllmRefusal
from loadchaos.simulator.vllm.requests import CheckedRequest

PATHS = {"/v1/chat/completions/render": True, "/v1/completions/render": False}
"""Path, and True where it renders a chat."""
SINCE = (0, 18, 0)
GATED_SINCE = (0, 30, 0)
_SAMPLING = ("temperature", "seed", "stop", "ignore_eos", "max_tokens", "min_tokens")
_OFF = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."


def disabled() -> VllmRefusal:
    return VllmRefusal(_OFF, "PermissionDeniedError", None, 403)


def rendered(checked: CheckedRequest, data: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return one rendered request. The processed images (`kwargs_data`) are not modelled: null, as with mm_payload
    none.
    """
    sampling = checked.sampling
    return {
        "request_id": checked.request_id,
        "token_ids": checked.ids,
        "features": _features(checked.images),
        "sampling_params": {name: getattr(sampling, name) for name in _SAMPLING},
        "model": data.get("model") or model,
        "stream": sampling.stream,
        "stream_options": data.get("stream_options"),
        "cache_salt": None,
        "priority": 0,
        "kv_transfer_params": None,
    }


def _features(images: Sequence[tuple[int, DecodedImage]]) -> dict[str, Any] | None:
    if not images:
        return None
    places = [{"offset": offset, "length": image.tokens} for offset, image in images]
    hashes = [image.hash for _, image in images]
    return {"mm_hashes": {"image": hashes}, "mm_placeholders": {"image": places}, "kwargs_data": None}
