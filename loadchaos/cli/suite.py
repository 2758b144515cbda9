"""`loadchaos suite`: run every shipped profile that fits a server."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadchaos.cli.common import (
    FOLDER,
    Given,
    authorize_option,
    json_option,
    option,
    out_option,
    print_result,
    probed_server,
    resumed_command,
    say,
    server_log_option,
    server_options,
    shared_option,
    terminal,
    time_option,
    url_argument,
    url_of,
    wait_ready_option,
)
from loadchaos.cli.environment import from_openai_variables
from loadchaos.cli.profiles import profile_of
from loadchaos.cli.run import run_options, run_parameters, with_launch
from loadchaos.core import own_folder
from loadchaos.core.errors import OptionError, ProfileError
from loadchaos.core.limits import READY_WITHIN_S
from loadchaos.core.private import create_privately
from loadchaos.core.typed_json import from_json, to_json

if TYPE_CHECKING:
    from loadchaos.campaigns.campaign import Campaign
    from loadchaos.profile.profile import Profile
    from loadchaos.report.suite_result import SuiteResult
    from loadchaos.run.probe import ProbeResult

_EXIT_CODES = """\b
Exit codes: the worst of the runs.
  0 every profile that fits passed, 1 one failed, 3 one proved nothing, or
  none fits, 2 a mistake in an option, 4 the server cannot be tested,
  70 a bug of loadchaos, 130 Ctrl-C, 143 SIGTERM; continue with --resume."""


@click.command(epilog=_EXIT_CODES)
@url_argument
@option("--launch", "Start this server for each profile, in place of URL.", "COMMAND")
@option("--only", "Run only this profile. Repeatable.", "PROFILE", multiple=True)
@option("--skip", "Leave this profile out. Repeatable.", "PROFILE", multiple=True)
@option(
    "--set overrides",
    "Override a value of one profile, e.g. abort_storm:load.1.burst=600. Repeatable.",
    "PROFILE:PATH=VALUE",
    multiple=True,
)
@server_options
@authorize_option("Allow attacks on this server. Repeatable.")
@shared_option
@server_log_option
@time_option("-t --duration duration", "End each load after this time.", positive=True)
@wait_ready_option
@out_option("Folder for the result.")
@option("--seed", "Seed of the first run; later runs have the next numbers.", type=int, default=0, show_default=True)
@option(
    "--resume", "Continue the suite of this folder: profiles that had finished are not run again.", "DIR", type=FOLDER
)
@json_option("Print suite.json.")
def suite(
    url: str | None, target_option: str | None, overrides: tuple[str, ...], *, as_json: bool, **options: Any
) -> None:
    """Run all shipped profiles that fit a server, one after the other.

    The result is one page with a verdict for each profile: suite.html, suite.json and a run folder for each in
    runs/suite-UTC. Attacks are made only on a local engine, or with --authorize.
    """
    from loadchaos.campaigns.campaign import Campaign
    from loadchaos.core import resources
    from loadchaos.report.terminal.suite import render

    create_privately()
    given = _overrides(overrides, resources.profiles())
    profiles = {name: _profile(name, given.get(name, ())) for name in resources.profiles()}
    options["target"] = url_of(url, target_option)
    replicas = [replica.url for profile in profiles.values() for replica in profile.target.replicas]
    options |= from_openai_variables(options, needs_target=options["launch"] is None, replicas=replicas)
    target = options["target"]
    if (target is None) == (options["launch"] is None):
        raise OptionError("a suite needs the URL of a server, or --launch COMMAND")
    if options["resume"]:
        own_folder.refuse_links(options["resume"])
    before = _stored(options["resume"]) if options["resume"] else None
    campaign = Campaign(options["resume"] or options["out"] / f"suite-{datetime.now(UTC):%Y%m%dT%H%M%SZ}", say)
    work = _suite(campaign, target, profiles, {**options, "before": before})
    found, code = campaign.run(work, resumed_command(campaign.folder))
    print_result(as_json, lambda: to_json(found), lambda: render(found, campaign.folder, width=terminal()[1]))
    sys.exit(code)


def _stored(folder: Path) -> SuiteResult:
    from loadchaos.campaigns.campaign import saved
    from loadchaos.report.suite_result import SuiteResult

    missing = f"--resume {folder}: it has no suite.json; start a new suite"
    return from_json(SuiteResult, saved(folder / "suite.json", 1, "start a new suite", missing))


async def _suite(
    campaign: Campaign, target: str | None, profiles: Mapping[str, Profile], options: Given
) -> tuple[SuiteResult, int]:
    from loadchaos.campaigns.replay.servers import from_launch, redacted_command
    from loadchaos.campaigns.suite.selection import SuiteChoice, select
    from loadchaos.campaigns.suite.session import SuiteRecord, SuiteSession

    probed = await (
        _probe(target, profiles, options) if target else _probe_launched(profiles, campaign.folder, options)
    )
    choice = SuiteChoice(options["only"], options["skip"], options["authorize"] if target else None)
    selected = select(profiles, probed.fits, choice, probed.facts.base_url)
    shown = probed.facts.base_url if target else redacted_command(from_launch(options["launch"]))
    record = SuiteRecord(campaign, shown, probed.facts)
    for entry in selected:
        record.plan(entry.profile.name, entry.profile.about, entry.reasons)
    campaign.lock("loadchaos suite")
    if options["before"] is not None:
        record.restore(options["before"])
    given = {**run_parameters([]), **options, "target": target, "no_live": True, "exporter_port": 0}
    settings = run_options(given, None, {})
    session = SuiteSession(record, settings)
    launch = options["launch"]
    chosen = [entry.profile for entry in selected if not entry.reasons]
    code = await session.run([with_launch(profile, launch, None) if launch else profile for profile in chosen])
    return record.result(ended=True), code


def _profile(name: str, overrides: Sequence[str]) -> Profile:
    """Load a shipped profile, with mistakes in --set as they were typed."""
    try:
        return profile_of(name, overrides)
    except ProfileError as e:
        mistakes = [f"--set {name}:{m.removeprefix('--set ')}" if m.startswith("--set ") else m for m in e.mistakes]
        raise ProfileError(mistakes) from None


def _overrides(texts: Sequence[str], names: Collection[str]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in texts:
        name, _, override = text.partition(":")
        if name not in names:
            raise OptionError(f"--set {text!r}: PROFILE:PATH=VALUE was expected, with one of {', '.join(names)}")
        found.setdefault(name, []).append(override)
    return found


async def _probe(url: str, profiles: Mapping[str, Profile], options: Given) -> ProbeResult:
    from loadchaos.core.errors import TargetError

    probed = await probed_server(url, profiles, options)
    if probed.trouble:
        raise TargetError(probed.trouble)
    return probed


async def _probe_launched(profiles: Mapping[str, Profile], folder: Path, options: Given) -> ProbeResult:
    """Start the server once to find out which profiles fit it."""
    from loadchaos.run.held_server import HeldServer
    from loadchaos.server.process.launcher import parse_command_line

    server = HeldServer(parse_command_line(options["launch"]), folder / "probe")
    try:
        await server.start(options["wait_ready"] or READY_WITHIN_S)
        return await _probe(server.url, profiles, options)
    finally:
        await server.stop()
