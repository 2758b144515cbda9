import pytest

from loadchaos.analysis.capacity.result import CapacityResult
from loadchaos.core.typed_json import from_json
from loadchaos.core.units import figure
from loadchaos.report.capacity_text import headline, load_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e6, "1,000,000"),
        (123456.7, "123,457"),
        (1234.5, "1,234.5"),
        (12.0, "12"),
        (0.05, "0.05"),
        (-2e6, "-2,000,000"),
    ],
)
def test_figure_has_all_digits_before_the_point(value: float, text: str) -> None:
    assert figure(value) == text


def test_capacity_texts_have_all_digits() -> None:
    data = {"by": "rate", "ended": True}
    found = {
        "known": True,
        "low": 12_000.0,
        "high": 1e6,
        "interval": [11_640.0, 1.03e6],
        "at_least": False,
        "narrow": True,
    }
    assert load_text("rate", 1e6) == "1,000,000 requests/s"
    assert headline(from_json(CapacityResult, {**data, "answer": found})).startswith(
        "capacity 12,000 requests/s (11,640 to 1,030,000): "
    )
