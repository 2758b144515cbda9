import pytest

from loadchaos.core.model import Facts
from loadchaos.server.discovery.calibrate import with_log
from loadchaos.server.discovery.server_config import with_configuration

LINE = "(APIServer pid=1) INFO 11-22 16:47:39 [scheduler.py:307] Chunked prefill is enabled with max_num_batched_tokens={}."


def test_settings_tell_the_tokens_of_a_step_and_their_source() -> None:
    facts = with_configuration(Facts("u", "u", "vllm"), {"max_num_batched_tokens": (2048, "/server_info")})
    assert (facts.step_tokens, facts.sources["step_tokens"]) == (2048, "/server_info")


def test_settings_do_not_replace_what_was_measured() -> None:
    facts = with_configuration(Facts("u", "u", "vllm", max_images=3), {"max_images": (8, "/server_info")})
    assert facts.max_images == 3
    assert "max_images" not in facts.sources


@pytest.mark.parametrize("value", ["2048", 2048.0, True, -1])
def test_settings_that_are_no_number_are_no_facts(value: object) -> None:
    facts = with_configuration(Facts("u", "u", "vllm"), {"max_num_batched_tokens": (value, "/server_info")})
    assert facts.step_tokens is None
    assert "step_tokens" not in facts.sources


def test_log_of_vllm_tells_the_tokens_of_a_step_of_the_newest_start() -> None:
    log = "\n".join(LINE.format(n) for n in (4096, 2048))
    facts = with_log(Facts("u", "u", "vllm", "m", "0.32.0", kv_blocks=7), log)
    assert (facts.step_tokens, facts.sources["step_tokens"]) == (2048, "the server's log")
    assert facts.kv_blocks == 7
