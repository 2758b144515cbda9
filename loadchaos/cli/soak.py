"""`loadchaos soak` and `trend`: scheduled runs and their development."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadchaos.cli.common import echo, flag, json_option, option, page_option, print_result, profile_names, write_page
from loadchaos.core.errors import OptionError
from loadchaos.core.private import create_privately

if TYPE_CHECKING:
    from loadchaos.campaigns.soak.daemon import Order
    from loadchaos.profile.cron import Schedule
    from loadchaos.profile.profile import Profile

_EPILOG = "Any option of `loadchaos run` may follow PROFILE and is used for each run, e.g. soak PROFILE --target URL"


@click.command(epilog=_EPILOG, context_settings={"ignore_unknown_options": True})
@click.argument("profile", shell_complete=profile_names)
@click.argument("run_options", nargs=-1, type=click.UNPROCESSED)
@flag("--once", "Run once now. Ends with the exit code of the run.")
@option("--next count", "Print when the next N runs start.", "N", type=click.IntRange(1, 1000))
def soak(profile: str, run_options: tuple[str, ...], *, once: bool, count: int | None) -> None:
    """Run PROFILE on its `schedule` until Ctrl-C.

    Each run is a process of its own. Old runs are deleted as `schedule.keep` says.
    """
    create_privately()
    if once and count is not None:
        raise OptionError("--once and --next exclude each other: give one of them")
    loaded, order = _order(profile, run_options, once=once)
    if count is not None:
        _print_next(loaded, order.schedule, count)
    else:
        from loadchaos.campaigns.soak.daemon import soak as run_soak

        sys.exit(run_soak(order, _echo_now, once=once))


def _echo_now(text: str) -> None:
    echo(text)
    sys.stdout.flush()  # a journal or a file gets the line at once


def _order(profile: str, options: tuple[str, ...], *, once: bool) -> tuple[Profile, Order]:
    """Profile and schedule of a soak. Options of `run` are checked now, not when the first run starts."""
    from loadchaos.campaigns.soak.daemon import Order
    from loadchaos.cli.profiles import profile_of
    from loadchaos.cli.run import has_parameter, run_parameters
    from loadchaos.profile.cron import Retention, Schedule

    given = run_parameters([profile, *options])
    if given["dry_run"]:
        raise OptionError("--dry-run is an option of `loadchaos run` only; --next prints when a soak starts its runs")
    loaded = profile_of(profile, given["overrides"])
    schedule = loaded.schedule
    if schedule is None and once:
        schedule = Schedule(cron="0 0 * * *", keep=Retention(runs=10**9))  # without a schedule, no run is deleted
    if schedule is None:
        raise OptionError(f'{profile} has no schedule; add one such as schedule: {{cron: "0 2 * * *"}}')
    home = Path(given["out"]).absolute()
    has_seed = has_parameter("seed", [profile, *options])
    others = tuple(_without_duration(options))
    return loaded, Order(profile, loaded.name, schedule, home, others, given["duration"], has_seed)


def _without_duration(words: Sequence[str]) -> Iterator[str]:
    """Yield the options of a run but its duration, which a soak passes itself."""
    from loadchaos.cli.run import run

    names = next(p.opts for p in run.params if p.name == "duration")
    rest = iter(words)
    for word in rest:
        if word in names:
            next(rest, None)
        elif word.partition("=")[0] not in names and not (word.startswith("-t") and len(word) > 2):
            yield word


def _print_next(profile: Profile, schedule: Schedule, count: int) -> None:
    from datetime import UTC, datetime

    click.echo(f"{profile.name}: {schedule.describe()}")
    for line in schedule.describe_next(datetime.now(UTC), profile.name, count):
        click.echo(f"  {line}")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@option("--profile", "Name of the profile to show (default: the one that ran last).", "NAME")
@json_option("Print the result as JSON, in seconds and rates.")
@page_option
def trend(folder: Path, profile: str | None, page: Path | None, *, as_json: bool) -> None:
    """Show how the figures of a profile change from run to run.

    Each run in FOLDER (default: runs/) is compared with the seven good runs before it.
    """
    from loadchaos.report.html import trend as t
    from loadchaos.report.html import trend_page

    if not folder.is_dir():
        raise OptionError(f"{folder} is not a folder; name the folder that `loadchaos soak` got with --out")
    found = t.read(folder, profile)
    if page is not None:
        write_page(page, trend_page.html(found))
    print_result(as_json, found.to_json, lambda: trend_page.text(found))
