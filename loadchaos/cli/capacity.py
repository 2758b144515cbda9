"""`loadchaos capacity`: the highest load that meets a goal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadchaos.cli.common import (
    ABOVE_ZERO,
    FOLDER,
    Given,
    authorize_option,
    campaign_in,
    echo,
    exporter_port_option,
    free_exporter_port,
    json_option,
    option,
    options_of,
    out_option,
    print_result,
    profile_names,
    server_log_option,
    server_options,
    shared_option,
    target_option,
    terminal,
    time_option,
    wait_ready_option,
    yes_option,
)
from loadchaos.cli.profiles import profile_of, set_option
from loadchaos.cli.resume import recorded, restored
from loadchaos.core import own_folder
from loadchaos.core.errors import OptionError
from loadchaos.core.private import create_privately
from loadchaos.core.typed_json import from_json, to_json

if TYPE_CHECKING:
    from loadchaos.campaigns.capacity.session import CapacitySettings
    from loadchaos.profile.profile import Profile

_BUDGET_S, _MOST_GOAL = 600.0, 0.9999
_ROOM = 0.9
"""Part of --max that --at-least may be: the interval of the answer reaches a few per cent below the load that was proved."""
_SEEDS = 1_000_000
_MOST = {"rate": 100_000.0, "concurrency": 10_000.0}
_EXIT_CODES = """\b
Exit codes:
  0 the capacity is known; with --at-least: it is not below
  1 the server died or hung, or the capacity is below --at-least
  2 a mistake in an option or the profile
  3 unknown: no load was proved to meet the goal
  4 the server cannot be tested, 70 a bug of loadchaos
  130 Ctrl-C, 143 SIGTERM; continue with --resume"""


@click.command(epilog=_EXIT_CODES)
@click.pass_context
@set_option
@click.argument("profile", required=False, shell_complete=profile_names)
@target_option("-H --target", "URL of the server, with or without /v1.")
@option(
    "--launch",
    "Start this server once for all steps, e.g. 'vllm serve MODEL --port 8000'. It listens at --target if given.",
    "COMMAND",
)
@option("--slo limits", "Limits of each request, e.g. ttft=2s,itl_p99=50ms (default: the profile's).", "LIMITS")
@option(
    "--phase",
    "Number of the phase of `load` whose traffic is sent, from 0 (default: the last with users or a constant rate).",
    "N",
    type=click.IntRange(min=0),
)
@option("--goal", "Share of requests within all limits.", "SHARE", default="99%", show_default=True)
@option(
    "--by",
    "Search requests per second, or users that each wait for their answer.",
    type=click.Choice(["rate", "concurrency"]),
    default="rate",
    show_default=True,
)
@time_option("--budget", "Time for the whole search (default: 10m).", positive=True)
@option("--start", "Load of the first step.", type=ABOVE_ZERO)
@option("--max most", "Highest load that is tried.", type=ABOVE_ZERO)
@option("--tolerance", "Width of the interval at which the search ends.", default="3%", show_default=True)
@option("--at-least", "Fail if the capacity is proved to be below this load.", type=ABOVE_ZERO)
@option("--resume", "Continue the search of this folder after its last finished step.", "DIR", type=FOLDER)
@server_options
@server_log_option
@option("--tokenizer", "Count tokens with tokenizer.json in this folder.", "DIR")
@authorize_option("Allow dangerous payloads. Repeatable.")
@shared_option
@wait_ready_option
@yes_option
@out_option("Folder for the result.")
@option("--seed", "Seed of the requests; default: a new one, as a server caches prompts.", type=int)
@exporter_port_option
@json_option("Print capacity.json.")
def capacity(
    ctx: click.Context, profile: str | None, overrides: tuple[str, ...], *, as_json: bool, **options: Any
) -> None:
    """Find the highest load that meets a goal for latency.

    Raises the load until the goal fails, then narrows the interval. Each step is a run whose goodput is decided by its
    confidence interval. The result names the knee, the saturation throughput and the limiting resource.
    """
    import random

    from loadchaos.campaigns.capacity import files
    from loadchaos.campaigns.capacity.search_metrics import SearchMetrics
    from loadchaos.campaigns.capacity.session import CapacitySession, SearchOutput
    from loadchaos.cli.run import with_launch
    from loadchaos.report.terminal.capacity import render

    create_privately()
    port = free_exporter_port(options.pop("exporter_port"))
    stored = None
    if options["resume"] is not None:
        stored = files.read(options["resume"], "--resume")
        options.update(restored(ctx, vars(stored.wanted), vars(stored.wanted), "search", options["resume"]))
        profile, overrides = options["profile"], options["overrides"]
        if stored.ended and options["budget"] is None:
            raise OptionError("--resume: this search has ended; give it more time with --budget, or start a new search")
        options["budget"] = options["budget"] or stored.budget_s
    elif profile is None:
        raise OptionError("a profile is missing: give a path or a shipped name; `loadchaos profiles` lists them")
    if options["seed"] is None:
        options["seed"] = random.SystemRandom().randrange(_SEEDS)
    loaded = profile_of(str(profile), overrides)
    if options["launch"]:
        loaded = with_launch(loaded, options["launch"], options["target"])
    options["external"] = None if options["launch"] else options["target"]
    searched, settings = _settings(loaded, str(profile), overrides, options)
    folder = options["resume"] or options["out"] / f"capacity-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    seed, argv = options["seed"] * 1000, ("loadchaos", "capacity")
    run_options = options_of(options, target=options["external"], seed=seed, live=False, argv=argv)
    lines = _Lines()
    campaign = campaign_in(folder, "capacity", lines.print)
    if stored is None:
        own_folder.seal(folder)
        campaign.write({files.PROFILE: recorded("", loaded.to_yaml())})
    metrics = SearchMetrics(folder.resolve().name, port)
    session = CapacitySession(campaign, searched, settings, run_options, SearchOutput(lines.live, metrics.publish))
    if stored is not None:
        session.restore(stored)
    try:
        lines.print(f"metrics: {metrics.url}")
        data = campaign.run(session.run(), f"loadchaos capacity --resume {folder}")
    finally:
        lines.clear()
        metrics.close()
    print_result(as_json, lambda: to_json(data), lambda: render(data, folder, width=terminal()[1]))
    sys.exit(data.exit_code)


class _Lines:
    """Lines on stderr; the live one is replaced, and only on a terminal."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()

    def live(self, text: str) -> None:
        if self._terminal:
            click.echo(f"\r\x1b[K{text[: terminal()[1] - 1]}", err=True, nl=False)

    def print(self, text: str) -> None:
        self.clear()
        echo(text, err=True)

    def clear(self) -> None:
        if self._terminal:
            click.echo("\r\x1b[K", err=True, nl=False)


