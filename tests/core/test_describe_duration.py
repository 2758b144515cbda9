"""Durations of a profile as text for people."""

from __future__ import annotations

import pytest

from loadchaos.core.units import describe_duration, measured_duration


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
