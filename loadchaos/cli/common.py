"""What several commands share: a duration option, the terminal's width and colour, printing that cannot fail."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from loadchaos.core.errors import OptionError


def duration(_: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """An option that takes `30s` or, as Locust's --run-time does, bare seconds; OptionError names the option."""
    from loadchaos.core.units import duration_s

    if value is None:
        return None
    try:
        return duration_s(f"{value}s" if value.isdigit() else value)
    except ValueError as e:
        raise OptionError(f"--{(parameter.name or '').replace('_', '-')}: {e}") from None


def profile_names(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Shipped profiles that begin as typed, and whatever files there are."""
    from loadchaos.core import resources

    names = [CompletionItem(name) for name in resources.profiles() if name.startswith(typed)]
    return names or [CompletionItem(typed, type="file")]


def tell(text: str, *, err: bool = False) -> None:
    """Print; where nobody reads any more (a closed pipe, a lost terminal) the exit code is all that counts."""
    try:
        click.echo(text, err=err)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2 if err else 1)


def write_page(path: Path, html: str) -> None:
    """Write what --html asks for; OptionError where that cannot be."""
    try:
        path.write_text(html, encoding="utf-8")
    except OSError as e:
        raise OptionError(f"{path}: {e.strerror}; --html names a file that can be written") from e


def width_of_terminal() -> int | None:
    """Its columns, None where stdout is a pipe or a file: those are read by programs, which want all of a line."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else None


def terminal() -> tuple[bool, int]:
    """(colour, columns) of the terminal that the report goes to."""
    import shutil

    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return color, max(60, min(shutil.get_terminal_size((100, 24)).columns, 140))
