"""Normalise messages: replace addresses, hashes, ids and numbers. Equal failures then have equal titles."""

from __future__ import annotations

import re

# Order is meaning: the wide things (paths, hashes) go before the numbers inside them. No replacement may be matched by
# any row, or the fixed point is never reached; names are in capitals, and every row asks for a digit or a slash.
_TIME = r"(?:days?|h|min|ms|m|s|us|µs|μs|ns)"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_NOISE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b(?:https?|file|zmq|tcp|ipc)://[^\s'\")\]]+"), "URL"),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "UUID"),
    (re.compile(rf"\b\d{{4}}-\d\d-\d\d(?:[T ]{_CLOCK})?(?:Z| ?[+-]\d\d:?\d\d)?(?!\w)"), "TIME"),
    (
        re.compile(rf"\b(?:[A-Z][a-z][a-z],? )?(?:\d\d? {_MONTH}|{_MONTH} +\d\d?) (?:\d{{4}} )?{_CLOCK}(?: GMT)?"),
        "TIME",
    ),
    (re.compile(rf"(?<![\w:.]){_CLOCK}(?![\w:])"), "TIME"),
    (re.compile(r"\b(?:chatcmpl|cmpl|embd|resp|req)-[\w-]+"), "REQUEST"),
    (re.compile(r"\b(?:chatcmpl|cmpl|resp|req|msg|call)_(?=\w*\d)\w{8,}"), "REQUEST"),
    (re.compile(r"(?<![\w.])(?:/[\w.@+~-]+){2,}/([\w.@+~-]+)"), r"\1"),  # a path keeps its last part
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "ADDR"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b"), "HASH"),
    (re.compile(r"\b(?=[0-9A-Z]*\d)(?:[0-9A-F]{12,}|[0-7][0-9A-HJKMNP-TV-Z]{25})\b"), "HASH"),  # the second: a ULID
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b"), "HASH"),
    # A short one changes from digit to letter and back, which names such as ada6000 do not.
    (re.compile(r"\b(?=[0-9a-f]*(?:\d[a-f]+\d|[a-f]\d+[a-f]))[0-9a-f]{6,}\b"), "HASH"),
    (re.compile(r"\b(\w*[_-]?(?:id|Id|ID))([=:] ?[\"']?)(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]+"), r"\1\2ID"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "HOST"),
    (re.compile(r"\[[0-9a-f:]*:[0-9a-f:]+\](?::\d+)?"), "HOST"),
    (re.compile(r"(?<![\w./])(?:[a-zA-Z][\w-]*\.)*[a-zA-Z][\w-]*:\d{2,5}(?=[/\s,;)\"']|$)"), "HOST"),
    (re.compile(rf"(?<![\w.])(?:\d+(?:\.\d+)?{_TIME})+(?!\w)"), "N"),  # 12.5s, 1m2.5s, 402.3µs
    (re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)*(?:[kKMGTP]i?B|B|%)(?!\w)"), "N"),
    (re.compile(r"\bN(?:\.N)+\b"), "N"),
    (re.compile(r"(?<![\w])[-+]?\d+(?:\.\d+)*(?:e[-+]?\d+)?(?![\w])"), "N"),  # digits inside names stay: int8, cuda12
    (re.compile(r"\bN(?:(?:, ?| x | \+ )N\b)+"), "N..."),  # lists of numbers are one thing
    (re.compile(r"\s+"), " "),
)
_NUMBER = re.compile(r"(?<![A-Za-z_\d])\d++(?![A-SU-Y_a-z])|(?<=\dT)\d\d(?=:)")
_ROUNDS = 8
_LONGEST = 4_000  # some patterns take quadratic time


def without_numbers(text: str) -> str:
    """The text with 0 for each number: a cheap key of lines of one kind. `normalise` also knows ids, paths and hosts."""
    return _NUMBER.sub("0", text)


def normalise(text: str) -> str:
    """Replace noise by names, to a fixed point. It cuts no text of usual length: a title that is cut before it is
    compared is another title.
    """
    text = _without_cut_json(text[:_LONGEST])
    for _ in range(_ROUNDS):
        before = text
        for pattern, name in _NOISE:
            text = pattern.sub(name, text)
        text = text.strip()
        if text == before:
            break
    return text


def _without_cut_json(text: str) -> str:
    """Drop JSON that the text ends inside of: where it was cut says nothing about its kind."""
    start = text.find('{"')
    if start < 0 or text.count("{", start) <= text.count("}", start):
        return text
    return text[:start] + "{JSON"
