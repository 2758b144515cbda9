from typing import Any

import pytest

from loadchaos.core.model import Facts
from loadchaos.load.sequence_limits import UNLIMITED, SequenceLimits, refusal_limits, sequence_limits


def facts(dialect: str = "vllm", **known: Any) -> Facts:
    return Facts("http://s", "http://s", dialect, **known)


@pytest.mark.parametrize(
    ("server", "prompt", "whole"),
    [
        (facts(), UNLIMITED - 1, UNLIMITED),
        (facts(max_model_len=4096), 4095, 4096),
        (facts(max_model_len=4096, capacity_tokens=1024), 1023, 1024),
        (facts(max_model_len=4096, input_limit=900), 900, 4096),
        (facts("lmdeploy", max_model_len=16384, capacity_tokens=11008, input_limit=10880), 10879, 10880),
        (facts("sglang", max_model_len=4096, capacity_tokens=4096, input_limit=4089), 4089, 4094),
    ],
)
def test_sequence_limits_are_the_smallest_of_the_known_ones(server: Facts, prompt: int, whole: int) -> None:
    assert sequence_limits(server) == SequenceLimits(prompt, whole)


def test_sequence_limits_without_an_answer_leave_the_whole_context_to_the_prompt() -> None:
    assert sequence_limits(facts(max_model_len=512), shortest_answer=0).prompt == 512


def test_prompt_beside_an_answer_is_bounded_by_the_prompt_and_by_the_sequence() -> None:
    limits = sequence_limits(facts("sglang", max_model_len=4096, input_limit=4089))
    assert [limits.prompt_beside(n) for n in (1, 5, 100)] == [4089, 4089, 3994]


@pytest.mark.parametrize(
    ("server", "longest"),
    [(facts(), 0), (facts(max_model_len=4096), 4096), (facts(input_limit=900), 900)],
)
def test_surely_fits_is_the_longest_prompt_without_a_context(server: Facts, longest: int) -> None:
    assert sequence_limits(server).surely_fits == longest


@pytest.mark.parametrize(
    ("server", "given", "limits"),
    [
        (facts(), None, None),
        (facts(), 1344, SequenceLimits(1343, 1344)),
        (facts(max_model_len=4096, capacity_tokens=1024), 1344, SequenceLimits(4095, 4096)),
        (facts("lmdeploy", max_model_len=4096), 1344, SequenceLimits(1343, 1343)),
        (facts("lmdeploy", max_model_len=16384, input_limit=10880), None, SequenceLimits(10880, 10880)),
        (facts("sglang", max_model_len=4096, input_limit=4089), None, SequenceLimits(4089, 4094)),
    ],
)
def test_refusal_limits_leave_out_what_no_server_refuses(
    server: Facts, given: int | None, limits: SequenceLimits | None
) -> None:
    assert refusal_limits(server, given) == limits
