"""`loadchaos replay`: send recorded requests until a failure comes again."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from loadchaos.cli.common import (
    COUNT,
    PATH,
    Given,
    allow_foreign,
    authorize_option,
    campaign_in,
    echo,
    flag,
    option,
    options_of,
    out_option,
    resumed_command,
    say,
    server_options,
    target_option,
    together,
    wait_ready_option,
    yes_option,
)
from loadchaos.cli.help import Decorator
from loadchaos.core.errors import OptionError
from loadchaos.core.private import create_privately
from loadchaos.core.typed_json import from_json
from loadchaos.report.formatting import plural

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from loadchaos.campaigns.campaign import Campaign
    from loadchaos.campaigns.minimise.candidate_session import SearchResult
    from loadchaos.campaigns.replay.expected import ExpectedFailure
    from loadchaos.campaigns.replay.one_try import TryPlan
    from loadchaos.campaigns.replay.servers import ServerChoice
    from loadchaos.profile.request_trace import RequestTrace

_EXIT_CODES = """\b
Exit codes:
  0 reproduced at least once; with --against: fixed
  1 not reproduced in any try; with --against: it still fails
  2 a mistake in an option, or nothing to replay
  3 unknown: no try proved anything, or too few against the other server
  4 the server cannot be tested (it never became healthy)"""


def _times(_: click.Context, __: click.Parameter, value: str) -> int | None:
    if value == "auto":
        return None
    if not value.isdecimal() or not 1 <= int(value) <= 1000:
        raise OptionError(f"--times: a number from 1 to 1000 or auto was expected (got {value})")
    return int(value)


def replayed_options(what: str) -> Decorator:
    return together(
        option("--failure", "Failure that has to occur again, if the run has several.", "ID"),
        flag("--any-death", "Count any death or hang, not only the same failure."),
        flag("--resume", f"Continue the newest {what} of SOURCE in --out."),
        authorize_option("Allow the requests and attacks on this server. Repeatable."),
        wait_ready_option,
        yes_option,
        server_options,
        out_option("Folder for the result."),
    )


@click.command(epilog=_EXIT_CODES)
@click.argument("source", metavar="SOURCE", type=PATH)
@option("--launch", "Start this server for each try, e.g. 'vllm serve MODEL --port 8000'.", "COMMAND")
@target_option("-H --target", "Use this running server.")
@option(
    "--times",
    "Number of tries; auto: a statistical test decides.",
    "N",
    default="auto",
    show_default=True,
    callback=_times,
)
@option("--rounds", "Send the requests this many times in each try.", type=COUNT, default=1)
@flag("--share-server", "Use one launched server for several tries, until it dies.")
@option("--against", "Then try this launch command, which should prevent the failure.", "COMMAND")
@option("--export", "Write the trace and its bodies. Send nothing.", "DIR", type=PATH)
@option("--server-log", "Log of --target, as for `loadchaos run`.", "SOURCE", multiple=True)
@replayed_options("replay")
def replay(source: Path, out: Path, export: Path | None, **options: Any) -> None:
    """Send the requests of a run again until its failure occurs again.

    SOURCE is a run folder, an incident folder, a trace.jsonl, an OpenAI batch file or a Mooncake trace. Each try is a run
    on a fresh server. It counts if the same failure occurs with the same guilty frame.
    """
    from loadchaos.campaigns.replay.session import ReplayRequest, ReplaySession

    create_privately()
    if export is not None:
        _export(source, export, options)
        return
    if options["launch"] and options["target"]:
        raise OptionError("--launch and --target exclude each other: give one of them")
    campaign = replay_campaign(out, "replay", source, resume=options["resume"])
    trace, plan = prepare(source, campaign, options)
    against = None
    if options["against"]:
        from loadchaos.campaigns.replay.servers import from_launch

        against = from_launch(options["against"])
    request = ReplayRequest(plan, options["times"], against, trace.dialect)
    say(f"replaying {plural(len(trace.sends), 'request')} of {source} on {plan.server.describe()}")
    say(f"looking for {plan.expected.describe()}; tries are in {campaign.folder}")
    sys.exit(campaign.run(ReplaySession(campaign, trace, request, echo).run(), resumed_command()))


def begin_search(source: Path, out: Path, what: str, options: Given) -> tuple[Campaign, RequestTrace, TryPlan]:
    """Begin a search of candidates. Raises OptionError without a server that it can start."""
    campaign = replay_campaign(out, what, source, resume=options["resume"])
    trace, plan = prepare(source, campaign, options)
    if plan.server.launch is None:
        raise OptionError("a search needs a server that it can start: give its command with --launch")
    say(f"looking for {plan.expected.describe()}; the state is in {campaign.folder}")
    return campaign, trace, plan


def end_search(campaign: Campaign, search: Coroutine[Any, Any, SearchResult]) -> NoReturn:
    found = campaign.run(search, resumed_command())
    echo(found.text)
    sys.exit(found.exit_code)


def prepare(source: Path, campaign: Campaign, options: Given) -> tuple[RequestTrace, TryPlan]:
    from loadchaos.campaigns.replay import bodies
    from loadchaos.campaigns.replay.one_try import TryPlan
    from loadchaos.campaigns.replay.servers import recorded_parts
    from loadchaos.campaigns.replay.sources import read_source, without_later

    _refuse_links(source)
    found = read_source(source, campaign.folder)
    expected = expected_failure(source, found, options)
    server = _server(source, found, options)
    whole = len(found.sends)
    found = without_later(source, found, expected.id)
    if len(found.sends) < whole:
        say(f"note: {plural(whole - len(found.sends), 'request')} sent after the failure: left out")
    whole = len(found.sends)
    found = bodies.fitting(found)
    if len(found.sends) < whole:
        say(f"note: only the newest {len(found.sends):,} of {whole:,} requests are replayed: their bodies fit 4 GiB")
    plan = TryPlan(
        server, expected, options_of(options, target=None, argv=sys.argv), recorded_parts(found), options.get("rounds") or 1,
        share=bool(options.get("share_server")), interrupts=campaign.interrupts,
    )  # fmt: skip
    return bodies.stored(found, campaign.folder), plan


def expected_failure(source: Path, trace: RequestTrace, options: Given) -> ExpectedFailure:
    from loadchaos.analysis.verdict.model import FailureResult
    from loadchaos.campaigns.replay.expected import ExpectedFailure, choose
    from loadchaos.core.ledger.folder import RunFolder
    from loadchaos.run.finalize import read_verdict

    wanted, any_death = options["failure"], options["any_death"]
    run = RunFolder(source if source.is_dir() else source.parent)
    of_incident = (source / "incident.json").is_file()
    if of_incident:
        run = RunFolder(source.parent.parent)
        wanted = wanted or str((trace.header.failure or {}).get("id") or "") or None
    if run.events.exists() and source.is_dir():
        return choose(read_verdict(run).failures, wanted, str(source), any_death=any_death)
    if trace.header.failure is not None and wanted in (None, trace.header.failure.get("id")):
        failure = from_json(FailureResult, trace.header.failure)
        found = choose([failure], None, str(source), any_death=any_death)
        return found if trace.header.failure.get("severity") else replace(found, severity="")  # not told: maybe deadly
    if any_death:
        return ExpectedFailure("", any_death=True)
    if wanted is not None:
        return ExpectedFailure(wanted)
    raise OptionError(f"{source}: the trace names no failure: give its id with --failure ID, or use --any-death")


def _server(source: Path, trace: RequestTrace, options: Given) -> ServerChoice:
    from loadchaos.campaigns.replay import servers
    from loadchaos.server.discovery.client import parse_target

    if options["launch"]:
        found = servers.from_launch(options["launch"])
    elif options.get("target"):
        found = servers.ServerChoice(url=parse_target(options["target"]))
    else:
        found = servers.of_source(trace, takes_target="target" in options)
        if not servers.is_embedded(found):
            folder = source if source.is_dir() else source.parent
            allow_foreign(folder, [f"starts {servers.whole_command(found)}"], options, "type it with --launch")
    waits_s = options.get("wait_ready")
    return found if waits_s is None else replace(found, ready_within_s=waits_s)


def _refuse_links(source: Path) -> None:
    """Refuse links in what is read with a source: the run of an incident, the bodies and the profile beside a file."""
    from loadchaos.core import own_folder
    from loadchaos.core.ledger.folder import RunFolder

    run, folder = source.parent.parent, source.parent
    if source.is_dir():
        of_incident = (source / "incident.json").is_file() and RunFolder(run).events.exists()
        own_folder.refuse_links(run if of_incident else source)
    elif not own_folder.is_own(folder):
        own_folder.inside(folder, "profile.yaml")
        own_folder.refuse_links(own_folder.inside(folder, "bodies"))


def replay_campaign(out: Path, what: str, source: Path, *, resume: bool) -> Campaign:
    """A new replay, or the newest of the same source."""
    from loadchaos.core.ledger.recorder import create_folder

    name = f"{what}-{source.resolve().stem}"
    if not resume:
        return campaign_in(create_folder(out, name).path, what)
    earlier = sorted(out.glob(f"{name}-*/{what}.json"), key=lambda p: p.stat().st_mtime)
    if not earlier:
        raise OptionError(f"--resume: {out} has no {what} of {source}; start one without --resume")
    return campaign_in(earlier[-1].parent, what)


def _export(source: Path, folder: Path, options: Given) -> None:
    from loadchaos.campaigns.replay import bodies
    from loadchaos.campaigns.replay.sources import read_source
    from loadchaos.profile import request_trace

    _refuse_links(source)
    found = read_source(source, folder)
    trace = bodies.stored(bodies.fitting(found), folder)
    try:
        failure = expected_failure(source, found, options).to_json()
    except OptionError as e:
        say(f"note: the trace names no failure: {e}")
    else:
        trace = replace(trace, header=trace.header.model_copy(update={"failure": failure}))
    echo(f"{request_trace.write(trace, folder)}: {plural(len(trace.sends), 'request')}")