def _settings(whole: Profile, name: str, overrides: Sequence[str], options: Given) -> tuple[Profile, CapacitySettings]:
    from loadchaos.analysis.capacity.result import SearchedPhase, SearchOptions
    from loadchaos.campaigns.capacity.search import SearchSettings
    from loadchaos.campaigns.capacity.session import LEAST_BUDGET_S, CapacitySettings
    from loadchaos.campaigns.capacity.step_profile import arrivals_of, refuse_unfit, searched_phase, with_one_phase
    from loadchaos.core.units import figure
    from loadchaos.server.discovery.client import parse_target

    launch = whole.target.launch
    if options["external"] is None and launch is None:
        raise OptionError("a capacity search needs a server: give --target URL, or --launch COMMAND")
    url = parse_target(options["external"] or (launch.url if launch is not None else ""))
    limits_s = _limits(options["limits"], whole)
    number = searched_phase(whole, options["phase"])
    refuse_unfit(whole, number, limits_s)
    profile = with_one_phase(whole, number)
    by = options["by"]
    most = options["most"] or _MOST[by]
    start = options["start"] or _start(profile, by)
    if by == "concurrency" and (start != round(start) or most != round(most)):
        raise OptionError("--start and --max: whole users were expected with --by concurrency")
    if start > most:
        raise OptionError(f"--start {figure(start)}: a load up to --max {figure(most)} was expected")
    wanted_load = options["at_least"]
    if by == "rate" and wanted_load is not None and most < wanted_load / _ROOM:
        raise OptionError(
            f"--max {figure(most)}: at least {figure(float(f'{wanted_load / _ROOM:.3g}'))} was expected with --at-least "
            f"{figure(wanted_load)}; only higher loads prove a rate, because random arrivals differ from it"
        )
    if options["budget"] and options["budget"] < LEAST_BUDGET_S:
        raise OptionError(f"--budget: at least {LEAST_BUDGET_S:.0f} s was expected, as no step is shorter")
    tolerance = _share("--tolerance", options["tolerance"], 0.005, 0.5)
    shown = str(Path(name).resolve()) if Path(name).is_file() else name
    given = {**options, "profile": shown, "overrides": tuple(overrides)}
    wanted = from_json(SearchOptions, {f.name: recorded(f.name, given[f.name]) for f in fields(SearchOptions)})
    goal = _share("--goal", options["goal"], 0.5, _MOST_GOAL)
    return profile, CapacitySettings(
        SearchSettings(by, start, most, tolerance, goal, limits_s, arrivals_of(profile)),
        options["budget"] or _BUDGET_S,
        wanted.target or url,
        options["at_least"],
        wanted,
        SearchedPhase(number=number, of=len(whole.load), traffic=tuple(profile.traffic_names())),
    )


def _start(profile: Profile, by: str) -> float:
    phase = profile.load[0]
    if by == "rate":
        return phase.rate or 1.0
    return float(phase.slots) if phase.kind == "closed" else 1.0


def _limits(text: str | None, profile: Profile) -> dict[str, float]:
    from loadchaos.profile.slo import parse_limits

    if text is None:
        if profile.slo is None:
            raise OptionError("no limits are known: give --slo, e.g. --slo ttft=2s,itl_p99=50ms, or slo in the profile")
        return profile.slo.limits_s()
    return parse_limits(text, "--slo")


def _share(option: str, text: str, least: float, most: float) -> float:
    from loadchaos.core.units import share

    try:
        value = share(text)
    except ValueError as e:
        raise OptionError(f"{option}: {e}; a share from {100 * least:g}% to {100 * most:g}% was expected") from None
    if not least <= value <= most:
        why = "; no number of requests proves 100 %" if option == "--goal" and value > most else ""
        raise OptionError(f"{option} {text}: a share from {100 * least:g}% to {100 * most:g}% was expected{why}")
    return value
