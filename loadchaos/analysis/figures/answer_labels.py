"""Count answers by traffic, label and value."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from loadchaos.core.answer_labels import MOST_VALUES, NAMES, OTHER, labels_of

LabelTable = Mapping[str, Mapping[str, int]]
"""Numbers of answers by label and value."""


class LabelCounts:
    """Counts the answers of a run by the values of their labels. Values beyond MOST_VALUES of a label are OTHER."""

    def __init__(self) -> None:
        self.by_traffic: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
        self._known: dict[str, set[str]] = {name: set() for name in NAMES}

    def on_end(self, row: Mapping[str, object]) -> None:
        counts = self.by_traffic[str(row.get("traffic", ""))]
        for name, value in labels_of(row).items():
            known = self._known[name]
            if value not in known and len(known) < MOST_VALUES:
                known.add(value)
            counts[name][value if value in known else OTHER] += 1

    def figures(self) -> dict[str, LabelTable]:
        """Return `{traffic: {label: {value: answers}}}` of traffic with a labelled answer."""
        return {
            traffic: {name: dict(sorted(values.items())) for name, values in labels.items()}
            for traffic, labels in sorted(self.by_traffic.items())
            if labels
        }


def sum_of_labels(tables: Iterable[LabelTable]) -> dict[str, Counter[str]]:
    total: dict[str, Counter[str]] = {}
    for table in tables:
        for name, values in table.items():
            total.setdefault(name, Counter()).update(values)
    return {name: total[name] for name in NAMES if name in total}
