"""`loadchaos launch`: a server alone, started, watched while it comes up, and classified where it does not."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from loadchaos.cli.common import duration, tell

_READY_WITHIN_S = 1200.0


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
@click.option("--url", metavar="URL", help="Where it will listen; read from its --host and --port otherwise.")
@click.option("--ready-within", callback=duration, metavar="TIME", help="How long it may take to come up (20m).")
@click.option("--check", is_flag=True, help="End it as soon as it is ready.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("launches"), show_default=True, help="Its log goes there."
)
def launch(command: tuple[str, ...], url: str | None, ready_within: float | None, check: bool, out: Path) -> None:
    """Start a server and say why it does not come up: 'vllm serve MODEL --port 8000', in quotes or as words.

    Ready is when /health and one real request say so. Ctrl-C ends the server, and so does the end of loadchaos by kill -9.
    Ends with 0: it came up (--check), 1: it ended later by itself, 4: it did not come up, 130: Ctrl-C.
    """
    import asyncio
    from dataclasses import replace

    from loadchaos.core.ledger.recorder import create_folder
    from loadchaos.runner.launch_only import launch_alone
    from loadchaos.server.discovery.client import parse_target
    from loadchaos.server.process.launcher import typed

    what = typed(command[0] if len(command) == 1 else command)
    if url is not None:
        what = replace(what, url=parse_target(url))
    folder = create_folder(out, "launch")
    came = asyncio.run(
        launch_alone(what, folder, ready_within or _READY_WITHIN_S, check=check, say=lambda text: tell(text, err=True))
    )
    tell(f"loadchaos: {came.said}", err=True)
    if came.log is not None:
        _classify(came.log)
    sys.exit(came.code)


def _classify(log: Path) -> None:
    """What its log says, as `loadchaos classify` tells it; nothing where there is no log to read."""
    from loadchaos.cli.classify import classify_one
    from loadchaos.cli.logfiles import UnreadableError

    try:
        classify_one(str(log), as_json=False)
    except UnreadableError as e:
        tell(f"loadchaos: {e}", err=True)
