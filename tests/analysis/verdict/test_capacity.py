import pytest

from loadchaos.analysis.verdict.capacity import moved_by
from loadchaos.core.model import Facts


def facts(dialect: str, **more: int) -> Facts:
    return Facts("http://s", "http://s", dialect, **more)  # type: ignore[arg-type]  # numbers only


@pytest.mark.parametrize(
    ("known", "limit", "says"),
    [
        (facts("lmdeploy", kv_blocks=21, kv_block_size=64, input_limit=1216), 1217,
         "21 blocks of 64 hold a prompt of 1,216, set by --num-gpu-blocks or --cache-max-entry-count"),
        (facts("lmdeploy", kv_blocks=210, kv_block_size=64, input_limit=13312, max_model_len=8192), 8192,
         "set by --session-len"),
        (facts("lmdeploy", max_model_len=16384), 1344, ""),
        (facts("vllm", max_model_len=4096), 4096, "set by --max-model-len"),
        (facts("sglang", max_model_len=4096, capacity_tokens=4096, input_limit=4089), 4090, "set by --context-length"),
        (facts("sglang", max_model_len=4096, capacity_tokens=1024, input_limit=1017), 1018,
         "set by --max-total-tokens or --mem-fraction-static"),
        (facts("sglang", max_model_len=4096, capacity_tokens=1024, input_limit=1017), 1000, ""),
        (facts("openai", max_model_len=4096), 4096, ""),
        (facts("vllm"), None, ""),
        (None, 4096, ""),
    ],
)  # fmt: skip
def test_capacity_names_the_flag_of_the_longest_prompt(known: Facts | None, limit: int | None, says: str) -> None:
    assert moved_by(known, limit) == says
