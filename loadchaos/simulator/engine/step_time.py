"""Duration of a step: a linear model of a 7B model on one large GPU."""

from __future__ import annotations

from loadchaos.simulator.engine.request import Batch
from loadchaos.simulator.engine.types import EngineConfig

FIXED_S = 0.010
PER_PROMPT_TOKEN_S = 25e-6
PER_DECODE_S = 30e-6
PER_ENCODER_TOKEN_S = 20e-6


def step_duration_s(batch: Batch, config: EngineConfig) -> float:
    """Return the duration of a step in seconds at the configured speed. It is about 10 ms for one decoding request and
    16 ms for 200.
    """
    decoding = len(batch.planned)
    encoder_tokens = sum(item.tokens for item in batch.encode)
    seconds = (
        FIXED_S
        + batch.prompt_tokens * PER_PROMPT_TOKEN_S
        + decoding * PER_DECODE_S
        + encoder_tokens * PER_ENCODER_TOKEN_S
    )
    return seconds / config.speed
