import pytest

from loadchaos.core import latency_percentiles


def test_latency_percentiles_parse_every_name_they_list() -> None:
    names = list(latency_percentiles.all_names())
    assert len(names) == 6 * 7
    assert [latency_percentiles.parse(str(name)) for name in names] == names


@pytest.mark.parametrize("text", ["", "ttft", "ttft_", "ttft_p98", "p99_ttft", "itl.p99", "TTFT_p99", "ttft_p99_x"])
def test_latency_percentiles_refuse_other_text(text: str) -> None:
    assert latency_percentiles.parse(text) is None


def test_latency_percentiles_know_quantile_and_labels() -> None:
    name = latency_percentiles.parse("itl_p999")
    assert name is not None
    assert name.quantile == 0.999
    mean = latency_percentiles.parse("e2e_mean")
    assert mean is not None
    assert mean.quantile is None
    assert latency_percentiles.label("itl", latency_percentiles.quantile_label(0.999)) == "ITL p99.9"
