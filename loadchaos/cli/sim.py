"""`loadchaos sim`: run the embedded server in the foreground."""

from __future__ import annotations

import os
from typing import Any

import click

from loadchaos.cli.common import flag, named_values, option
from loadchaos.core.errors import OptionError


@click.command()
@option("--dialect", "Server to simulate: vllm or lmdeploy.", default="vllm", show_default=True)
@option("--era", "Version of that server to simulate.", default="0.18", show_default=True)
@option("--defect defects", "Bug to plant. Repeatable.", "NAME", multiple=True)
@option("--flag flags", "Flag of the server, under its own name. Repeatable.", "NAME=VALUE", multiple=True)
@option("--port", "Port to listen on.", type=click.IntRange(0, 65535), default=8000, show_default=True)
@flag("--no-images", "Serve a text-only model.")
@flag("--no-dev-mode", "Disable the development endpoints.")
def sim(flags: tuple[str, ...], no_images: bool, no_dev_mode: bool, port: int, **options: Any) -> None:
    """Run the embedded server in the foreground, optionally with planted bugs."""
    from loadchaos.simulator.command import command
    from loadchaos.simulator.options import SimulatorSpec

    named: dict[str, object] = {**named_values("--flag", flags, "NAME=VALUE")}
    named |= {name: False for name, off in (("images", no_images), ("dev_mode", no_dev_mode)) if off}
    try:
        argv = command(SimulatorSpec(flags=named, **options), port)
    except ValueError as e:
        raise OptionError(str(e)) from e
    os.execv(argv[0], argv)  # noqa: S606 - the server takes this process's place, so Ctrl-C and signals are its own
