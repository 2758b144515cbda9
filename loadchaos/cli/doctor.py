"""`loadchaos doctor`: known bugs of a server, without load."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_args

import click

from loadchaos.cli.common import (
    COUNT,
    FOLDER,
    PATH,
    Given,
    flag,
    json_option,
    named_values,
    option,
    options_of,
    out_option,
    print_result,
    resumed_command,
    say,
    server_options,
    text_width,
    together,
    wait_ready_option,
)
from loadchaos.cli.help import in_group
from loadchaos.core.errors import OptionError, did_you_mean

if TYPE_CHECKING:
    from loadchaos.analysis.advisories.advisory import Advisory
    from loadchaos.analysis.advisories.condition import ServerFacts
    from loadchaos.campaigns.bisect.installs import InstallPlan
    from loadchaos.campaigns.prove.session import ProvePlan
    from loadchaos.campaigns.replay.servers import ServerChoice

_PROOF_OPTIONS = together(
    *(
        in_group("Proof", one)
        for one in (
            flag("--prove", "Run the reproducers on servers that --launch starts. It kills these servers."),
            option(
                "--launch",
                "With --prove: launch command of the server. Repeatable: a reproducer has the first one that it can run on.",
                "COMMAND",
                multiple=True,
            ),
            option("--releases", "With --prove: the releases of a range, or single ones: A..B or A,B,C.", "A..B"),
            option(
                "--install",
                "With --releases: command that installs one, e.g. '{venv}/bin/pip install vllm=={version}'.",
                "COMMAND",
            ),
            option("--package", "With --releases: package whose releases pip lists (default: --install's).", "NAME"),
            option(
                "--venvs", "With --releases: folder of the installed ones (default: as for `loadchaos bisect`).", "DIR",
                type=PATH,
            ),
            option("--times", "Fresh servers for each reproducer.", "N", type=COUNT, default=3, show_default=True),
            flag("--dry-run", "With --prove: write down what would be run and what is predicted. Start nothing."),
            flag("--resume", "Continue the newest proof of this engine in --out."),
            wait_ready_option,
            out_option("Folder for the proof."),
        )
    )
)  # fmt: skip


@click.command()
@click.argument("server", required=False, metavar="[URL | 'COMMAND']")
@option("--version", "Engine and version, e.g. vllm==0.32.0.", "ENGINE==VERSION")
@option("--flags", "Launch flags, with --version or for a server that does not tell them.", "FLAGS")
@option("--log", "Log of the server; its start-up lines tell version and flags.", "FILE")
@option(
    "--fact facts",
    "What the server does not tell: hardware, multimodal, hybrid, moe, family, model, connector, lmcache, model_runner, "
    "env.VARIABLE. Repeatable.",
    "NAME=VALUE",
    multiple=True,
)
@option(
    "--without",
    "Traffic that is never sent, e.g. images; bugs that need it do not apply. Repeatable.",
    "TRAFFIC",
    multiple=True,
)
@option("--advisories", "Use these advisory files as well.", "DIR", type=FOLDER)
@flag("--all everything", "Print all that applies or may apply in full.")
@json_option()
@_PROOF_OPTIONS
@server_options
def doctor(server: str | None, as_json: bool, everything: bool, **options: Any) -> None:
    """Report which known bugs a server has, and what avoids them.

    Sends no load: from a URL at most 20 GET requests; from a command line, a version or a log none. The bugs are those of
    docs/advisories.md. With --prove their reproducers are run on servers of its own.

    Exit codes: 0 nothing that applies ends the engine or gives wrong answers, 1 something does, 2 a mistake in the
    options, 3 with --prove: something is unknown, 4 the server cannot be read.
    """
    from loadchaos.analysis.advisories.advisory import all_shipped
    from loadchaos.analysis.advisories.advisory_file import read_folder
    from loadchaos.analysis.advisories.condition import judge_all
    from loadchaos.core.redact import Redactor
    from loadchaos.run.doctor_page import DoctorResult, page

    own = read_folder(options["advisories"]) if options["advisories"] is not None else []
    if options["prove"]:
        _prove(server, own, options, as_json=as_json)
    for name in ("launch", "releases", "install", "package", "venvs", "dry_run", "resume"):
        if options[name]:
            raise OptionError(f"--{name.replace('_', '-')} needs --prove")
    try:
        facts = _facts(server, options)
    except OptionError as e:
        raise OptionError(Redactor().text(str(e))) from None
    advisories = {a.id: a for a in (*all_shipped(facts.engine), *own)}
    result = DoctorResult(facts, judge_all(list(advisories.values()), facts))
    print_result(as_json, result.to_json, lambda: page(result, text_width(), everything=everything))
    sys.exit(result.exit_code)


def _prove(server: str | None, own: Sequence[Advisory], options: Given, *, as_json: bool) -> NoReturn:
    """Run the reproducers on servers of our own, and print what was seen: also of a proof that is interrupted."""
    from loadchaos.campaigns.prove import cells
    from loadchaos.campaigns.prove.session import ProveSession
    from loadchaos.cli.replay import replay_campaign
    from loadchaos.core.private import create_privately

    if server is not None or options["log"] is not None:
        raise OptionError("--prove judges the server that --launch starts: leave out the URL, the command and --log")
    if not options["launch"]:
        raise OptionError("--prove needs a server of its own: --launch 'vllm serve MODEL --port 8000'")
    if bool(options["releases"]) != bool(options["install"]):
        raise OptionError(
            "--releases and --install belong together: --install '{venv}/bin/pip install vllm=={version}'"
        )
    if options["releases"] and options["version"] is not None:
        raise OptionError("--version: --releases already names the versions; leave one of them out")
    create_privately()
    with contextlib.ExitStack() as stack:
        name, plan = _proof_plan(own, options, stack)
        campaign = replay_campaign(options["out"], "doctor", Path(name), resume=options["resume"])
        session = ProveSession(campaign, plan)
        try:
            if not options["dry_run"]:
                campaign.run(session.run(), resumed_command())
        finally:
            found = list(session.cells.values())
            print_result(as_json, lambda: cells.data(found), lambda: cells.page(found, text_width()))
            say(f"the proof is in {campaign.folder}")
    sys.exit(0 if options["dry_run"] else cells.exit_code(found))


def _proof_plan(own: Sequence[Advisory], options: Given, stack: contextlib.ExitStack) -> tuple[str, ProvePlan]:
    """Engine, and the reproducers with the servers of each release. `stack` closes the installer."""
    from loadchaos.analysis.advisories.advisory import all_shipped
    from loadchaos.campaigns.bisect.installs import InstallPlan, ReleaseInstaller
    from loadchaos.campaigns.campaign import Settings
    from loadchaos.campaigns.prove.reproducers import find
    from loadchaos.campaigns.prove.session import ProvePlan
    from loadchaos.campaigns.replay.servers import from_launch, without_port
    from loadchaos.core.redact import Redactor

    launches, install = options["launch"], options["install"] or ""
    prepare = None
    if install:
        installs = [InstallPlan(install, launch, options["package"], options["venvs"]) for launch in launches]
        for one in installs:
            one.check()
        releases = _releases(options["releases"], installs[0])
        servers = {r: [_launched(one.filled(one.launch, r), options, r) for one in installs] for r in releases}
        installer = ReleaseInstaller(installs[0], say)
        stack.callback(installer.close)
        prepare = installer.prepare
    else:
        alone = [_launched(launch, options) for launch in launches]
        version = alone[0][1].version
        if version is None:
            raise OptionError("the version of the server is not known: give --version ENGINE==VERSION")
        servers = {str(version.value): alone}
    engines = sorted({facts.engine for found in servers.values() for _, facts in found})
    if len(engines) > 1:
        raise OptionError(f"--launch: commands of one engine were expected (got {', '.join(engines)})")
    advisories = {a.id: a for a in (*all_shipped(engines[0]), *own) if a.engine == engines[0]}
    found = find(list(advisories.values()), options["advisories"])
    settings: Settings = {
        "command of --launch": tuple(without_port(from_launch(launch)) for launch in launches),
        "command of --install": shlex.join(Redactor.from_environment(os.environ).argv(shlex.split(install))),
    }
    return engines[0], ProvePlan(found, servers, options["times"], settings, prepare)


def _releases(text: str, installs: InstallPlan) -> list[str]:
    from loadchaos.campaigns.bisect.installs import releases_between

    parts = [part.strip() for part in text.split(",")]
    return [r for part in parts for r in (releases_between(part, installs) if ".." in part else [part])]


def _launched(command: str, options: Given, release: str | None = None) -> tuple[ServerChoice, ServerFacts]:
    """A server that is started here, with its facts. Raises OptionError for one on another machine."""
    from loadchaos.campaigns.replay.servers import from_launch
    from loadchaos.core.urls import LOOPBACK, host_and_port
    from loadchaos.run.doctor import on_this_machine

    server = from_launch(command)
    assert server.launch is not None
    if host_and_port(server.launch.url)[0].strip("[]") not in LOOPBACK:
        raise OptionError(f"--launch: {server.launch.url} is not on this machine; --prove takes --host 127.0.0.1")
    if options["wait_ready"] is not None:
        server = replace(server, ready_within_s=options["wait_ready"])
    return server, on_this_machine(
        _facts(command, {**options, "version": None if release else options["version"]}), release
    )


def _facts(server: str | None, options: dict[str, Any]) -> ServerFacts:
    """Facts of all sources that were given, what was typed before what the server says."""
    from loadchaos.analysis.advisories.condition import ServerFacts
    from loadchaos.run import doctor as learned

    if server is not None and "==" in server.partition(" ")[0]:
        raise OptionError(f"{server!r} is a version: give it as --version {server}")
    url = server if server is not None and "://" in server.split(" ", 1)[0] else None
    if (server is not None) + (options["log"] is not None) > 1:
        raise OptionError("one of a URL, a command and --log was expected")
    given = learned.named_version(options["version"]) if options["version"] is not None else None
    if url is not None:
        found = _of_url(url, options)
    elif server is not None:
        found = learned.of_command(server, "the command", Path.cwd(), given[0] if given is not None else None)
    elif options["log"] is not None:
        found = _of_log(options["log"], options["version"])
    elif given is not None:
        found = ServerFacts(given[0])
    else:
        raise OptionError("which server? Give its URL, its command in quotes, --version ENGINE==VERSION, or --log FILE")
    if given is not None:
        name, version, more, notes = given
        if name != found.engine:
            raise OptionError(f"--version {options['version']!r}: the server is {found.engine}")
        found = replace(
            found, version=version, facts={**found.facts, **more}, notes=list(dict.fromkeys([*found.notes, *notes]))
        )
    if options["flags"] is not None:
        found = learned.with_flags(
            found, learned.parse_flags_option(options["flags"], found.engine), "--flags", Path.cwd()
        )
    typed = learned.given_facts(named_values("--fact", options["facts"], "NAME=VALUE"))
    found = replace(found, facts={**found.facts, **typed}, never=_traffic(options["without"]))
    return learned.with_connector_note(found)


def _of_log(path: str, version: str | None) -> ServerFacts:
    from loadchaos.cli.logfiles import lines
    from loadchaos.run.doctor import of_log

    return of_log(lines(path), version)


def _of_url(url: str, options: dict[str, Any]) -> ServerFacts:
    import asyncio

    from loadchaos.run.discovery_client import discovery_client
    from loadchaos.run.doctor import of_url
    from loadchaos.run.options import headers_of_options
    from loadchaos.server.discovery.client import parse_target

    settings = options_of(options)
    base = parse_target(url)
    admin = parse_target(options["admin_url"]) if options["admin_url"] else base

    async def asked() -> ServerFacts:
        async with discovery_client(
            base, admin, headers=headers_of_options(settings), tls=settings.tls.context(), model=None
        ) as client:
            return await of_url(client, version=options["version"])

    return asyncio.run(asked())


def _traffic(names: Sequence[str]) -> Sequence[str]:
    from loadchaos.analysis.advisories.advisory import Traffic

    known = get_args(Traffic)
    if wrong := next((name for name in names if name not in known), None):
        raise OptionError(f"--without {wrong}: unknown traffic{did_you_mean(wrong, known)}; known: {', '.join(known)}")
    return names
