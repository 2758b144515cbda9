import pytest

from loadchaos.core.errors import OptionError
from loadchaos.profile.slo import Slo, parse_bench_limits, parse_limits, written


def test_limits_have_units() -> None:
    limits_s = parse_limits("ttft=2s, itl_p99<=50ms", "--slo")
    assert limits_s == {"ttft": 2.0, "itl_p99": 0.05}
    assert Slo.model_validate(written(limits_s)).limits_s() == limits_s


def test_bench_limits_are_milliseconds_unless_they_have_a_unit() -> None:
    words = ["ttft:2000", "tpot:12.5", "itl_p99:50ms", "e2el:30s"]
    assert parse_bench_limits(words, "--goodput") == {"ttft": 2.0, "tpot": 0.0125, "itl_p99": 0.05, "e2e": 30.0}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ("ttft", "{o} 'ttft': NAME"),
        ("{s}2s", "{o} '{s}2s': NAME"),
        ("tftt{s}2s", "{o} tftt: one of ttft, tpot, e2e, .* was expected; did you mean ttft\\?"),
        ("latency{s}2s", "{o} latency: one of ttft, .* was expected$"),
        ("itl_p98{s}2s", "{o} itl_p98: .*did you mean itl_p99\\?"),
        ("ttft{s}x", "{o} ttft: a duration such as 30s, 5m or 250ms was expected \\(got 'x'\\)"),
        ("ttft{s}-1s", "{o} ttft: a duration .* was expected \\(got '-1s'\\)"),
        ("ttft{s}0s", "{o} ttft: more than 0 was expected \\(got '0s'\\)"),
    ],
)
def test_both_grammars_refuse_the_same(wrong: str, text: str) -> None:
    with pytest.raises(OptionError, match=text.format(o="--slo", s="=")):
        parse_limits(wrong.format(s="="), "--slo")
    with pytest.raises(OptionError, match=text.format(o="--goodput", s=":")):
        parse_bench_limits([wrong.format(s=":")], "--goodput")


def test_a_limit_is_given_once() -> None:
    with pytest.raises(OptionError, match="--slo ttft: given twice"):
        parse_limits("ttft=1s,ttft=2s", "--slo")
    with pytest.raises(OptionError, match="--goodput e2e: given twice"):
        parse_bench_limits(["e2e:5", "e2el:7"], "--goodput")
