"""`loadchaos sim`: the embedded server in the foreground, for whoever wants to look at it or load it with something else."""

from __future__ import annotations

import os

import click

from loadchaos.core.errors import OptionError


@click.command()
@click.option("--dialect", default="vllm", show_default=True, help="vllm or lmdeploy.")
@click.option("--era", default="0.18", show_default=True, help="The version whose face it shows.")
@click.option("--defect", "defects", multiple=True, metavar="NAME", help="A planted bug; repeatable.")
@click.option("--flag", "flags", multiple=True, metavar="NAME=VALUE", help="A flag under the server's own name.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option("--no-images", is_flag=True, help="A text-only model.")
@click.option("--no-dev-mode", is_flag=True, help="Without the development endpoints.")
def sim(
    dialect: str,
    era: str,
    defects: tuple[str, ...],
    flags: tuple[str, ...],
    port: int,
    no_images: bool,
    no_dev_mode: bool,
) -> None:
    """Run the embedded server in the foreground, with bugs planted on request."""
    from loadchaos.simulator.command import command

    given: dict[str, object] = {}
    for text in flags:
        name, separator, value = text.partition("=")
        if not separator:
            raise OptionError(f"--flag {text!r}: NAME=VALUE was expected")
        given[name] = value
    try:
        argv = command(
            dialect=dialect,
            era=era,
            defects=defects,
            flags=given,
            port=port,
            images=not no_images,
            dev_mode=not no_dev_mode,
        )
    except ValueError as e:
        raise OptionError(str(e)) from e
    os.execv(argv[0], argv)  # noqa: S606 - the server takes this process's place, so Ctrl-C and signals are its own
