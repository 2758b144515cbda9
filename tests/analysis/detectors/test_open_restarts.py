import pytest

from loadchaos.analysis.detectors.open_restarts import OpenRestarts
from tests.rows import S, folded, metrics_row


def open_after(name: str, values: list[float]) -> bool:
    restarts = folded(OpenRestarts(), (metrics_row(n + 1, {name: value}) for n, value in enumerate(values)))
    return restarts.check(len(values) * S) is not None


@pytest.mark.parametrize(
    ("starts", "is_open"),
    [
        ([100.0, 100.0], False), ([100.0, 100.4], False), ([100.0, 200.0], True), ([100.0, 200.0, 200.0], True),
        ([100.0, 200.0, 100.0], False), ([100.0, 200.0, 100.0, 200.0], False),
    ],
)  # fmt: skip
def test_start_time_that_moved_is_open_unless_an_earlier_process_answers_again(
    starts: list[float], is_open: bool
) -> None:
    assert open_after("process_start_time_s", starts) is is_open


@pytest.mark.parametrize(
    ("tokens", "is_open"),
    [([10.0, 20.0], False), ([10.0, 5.0], True), ([10.0, 5.0, 7.0], True), ([10.0, 5.0, 11.0, 6.0], False)],
)
def test_counter_that_was_reset_is_open_unless_it_goes_back_again(tokens: list[float], is_open: bool) -> None:
    assert open_after("generation_tokens_total", tokens) is is_open
