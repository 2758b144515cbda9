import pytest

from loadchaos.core.units import describe_duration, duration_s, format_duration, measured_duration


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.25, "250 ms"), (2, "2 s"), (90, "1 min 30 s"), (3600, "1 h"), (86_400, "1 d"), (0, "0 s"), (1.5, "1 s 500 ms")],
)
def test_describe_duration_has_spaces_and_units(seconds: float, expected: str) -> None:
    assert describe_duration(seconds) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.00085, "0.85 ms"), (0.373, "373 ms"), (9.75, "9.75 s"), (1.2, "1.2 s"), (125.2, "2 min 5 s"), (0, "0.00 ms")],
)
def test_measured_duration_has_spaces_and_one_unit(seconds: float, expected: str) -> None:
    assert measured_duration(seconds) == expected


@pytest.mark.parametrize("seconds", [0.0115, 0.0004, 0.0066, 1.5, 90.0, 86_400.0066, 0.1 + 0.2, 0.0])
def test_written_duration_is_read_as_the_same(seconds: float) -> None:
    assert duration_s(format_duration(seconds)) == pytest.approx(seconds, abs=1e-9)
    assert "e" not in format_duration(seconds)


def test_duration_with_a_part_of_a_millisecond_is_written_and_described() -> None:
    assert [format_duration(s) for s in (0.0115, 0.0004, 1.5)] == ["11.5ms", "0.4ms", "1s500ms"]
    assert [describe_duration(s) for s in (0.0066, 0.1234567, 61.23456)] == ["6.6 ms", "123 ms", "1 min 1 s 235 ms"]
