"""Labels of an answer: values of servers are cut, and the names are keys of the ledger."""

from typing import Any

import pytest

from loadchaos.core.answer_labels import BODY_LABELS, MOST_CHARS, labels_of
from loadchaos.core.ledger.rows import EndRow


@pytest.mark.parametrize(
    ("said", "counted"),
    [
        ("stop", {"finish_reason": "stop"}),
        ("x" * 5000, {"finish_reason": "x" * MOST_CHARS}),
        ("a\nb\x1b[31m", {"finish_reason": "a?b?[31m"}),
        ("", {}),
        (None, {}),
        (7, {}),
        ({"a": "b"}, {}),
    ],
)
def test_values_are_short_printable_texts(said: Any, counted: dict[str, str]) -> None:
    assert labels_of({"finish_reason": said}) == counted


def test_a_malformed_row_has_no_labels() -> None:
    assert labels_of({"labels": "flex", "finish_reason": "stop"}) == {"finish_reason": "stop"}


def test_no_label_has_the_name_of_another_key_of_the_row() -> None:
    assert not {label.name for label in BODY_LABELS} & EndRow.__annotations__.keys()


def test_labels_of_an_end_row_are_those_of_the_answer_and_of_its_choice() -> None:
    row = {"labels": {"service_tier": "flex"}, "finish_reason": "stop"}
    assert labels_of(row) == {"service_tier": "flex", "finish_reason": "stop"}
