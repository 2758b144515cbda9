"""`loadchaos hunt`: find failures that no profile describes."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadchaos.cli.common import (
    COUNT,
    PATH,
    Given,
    authorize_option,
    campaign_in,
    echo,
    flag,
    launch_option,
    launched_server_options,
    option,
    out_option,
    parse_header_options,
    say,
    time_option,
    wait_ready_option,
    yes_option,
)
from loadchaos.cli.resume import recorded, restored
from loadchaos.core.errors import OptionError
from loadchaos.core.limits import READY_WITHIN_S
from loadchaos.core.private import create_privately

if TYPE_CHECKING:
    from loadchaos.campaigns.hunt.slot import SlotSettings
    from loadchaos.server.process.launcher import CommandLine

_BUDGET_S, _WORKLOAD_S = 7200.0, 60.0
_FIXED = ("launch", "seed", "requests", "no_feedback")
"""Options that the choice of workloads depends on: a resumed hunt must have the same."""
_EXIT_CODES = """\b
Exit codes:
  0 nothing was found; the last lines say what that is worth
  1 something was found
  2 a mistake in an option or the gene file
  3 unknown: too few workloads proved anything
  4 the server cannot be tested (it never became healthy)
  130 Ctrl-C, 143 SIGTERM; continue with --resume"""


@click.command(epilog=_EXIT_CODES)
@launch_option
@time_option("--budget", "Time for the whole hunt (default: 2h).", positive=True)
@option("--seed", "Seed of the choice of workloads.", type=int, default=0, show_default=True)
@option("--genes", "YAML file of genes to use or leave out.", "FILE", type=PATH)
@option("--parallel", "Servers at once, on successive ports.", type=click.IntRange(1, 64), default=1, show_default=True)
@option("--findings", "End after N findings.", "N", type=COUNT)
@option(
    "--requests", "Requests of the largest workload.", type=click.IntRange(8, 100_000), default=64, show_default=True
)
@time_option("--workload-time", "End a workload after this time (default: 60s).", positive=True)
@flag("--no-feedback", "Draw every workload at random. For comparison.")
@flag("--resume", "Continue the newest hunt in --out, with its options.")
@authorize_option("Allow the workloads on this server. Repeatable.")
@wait_ready_option
@yes_option
@launched_server_options
@out_option("Folder for the hunt.")
@click.pass_context
def hunt(context: click.Context, /, out: Path, **options: Any) -> None:
    """Find failures that no profile describes.

    Sends small workloads made of genes to a server that loadchaos starts, keeps those that show something new in its log,
    counters or states, and changes them. What is found is replayed and minimised.
    """
    import orjson

    from loadchaos.campaigns.hunt import gene_file
    from loadchaos.campaigns.hunt.findings import Reproduction
    from loadchaos.campaigns.hunt.journal import SETTINGS, HuntSettings, read_settings
    from loadchaos.campaigns.hunt.session import HuntSession
    from loadchaos.campaigns.hunt.workers import SlotProcess
    from loadchaos.campaigns.replay.servers import from_launch
    from loadchaos.core.ledger.recorder import create_folder

    create_privately()
    folder = newest_hunt(out) if options["resume"] else None
    stored = HuntSettings() if folder is None else read_settings(folder)
    names = {f.name for f in fields(HuntSettings)} & options.keys() - {"genes"}
    if folder is not None:
        options.update(restored(context, {name: getattr(stored, name) for name in names}, _FIXED, "hunt", folder))
    if not options["launch"]:
        raise OptionError("a hunt needs a server that it can start: give its command with --launch")
    server = from_launch(options["launch"])
    chosen = gene_file.read(options["genes"]) if options["genes"] is not None else stored.genes
    if folder is not None and orjson.dumps(chosen) != orjson.dumps(stored.genes):
        raise OptionError("--genes differs from those of the hunt; start a new hunt")
    budget_s = options["budget"] or stored.budget_s or _BUDGET_S
    shown: Given = {name: recorded(name, options[name]) for name in names}
    settings = replace(stored, budget_s=budget_s, genes=chosen, **shown)
    assert server.launch is not None
    slots = _slots(server.launch, options)
    folder = folder or create_folder(out, "hunt").path
    campaign = campaign_in(folder, "hunt")
    campaign.write({SETTINGS: settings})
    say(f"hunting on {settings.launch}; files are in {folder}")
    runners = [SlotProcess(slot, folder / "servers", number) for number, slot in enumerate(slots, 1)]
    reproduction = Reproduction(campaign, server.describe(), _passed_on(options))
    session = HuntSession(settings, campaign, runners, reproduction)
    code = campaign.run(session.run(), f"loadchaos hunt --resume --out {out}")
    echo(f"report: {folder / 'report.html'}")
    sys.exit(code)


def newest_hunt(out: Path) -> Path:
    """Folder of the newest hunt. A hunt without workloads, whose server did not start, is the last choice."""
    from loadchaos.campaigns.hunt.journal import SETTINGS, rows_of

    found = [file.parent for file in out.glob("hunt-*/hunt.json")]
    if not found:
        raise OptionError(f"--resume: {out} has no hunt; start one without --resume")
    return max(found, key=lambda p: (any(rows_of(p)), (p / SETTINGS).stat().st_mtime))


def _slots(line: CommandLine, options: Given) -> list[SlotSettings]:
    """Settings of each server of a hunt. Raises OptionError where a variable for a header is missing."""
    from loadchaos.campaigns.hunt.slot import SlotSettings
    from loadchaos.run.options import Options, headers_of_options
    from loadchaos.server.process.launcher import refuse_taken_port

    headers = parse_header_options(options["headers"])
    headers_of_options(Options(api_key_env=options["api_key_env"], headers=headers))
    first = SlotSettings(
        line.argv,
        line.url,
        env=dict(line.env),
        headers=headers,
        ready_within_s=options["wait_ready"] or READY_WITHIN_S,
        most_load_s=options["workload_time"] or _WORKLOAD_S,
        **{name: options[name] for name in ("model", "api_key_env", "ca", "insecure", "authorize")},
    )
    slots = [first]
    for i in range(1, options["parallel"]):
        argv, url = _on_port(line, int(line.url.rpartition(":")[2]) + i)
        slots.append(replace(first, argv=argv, url=url))
    for slot in slots:
        refuse_taken_port(slot.url)
    return slots


def _on_port(line: CommandLine, port: int) -> tuple[tuple[str, ...], str]:
    names, argv, found = ("--port", "--server-port"), list(line.argv), False
    for i, word in enumerate(argv):
        name, sign, _ = word.partition("=")
        if name in names:
            found = True
            if sign:
                argv[i] = f"{name}={port}"
            elif i + 1 < len(argv):
                argv[i + 1] = str(port)
    if not found:
        raise OptionError("--parallel: the launch command needs its --port, which is different for each server")
    return tuple(argv), f"{line.url.rpartition(':')[0]}:{port}"


def _passed_on(options: Given) -> list[str]:
    found = []
    for name, word in (("model", "--model"), ("api_key_env", "--api-key-env"), ("ca", "--ca")):
        found += [word, str(options[name])] if options[name] else []
    found += [word for text in options["headers"] for word in ("--header", text)]
    found += [word for text in options["authorize"] for word in ("--authorize", text)]
    found += ["--insecure"] if options["insecure"] else []
    return found
