"""Kinds of questions with one right answer (server/probes/kinds.py), and how an answer is compared."""

from __future__ import annotations

from typing import Literal

ProbeKind = Literal["copy", "lookup", "needle", "arithmetic", "image_digits", "image_colour"]
IMAGE_KINDS: tuple[ProbeKind, ...] = ("image_digits", "image_colour")
"""Kinds whose questions have an image."""

EQUAL_ANSWERS = "equal answers"
"""Kind of the `learned` row of a server whose idle answers to equal prompts differ."""

ASKED_AGAIN, ASKED_ANEW = 2, 2
"""Times that a question with a wrong answer is asked again, and that a new one of its kind is."""

NEW_QUESTIONS = 12
"""New questions of a kind that are asked after the load where an answer stayed wrong."""


def is_exact(expected: str, text: str) -> bool:
    """True when an answer is the expected text, apart from blanks around it."""
    return text.strip() == expected


def is_right(expected: str, text: str) -> bool:
    """True when an answer contains the words of the expected text in order."""
    return f" {_words(expected)} " in f" {_words(text)} "


def _words(text: str) -> str:
    return " ".join("".join(c if c.isalnum() or c in "-_" else " " for c in text).split())


LEARNED_UNDER_LOAD = 2
"""First answers under load to a prompt that are learned from, not judged, where the server gives no logprobs."""
