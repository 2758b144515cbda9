"""`loadchaos sim`: run the embedded server in the foreground."""

from __future__ import annotations

import os
from typing import Any

import click

from loadchaos.cli.common import named_values
from loadchaos.core.errors import OptionError


@click.command()
@click.option("--dialect", default="vllm", show_default=True, help="Server to simulate: vllm or lmdeploy.")
@click.option("--era", default="0.18", show_default=True, help="Version of that server to simulate.")
@click.option("--defect", "defects", multiple=True, metavar="NAME", help="Bug to plant. Repeatable.")
@click.option(
    "--flag", "flags", multiple=True, metavar="NAME=VALUE", help="Flag of the server, under its own name. Repeatable."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port to listen on.")
@click.option("--no-images", is_flag=True, help="Serve a text-only model.")
@click.option("--no-dev-mode", is_flag=True, help="Disable the development endpoints.")
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
