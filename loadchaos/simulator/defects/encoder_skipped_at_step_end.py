"""An image right behind a prefill step is not encoded. The drafter reads its first token."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "encoder_skipped_at_step_end"
ABOUT = "an image that begins where a prefill step ends is not encoded, but the drafter reads one token ahead"
UPSTREAM = "https://github.com/vllm-project/vllm/issues/38551"
REMEDIES: dict[str, object] = {"num_speculative_tokens": 0, "disable_chunked_mm_input": True}


def plant(rules: EngineRules) -> None:
    """Plan images without the token that the drafter reads ahead. In vLLM 0.22.1 `_try_schedule_encoder_inputs` looks
    one token ahead, but computes the range of the embeddings that the step needs without it; the range of such an image
    is empty, and its encoder is not scheduled.
    """
    rules.skips_image_at_step_end = True
