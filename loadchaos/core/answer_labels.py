"""Labels of an answer: short values by which a server sorts its own answers.

A row of LABELS is all that a label needs: the reader of answers, the end row, the figures, verdict.json, report.html,
exports and /metrics go through this table. Values are foreign text: they are cut here, and figures count a bounded
number of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MOST_CHARS = 64
MOST_VALUES = 8
"""Values of a label that a run counts by name; later ones are counted as OTHER."""
OTHER = "other"


@dataclass(frozen=True)
class AnswerLabel:
    """A label.

    Attributes:
        name: its key in answers, exports, verdict.json and on the page of metrics.
        title: its name in the report.
        of_choice: a choice has it, and the end row has a key for it; else the answer has it at its top.
    """

    name: str
    title: str
    of_choice: bool = False


LABELS = (
    AnswerLabel("finish_reason", "finish reason", of_choice=True),
    AnswerLabel("service_tier", "service tier"),
)
NAMES = tuple(label.name for label in LABELS)
BODY_LABELS = tuple(label for label in LABELS if not label.of_choice)
FINGERPRINT = "system_fingerprint"
"""Name of version and settings of a server; it is in the row of an answer, and not counted."""
BODY_KEYS = (*(label.name for label in BODY_LABELS), FINGERPRINT)
"""Keys at the top of an answer that its row has in `labels`."""


def label_value(value: object) -> str | None:
    """Return a value as it is counted; None for what is no text."""
    if not value or not isinstance(value, str):
        return None
    short = value[:MOST_CHARS]
    return short if short.isprintable() else "".join(c if c.isprintable() else "?" for c in short)


def labels_of(end: Mapping[str, object]) -> dict[str, str]:
    named = end.get("labels")
    of_body: Mapping[object, object] = named if isinstance(named, Mapping) else {}
    found = {name: label_value(end.get(name) or of_body.get(name)) for name in NAMES}
    return {name: value for name, value in found.items() if value is not None}
