import pytest

from bench import record


@pytest.mark.slow
def test_trial_measures_ttft_and_cpu_of_the_recorder() -> None:
    direct, proxied = (record.trial(front, 8, 2.0) for front in (record.direct, record.recorder))
    assert direct.cpu_us == 0 < proxied.cpu_us
    assert direct.failed == proxied.failed == 0
    assert 99 < direct.ttft_p50_ms < 1000
    assert proxied.ttft_p50_ms > direct.ttft_p50_ms - 50
