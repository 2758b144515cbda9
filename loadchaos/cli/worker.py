"""`loadchaos worker` and `run --master`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadchaos.cli.common import Given, echo, option, out_option, refuse_bound, time_option, together
from loadchaos.core.errors import OptionError
from loadchaos.core.private import create_privately

if TYPE_CHECKING:
    from loadchaos.run.options import Master

bind_options = together(
    option("--master-bind-host", "Address for worker connections (default: all).", "HOST", default="*"),
    option(
        "--master-bind-port",
        "Port for worker connections.",
        type=click.IntRange(1, 65535),
        default=5557,
        show_default=True,
    ),
)


def master(options: Given) -> Master | None:
    """The master's options of `loadchaos run`. None without --master."""
    from loadchaos.run.options import Master

    if not options["master"]:
        if options["expect_workers"] is not None:
            raise OptionError("--expect-workers needs --master: add --master, or remove both")
        return None
    if options["expect_workers"] is None:
        raise OptionError("--master needs --expect-workers N, the number of workers that share the load")
    host, port = options["master_bind_host"], options["master_bind_port"]
    named = f"--master-bind-host {host} --master-bind-port {port}"
    refuse_bound(host, port, named, " address")
    return Master(options["expect_workers"], host, port, options["wait_workers"])


@click.command()
@option("--master-host", "Machine that runs `loadchaos run --master`.", "HOST", required=True)
@option("--master-port", "Its port for workers.", type=click.IntRange(1, 65535), default=5557, show_default=True)
@out_option("Folder for this worker's files.", "worker-runs")
@time_option("--wait", "Maximum time to wait for the master.", default="10m", show_default=True)
def worker(master_host: str, master_port: int, out: Path, wait: float) -> None:
    """Send a share of the load of a run.

    The plan, the images and all commands come from the master.
    """
    from loadchaos.load.cluster.join import join

    create_privately()
    report = lambda text: echo(f"loadchaos: {text}", err=True)  # noqa: E731 - one line
    argv, variables = join(master_host, master_port, out, wait, report)
    os.execve(argv[0], argv, {**os.environ, **variables})  # noqa: S606 - Locust takes this process's place and signals
