"""`loadchaos doctor`: known bugs of a server, without load."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from loadchaos.cli.common import (
    FOLDER,
    flag,
    json_option,
    named_values,
    option,
    options_of,
    print_result,
    server_options,
    text_width,
)
from loadchaos.core.errors import OptionError, did_you_mean

if TYPE_CHECKING:
    from loadchaos.analysis.advisories.condition import ServerFacts


@click.command()
@click.argument("server", required=False, metavar="[URL | 'COMMAND']")
@option("--version", "Engine and version, e.g. vllm==0.32.0.", "ENGINE==VERSION")
@option("--flags", "Launch flags, with --version or for a server that does not tell them.", "FLAGS")
@option("--log", "Log of the server; its start-up lines tell version and flags.", "FILE")
@option(
    "--fact facts",
    "What the server does not tell: hardware, multimodal, hybrid, moe, model. Repeatable.",
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
@server_options
def doctor(server: str | None, as_json: bool, everything: bool, **options: Any) -> None:
    """Report which known bugs a server has, and what avoids them.

    Sends no load: from a URL at most 20 GET requests; from a command line, a version or a log none. The bugs are those of
    docs/advisories.md.

    Exit codes: 0 nothing that applies ends the engine or gives wrong answers, 1 something does, 2 a mistake in the
    options, 4 the server cannot be read.
    """
    from loadchaos.analysis.advisories.advisory import all_shipped
    from loadchaos.analysis.advisories.advisory_file import read_folder
    from loadchaos.analysis.advisories.condition import judge_all
    from loadchaos.core.redact import Redactor
    from loadchaos.run.doctor_page import DoctorResult, page

    own = read_folder(options["advisories"]) if options["advisories"] is not None else []
    try:
        facts = _facts(server, options)
    except OptionError as e:
        raise OptionError(Redactor().text(str(e))) from None
    advisories = {a.id: a for a in (*all_shipped(facts.engine), *own)}
    result = DoctorResult(facts, judge_all(list(advisories.values()), facts))
    print_result(as_json, result.to_json, lambda: page(result, text_width(), everything=everything))
    sys.exit(result.exit_code)


def _facts(server: str | None, options: dict[str, Any]) -> ServerFacts:
    """Facts of all sources that were given, what was typed before what the server says."""
    from loadchaos.analysis.advisories.condition import ServerFacts
    from loadchaos.run import doctor as learned

    url = server if server is not None and "://" in server.split(" ", 1)[0] else None
    if (server is not None) + (options["log"] is not None) > 1:
        raise OptionError("one of a URL, a command and --log was expected")
    if url is not None:
        found = _of_url(url, options)
    elif server is not None:
        found = learned.of_command(server, "the command", Path.cwd())
    elif options["log"] is not None:
        found = _of_log(options["log"], options["version"])
    elif options["version"] is not None:
        found = ServerFacts(learned.named_version(options["version"])[0])
    else:
        raise OptionError("which server? Give its URL, its command in quotes, --version ENGINE==VERSION, or --log FILE")
    if options["version"] is not None:
        name, version, more, notes = learned.named_version(options["version"])
        if name != found.engine:
            raise OptionError(f"--version {options['version']!r}: the server is {found.engine}")
        found = replace(
            found, version=version, facts={**found.facts, **more}, notes=list(dict.fromkeys([*found.notes, *notes]))
        )
    if options["flags"] is not None:
        found = learned.with_flags(
            found, learned.parse_flags_option(options["flags"], found.engine), "--flags", Path.cwd()
        )
    given = learned.given_facts(named_values("--fact", options["facts"], "NAME=VALUE"))
    return replace(found, facts={**found.facts, **given}, never=_traffic(options["without"]))


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
