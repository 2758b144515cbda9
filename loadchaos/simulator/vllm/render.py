"""vLLM's /render: the token ids of a request's prompt, without running it. It exists since 0.18. Up to 0.22 at least it
is always enabled; 0.32 answers 403 unless started with --enable-scale-out (vllm-project/vllm#54579, merged between the
two).
"""

from __future__ import annotations

from loadchaos.simulator.vllm.errors import VllmRefusal
from loadchaos.simulator.vllm.requests import CheckedRequest

GATED_SINCE = (0, 30, 0)
_OFF = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."


def disabled() -> VllmRefusal:
    return VllmRefusal(_OFF, "PermissionDeniedError", None, 403)


def rendered(checked: CheckedRequest) -> dict[str, object]:
    """Return the prompt of one rendered request. The processed images (`kwargs_data`) are not modelled: null, as with
    mm_payload none.
    """
    images = [image for _, image in checked.images]
    features = {
        "mm_hashes": {"image": [image.hash for image in images]},
        "mm_placeholders": {"image": [{"offset": offset, "length": image.tokens} for offset, image in checked.images]},
        "kwargs_data": None,
    }
    return {
        "request_id": checked.request_id,
        "token_ids": checked.ids,
        "features": features if images else None,
    }
