"""Settings without which a replay, a minimisation or a bisection is not continued."""

from __future__ import annotations

import hashlib
import os

from loadchaos.campaigns.replay.one_try import TryPlan
from loadchaos.core.redact import launch_secrets

_INHERITED = (
    "VLLM_", "LMDEPLOY_", "SGLANG_", "SGL_", "CUDA_", "NCCL_", "TORCH_", "PYTORCH_", "TRITON_", "HF_", "LOADCHAOS_",
)  # fmt: skip
"""Prefixes of variables that a launched server inherits and reads."""
SHARED, FRESH = "shared by tries (--share-server)", "fresh for each try"


def settings_of(plan: TryPlan) -> dict[str, str | tuple[str, ...]]:
    """Settings on which tries depend, beside their candidates. Possible secrets are slow hashes."""
    launch = plan.server.launch
    variables = {name: value for name, value in os.environ.items() if name.startswith(_INHERITED)}
    variables |= launch.env if launch is not None else {}
    secret = launch_secrets(variables)
    found: dict[str, str | tuple[str, ...]] = {
        "failure": plan.expected.describe(),
        "choice of servers": SHARED if plan.share else FRESH,
        "environment": tuple(
            f"{name}={_hash(name, value) if name in secret else value}" for name, value in sorted(variables.items())
        ),
    }
    if plan.options.model:
        found["model (--model)"] = plan.options.model
    return found


def _hash(name: str, value: str) -> str:
    """Hash a value so that a guess takes 16 MB and some 40 ms of CPU."""
    return f"#{hashlib.scrypt(value.encode(), salt=f'loadchaos {name}'.encode(), n=2**14, r=8, p=1, dklen=16).hex()}"
