"""Answer of a server to one HTTP request that is not load."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from loadchaos.core.foreign_json import json_object, json_value

_WEB_PAGE = re.compile(r"\s*(?:<!--.*?-->\s*)*<(?:!doctype html|html|head)\b", re.IGNORECASE | re.DOTALL)
_UNSEEN = re.compile(r"<(script|style)\b.*?(?:</\1>|$)|<[^>]*>?", re.IGNORECASE | re.DOTALL)
_FIRST_CHARS = 120


def web_page(status: int | None, body: str) -> str | None:
    """First words of an HTML page with status 200, such as the login of a network or the front page of a gateway; None
    for any other answer.
    """
    return first_words(body) if status == 200 and _WEB_PAGE.match(body) else None


def first_words(body: str) -> str:
    """First words of a body, without the markup of a web page."""
    shown = body[: 1 << 14]
    if _WEB_PAGE.match(body):
        shown = html.unescape(_UNSEEN.sub(" ", shown))
    return " ".join(shown.split())[:_FIRST_CHARS]


BODILESS = frozenset({204, 304})
"""Statuses of answers that have no body."""


@dataclass(frozen=True)
class HttpAnswer:
    """A complete answer, header names in lower case; or `status` 0, and as `text` the reason why there is none."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""

    def json(self) -> object:
        """Parse the body, whatever the status says. None where it is no JSON."""
        return json_value(self.text)

    @property
    def fields(self) -> Mapping[str, object]:
        """The JSON object of an answer with status 200; empty for any other answer."""
        return json_object(self.text) if self.status == 200 else {}

    @property
    def models(self) -> list[Mapping[str, object]]:
        """Entries of the list that /v1/models answers; empty for any other answer."""
        listed = self.fields.get("data")
        return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
