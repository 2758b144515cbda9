"""Command `launch`: start a server and explain why it fails to start."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadchaos.cli.common import ca_option, echo, flag, insecure_option, option, out_option, time_option
from loadchaos.core.limits import READY_WITHIN_S
from loadchaos.core.private import create_privately

if TYPE_CHECKING:
    from loadchaos.server.process.launcher import CommandLine


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
@option("--url", "Address of the server (default: read from its --host and --port).", "URL")
@time_option("--ready-within", "Maximum time until the server is ready (default: 20m).")
@flag("--check", "Stop the server as soon as it is ready.")
@ca_option
@insecure_option
@out_option("Folder for the log.", "launches")
def launch(
    command: tuple[str, ...], url: str | None, ready_within: float | None, check: bool, out: Path, **tls: Any
) -> None:
    """Start a server and report why it does not become ready.

    COMMAND is the server's command line, quoted or not: vllm serve MODEL --port 8000. A server is ready if /health and
    one request succeed. Ctrl-C stops the server. The server also stops if loadchaos is killed.

    Exit codes: 0 it became ready (--check), 1 it exited later, 4 it did not become ready, 130 Ctrl-C.
    """
    from dataclasses import replace
    from functools import partial

    from loadchaos.core.ledger.recorder import create_folder
    from loadchaos.core.tls import TlsSettings
    from loadchaos.run.interrupts import Interrupts
    from loadchaos.run.launch_only import StandaloneLaunch, StartResult
    from loadchaos.server.discovery.client import parse_target
    from loadchaos.server.process.launcher import parse_command_line

    create_privately()
    server = parse_command_line(command[0] if len(command) == 1 else command)
    if url is not None:
        server = replace(server, url=parse_target(url))
    folder = create_folder(out, "launch")
    ready_within_s = ready_within or READY_WITHIN_S
    say = partial(echo, err=True)
    settings = TlsSettings(**tls)
    interrupts = Interrupts()

    async def launched() -> StartResult:  # it needs the running loop
        launch = StandaloneLaunch(server, folder, say, settings, interrupts)
        return await launch.run(ready_within_s, check=check)

    result = interrupts.run(launched())
    echo(f"loadchaos: {result.text}", err=True)
    if result.log is not None:
        _classify(result.log)
        name_doctor(server)
    sys.exit(result.exit_code)


def name_doctor(server: CommandLine) -> None:
    """Print the command that compares the server with known bugs, without its secrets."""
    import os
    import shlex

    from loadchaos.analysis.advisories.command_line import engine_of
    from loadchaos.core.redact import Redactor

    if engine_of(server.argv) is not None:
        redactor = Redactor.of_launch(os.environ, server.env, server.argv)
        echo(f"known bugs of it: loadchaos doctor {shlex.quote(shlex.join(redactor.argv(server.argv)))}", err=True)


def _classify(log: Path) -> None:
    from loadchaos.cli.classify import classify_file
    from loadchaos.cli.logfiles import UnreadableError

    try:
        classify_file(str(log), as_json=False)
    except UnreadableError as e:
        echo(f"loadchaos: {e}", err=True)
