"""Render the pages' templates, which lie beside this file and escape all foreign text."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from loadchaos.report import performance, phrases
from loadchaos.report.formatting import clean, duration, number, percent, plural, printable, since_load

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # megabytes that a run needs only at its end

    loader = FileSystemLoader(Path(__file__).parent)
    env = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    env.filters |= {
        "clean": clean,
        "duration": duration,
        "known_text": phrases.known_text,
        "local": lambda path: quote(str(path).lstrip("/")),  # a link that stays beside the page
        "number": number,
        "percent": percent,
        "plural": plural,
    }
    env.globals |= {"performance": performance, "phrases": phrases, "since_load": since_load}
    return env


def render(name: str, **values: Any) -> str:
    """Render a template; it may use the filters, phrases and figures of all reports."""
    return printable(_environment().get_template(name).render(**values))
