"""The commands `soak` and `trend`: runs on a schedule, and what they say over nights."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadchaos.cli.common import profile_names, write_page
from loadchaos.core.errors import OptionError

if TYPE_CHECKING:
    from loadchaos.profile.cron import Schedule
    from loadchaos.profile.profile import Profile
    from loadchaos.runner.soak.daemon import Order

_EPILOG = (
    "Options of `loadchaos run` follow the profile and go to each run: soak PROFILE --target URL --set load.1.repeat=8"
)


@click.command(epilog=_EPILOG, context_settings={"ignore_unknown_options": True})
@click.argument("profile", shell_complete=profile_names)
@click.argument("run_options", nargs=-1, type=click.UNPROCESSED)
@click.option("--once", is_flag=True, help="One run now, noted as any other; ends with its exit code.")
@click.option("--next", "count", type=click.IntRange(1, 1000), metavar="N", help="Say when the next N runs start.")
@click.option(
    "--emit", "kind", type=click.Choice(["systemd", "cron", "k8s"]), help="Print units, a crontab line or a CronJob."
)
def soak(profile: str, run_options: tuple[str, ...], *, once: bool, count: int | None, kind: str | None) -> None:
    """Run PROFILE by its `schedule`: each run a child of its own, missed ones made up for, old ones deleted."""
    if sum((once, count is not None, kind is not None)) > 1:
        raise OptionError("one of --once, --next and --emit at a time: leave the others out")
    loaded, order = _order(profile, run_options, once=once)
    if count is not None:
        _say_next(loaded, order.schedule, count)
    elif kind is not None:
        click.echo(_emitted(order, kind), nl=False)
    else:
        from loadchaos.runner.soak.daemon import soak as go

        sys.exit(go(order, _say, once=once))


def _say(text: str) -> None:
    from loadchaos.cli.common import tell

    tell(text)
    sys.stdout.flush()  # into a journal or a file at once


def _order(profile: str, options: tuple[str, ...], *, once: bool) -> tuple[Profile, Order]:
    """What is soaked; the options of `run` are judged now and not in the night."""
    from loadchaos.cli import main
    from loadchaos.cli.profiles import profile_of
    from loadchaos.profile.cron import Keep, Schedule
    from loadchaos.runner.soak.daemon import Order

    given: dict[str, Any] = main.run.make_context("loadchaos run", [profile, *options]).params
    if given["dry_run"]:
        raise OptionError("--dry-run belongs to `loadchaos run`; --next says when a soak would start its runs")
    loaded = profile_of(profile, given["overrides"])
    schedule = loaded.schedule
    if schedule is None and once:
        schedule = Schedule(cron="0 0 * * *", keep=Keep(runs=10**9))  # without a schedule nothing is deleted, either
    if schedule is None:
        raise OptionError(f'{profile} has no schedule; it takes one such as schedule: {{cron: "0 2 * * *"}}')
    home = Path(given["out"]).absolute()
    return loaded, Order(profile, loaded.name, schedule, home, tuple(options), given["duration"])


def _say_next(profile: Profile, schedule: Schedule, count: int) -> None:
    from datetime import UTC, datetime

    click.echo(f"{profile.name}: {schedule.in_words()}")
    for line in schedule.next_in_words(datetime.now(UTC), profile.name, count):
        click.echo(f"  {line}")


def _variables(order: Order) -> tuple[str, ...]:
    """The variables that the options of `run` read keys from."""
    from loadchaos.cli import main

    given: dict[str, Any] = main.run.make_context("loadchaos run", [order.profile, *order.options]).params
    values = [h.partition("=")[2] for h in given["headers"]] + list(given["notify"])
    named = [v.removeprefix("env:") for v in values if v.startswith("env:")]
    return tuple(dict.fromkeys([*([given["api_key_env"]] if given["api_key_env"] else []), *named]))


def _emitted(order: Order, kind: str) -> str:
    from loadchaos import __version__
    from loadchaos.core import resources
    from loadchaos.runner.soak.unit_files import Job, emit

    path = resources.profile(order.profile).absolute()
    program = shutil.which("loadchaos")
    begin = [program] if program else [sys.executable, "-m", "loadchaos"]
    words = [*begin, "soak", str(path), "--once", *order.options, "--out", str(order.home), "--no-live"]
    if kind == "k8s":
        words = [
            "loadchaos",
            "soak",
            f"/profile/{path.name}",
            "--once",
            *order.options,
            "--out",
            "/work/runs",
            "--no-live",
        ]
    return emit(
        Job(
            name=order.name,
            schedule=order.schedule,
            command=tuple(words),
            folder=Path.cwd(),
            home=order.home,
            profile=path.read_text(encoding="utf-8"),
            profile_file=path.name,
            version=__version__,
            variables=_variables(order),
        ),
        kind,
    )


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--profile", metavar="NAME", help="The profile whose nights are told; otherwise the one that ran last.")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON: seconds and rates.")
@click.option(
    "--html", "page", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a page, too."
)
def trend(folder: Path, profile: str | None, page: Path | None, *, as_json: bool) -> None:
    """Set the runs in FOLDER (runs/ here) side by side: what is unusual against the last seven good ones."""
    import orjson

    from loadchaos.report.html import trend as t
    from loadchaos.report.html import trend_page

    if not folder.is_dir():
        raise OptionError(f"{folder} is no folder of runs; name the one that the soak was given with --out")
    found = t.read(folder, profile)
    if page is not None:
        write_page(page, trend_page.html(found))
    click.echo(
        orjson.dumps(found.to_json(), option=orjson.OPT_INDENT_2).decode() if as_json else trend_page.text(found)
    )
