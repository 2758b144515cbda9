"""Help in two sizes: `--help` shows what is used daily, `--help-all` everything, in named groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

ALL = "--help-all"
Rows = list[tuple[str, str]]
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class GroupedOption(click.Option):
    """Option with the title of its group; "" for a daily one, which `--help` shows too."""

    group = ""


def in_group(title: str, *options: Decorator) -> Decorator:
    """Decorator with options that stand under a title of their own, where a command has HelpInGroups."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        before = len(getattr(command, "__click_params__", []))
        for one in reversed(options):
            command = one(command)
        for added in getattr(command, "__click_params__", [])[before:]:
            added.group = title
        return command

    return add


def shows_all(ctx: click.Context) -> bool:
    return bool(ctx.meta.get(ALL))


def help_all_option(what: str) -> click.Option:
    def show(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
        if asked and not ctx.resilient_parsing:
            ctx.meta[ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    more: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "allow_from_autoenv": False}
    return click.Option([ALL], callback=show, help=what, **more)


class HelpInGroups(click.Command):
    """Command whose `--help` leaves out the options of groups."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params.append(help_all_option("Show all options, in groups."))

    def option_groups(self, ctx: click.Context) -> dict[str, Rows]:
        """Rows of help by the title of the group, the daily options first."""
        found: dict[str, Rows] = {"": []}
        for parameter in self.params:
            if isinstance(parameter, click.Option) and (row := parameter.get_help_record(ctx)) is not None:
                found.setdefault(getattr(parameter, "group", ""), []).append(row)
        return found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = self.option_groups(ctx)
        if (option := self.get_help_option(ctx)) is not None and (row := option.get_help_record(ctx)) is not None:
            groups[""].append(row)
        for title, rows in groups.items():
            if not title or shows_all(ctx):
                with formatter.section(title or "Options"):
                    formatter.write_dl(rows)
