"""Counts of answers by label: bounded, and stable while a run goes on."""

from loadchaos.analysis.figures.answer_labels import LabelCounts, sum_of_labels
from loadchaos.core.answer_labels import MOST_VALUES, OTHER


def test_answers_are_counted_by_traffic_label_and_value() -> None:
    counts = LabelCounts()
    for traffic, reason in (("chat", "stop"), ("chat", "length"), ("chat", "stop"), ("text", "stop"), ("text", None)):
        counts.on_end({"row": "end", "traffic": traffic, "finish_reason": reason})
    assert counts.figures() == {
        "chat": {"finish_reason": {"length": 1, "stop": 2}},
        "text": {"finish_reason": {"stop": 1}},
    }
    assert sum_of_labels(counts.figures().values()) == {"finish_reason": {"stop": 3, "length": 1}}


def test_a_server_with_a_new_value_in_each_answer_has_few_counts() -> None:
    counts = LabelCounts()
    for n in range(1000):
        for traffic in ("a", "b"):
            counts.on_end({"traffic": traffic, "finish_reason": f"reason-{n}"})
    values = counts.figures()["b"]["finish_reason"]
    assert len(values) == MOST_VALUES + 1
    assert values[OTHER] == 1000 - MOST_VALUES
    assert values.keys() == counts.figures()["a"]["finish_reason"].keys()


def test_traffic_without_a_labelled_answer_has_no_figures() -> None:
    counts = LabelCounts()
    counts.on_end({"traffic": "a", "finish_reason": None})
    assert counts.figures() == {}
