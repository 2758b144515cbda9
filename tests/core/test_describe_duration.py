"""Durations of a profile as text for people."""

from __future__ import annotations

import pytest

from loadchaos.core.units import describe_duration


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.25, "250 ms"), (2, "2 s"), (90, "1 min 30 s"), (3600, "1 h"), (86_400, "1 d"), (0, "0 s"), (1.5, "1 s 500 ms")],
)
def test_describe_duration_has_spaces_and_units(seconds: float, expected: str) -> None:
    assert describe_duration(seconds) == expected
