"""Detect the kind and version of a server from pages it answered. Signs, strongest first: the owner of the models, the
prefix of the metrics, pages that only one kind of server has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from loadchaos.core.http_answer import HttpAnswer
from loadchaos.server.dialects import DIALECTS, UNKNOWN
from loadchaos.server.dialects.base import DetectionSign, Dialect


@cache
def probed_paths() -> tuple[str, ...]:
    """Paths to GET. Each is harmless everywhere: /reset_mm_cache acts on POST only, so its 405 or 404 is the sign."""
    dialects = DIALECTS.values()
    signs = (sign.path for dialect in dialects for sign in dialect.signs)
    pages = (dialect.version_page[0] for dialect in dialects if dialect.version_page is not None)
    return tuple(dict.fromkeys(("/v1/models", "/health", "/metrics", "/openapi.json", *signs, *pages)))


@dataclass(frozen=True)
class Detected:
    """Result of `detect`. `at_least` and `below`: versions that fit the paths; `own_pages`: there are pages
    that a gateway would not pass on.
    """

    dialect: Dialect
    version: str | None = None
    at_least: str | None = None
    below: str | None = None
    signs: tuple[str, ...] = ()
    own_pages: bool = False


def detect(pages: Mapping[str, HttpAnswer], dialects: Mapping[str, Dialect] = DIALECTS) -> Detected:
    """Choose the dialect with the most signs; without any it is `openai`. Never raises for what a page holds."""
    votes: dict[str, int] = {}
    signs: list[str] = []
    for dialect in dialects.values():
        for weight, text in _signs_of(dialect, pages):
            votes[dialect.name] = votes.get(dialect.name, 0) + weight
            signs.append(f"{dialect.title}: {text}")
    if not votes:
        return Detected(UNKNOWN, signs=("no sign of a known server",))
    found = dialects[max(votes, key=lambda name: votes[name])]
    path, key = found.version_page or ("", "")
    told = _page(pages, path).fields.get(key)
    version = told if isinstance(told, str) else None
    at_least, below = found.version_bounds(pages)
    return Detected(
        dialect=found.at(_era_version(version, at_least, below)),
        version=version,
        at_least=at_least,
        below=below,
        signs=tuple(signs),
        own_pages=_page(pages, "/metrics").status == 200 or any(_shown(sign, pages) for sign in found.signs),
    )


def _signs_of(dialect: Dialect, pages: Mapping[str, HttpAnswer]) -> list[tuple[int, str]]:
    found = []
    owners = (str(model.get("owned_by")) for model in _page(pages, "/v1/models").models)
    if dialect.owned_by and dialect.owned_by in owners:
        found.append((3, f"/v1/models is owned_by {dialect.owned_by}"))
    prefix, metrics = dialect.metrics_prefix, _page(pages, "/metrics")
    if prefix and metrics.status == 200 and re.search(rf"^{re.escape(prefix)}", metrics.text, re.MULTILINE):
        found.append((3, f"metrics named {dialect.metrics_prefix}"))
    found += [(sign.weight, text) for sign in dialect.signs if (text := _shown(sign, pages))]
    return found


def _shown(sign: DetectionSign, pages: Mapping[str, HttpAnswer]) -> str:
    page = _page(pages, sign.path)
    if not sign.json_key:
        return f"{sign.path} is there" if page.status in sign.statuses else ""
    value = page.fields.get(sign.json_key)
    return f"{sign.path} says {value}" if isinstance(value, str) else ""


def _era_version(version: str | None, at_least: str | None, below: str | None) -> str | None:
    """The lowest version that is sure, else one below the upper bound."""
    if version is not None or at_least is not None:
        return version or at_least
    return "0.0" if below is not None else None


def _page(pages: Mapping[str, HttpAnswer], path: str) -> HttpAnswer:
    return pages.get(path, HttpAnswer(0))
