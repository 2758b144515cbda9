"""`loadchaos worker`, and what `loadchaos run --master` asks for: load from more than one machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadchaos.cli.common import duration, tell
from loadchaos.core.errors import OptionError

if TYPE_CHECKING:
    from loadchaos.runner.options import Master


def master(options: Mapping[str, Any]) -> Master | None:
    """The options of `run` that are about workers on other machines; None where it drives the load itself."""
    from loadchaos.runner.options import Master

    if not options["master"]:
        if options["expect_workers"] is not None:
            raise OptionError("--expect-workers goes with --master: add it, or leave both out")
        return None
    if options["expect_workers"] is None:
        raise OptionError("--master needs --expect-workers N: how many workers share the plan")
    _refuse_taken(options["master_bind_host"], options["master_bind_port"])
    wait_s = 300.0 if options["wait_workers"] is None else options["wait_workers"]
    return Master(options["expect_workers"], options["master_bind_host"], options["master_bind_port"], wait_s)


def _refuse_taken(host: str, port: int) -> None:
    import socket

    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("" if host == "*" else host, port))
        except OSError as e:
            raise OptionError(
                f"--master-bind-host {host} --master-bind-port {port}: {e.strerror or e}; choose others"
            ) from None


@click.command()
@click.option("--master-host", required=True, metavar="HOST", help="Where `loadchaos run --master` runs.")
@click.option("--master-port", type=click.IntRange(1, 65535), default=5557, show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("worker-runs"),
    show_default=True,
    help="Home of its own rows.",
)
@click.option("--wait", callback=duration, default="10m", show_default=True, help="How long to ask for a place.")
def worker(master_host: str, master_port: int, out: Path, wait: float) -> None:
    """Drive a share of a run that another machine leads; plan, images and orders come from there."""
    from loadchaos.load.cluster.join import join

    argv, variables = join(master_host, master_port, out, wait, lambda text: tell(f"loadchaos: {text}", err=True))
    os.execve(argv[0], argv, {**os.environ, **variables})  # noqa: S606 - Locust takes this process's place and signals
