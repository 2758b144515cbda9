"""`loadchaos worker`, `run --master` and `hunt --master`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadchaos.cli.common import duration, echo, launched_server_options
from loadchaos.core.errors import OptionError
from loadchaos.core.private import create_privately

if TYPE_CHECKING:
    from loadchaos.run.options import Master

_WAIT_WORKERS_S = 300.0


def bind_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the port at which workers join."""
    port = click.IntRange(1, 65535)
    command = click.option(
        "--master-bind-port", type=port, default=5557, show_default=True, help="Port for worker connections."
    )(command)
    return click.option(
        "--master-bind-host", default="*", metavar="HOST", help="Address for worker connections (default: all)."
    )(command)


def master(options: Mapping[str, Any]) -> Master | None:
    """The master's options of `loadchaos run`. None without --master."""
    from loadchaos.run.options import Master

    if not options["master"]:
        if options["expect_workers"] is not None:
            raise OptionError("--expect-workers needs --master: add --master, or remove both")
        return None
    if options["expect_workers"] is None:
        raise OptionError("--master needs --expect-workers N, the number of workers that share the load")
    check_free(options["master_bind_host"], options["master_bind_port"])
    wait_s = _WAIT_WORKERS_S if options["wait_workers"] is None else options["wait_workers"]
    return Master(options["expect_workers"], options["master_bind_host"], options["master_bind_port"], wait_s)


def check_free(host: str, port: int) -> None:
    """Raise OptionError where the address for workers is in use."""
    import socket

    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("" if host == "*" else host, port))
        except OSError as e:
            raise OptionError(
                f"--master-bind-host {host} --master-bind-port {port}: {e.strerror or e}; choose another address"
            ) from None


@click.command()
@click.option(
    "--master-host",
    required=True,
    metavar="HOST",
    help="Machine that runs `loadchaos run --master`, or `hunt --master`.",
)
@click.option(
    "--master-port", type=click.IntRange(1, 65535), default=5557, show_default=True, help="Its port for workers."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("worker-runs"),
    show_default=True,
    help="Folder for this worker's files.",
)
@click.option(
    "--wait", callback=duration, default="10m", show_default=True, help="Maximum time to wait for the master."
)
@click.option(
    "--launch",
    metavar="COMMAND",
    help="Take part in a hunt: launch command of this machine's server, with the master's flags.",
)
@click.option("--wait-ready", callback=duration, metavar="TIME", help="Wait at most this long for a healthy server.")
@launched_server_options
def worker(master_host: str, master_port: int, out: Path, wait: float, **options: Any) -> None:
    """Send a share of the load of a run, or take part in a hunt.

    Of a run, the plan, the images and all commands come from the master. In a hunt the worker starts a server with
    --launch and sends workloads of the master to it; the other options describe this server.
    """
    from loadchaos.load.cluster.join import join

    create_privately()
    report = lambda text: echo(f"loadchaos: {text}", err=True)  # noqa: E731 - one line
    if options["launch"] is not None:
        sys.exit(_take_part_in_hunt((master_host, master_port), out, wait, options, report))
    if any(options.values()):
        raise OptionError("the options of a server need --launch: a worker of a load takes the server from its master")
    argv, variables = join(master_host, master_port, out, wait, report)
    os.execve(argv[0], argv, {**os.environ, **variables})  # noqa: S606 - Locust takes this process's place and signals


def _take_part_in_hunt(
    address: tuple[str, int], out: Path, wait_s: float, options: Mapping[str, Any], report: Callable[[str], None]
) -> int:
    """Run workloads of a master on an own server; returns the exit code."""
    import asyncio
    from dataclasses import replace

    from loadchaos.campaigns.hunt.remote_worker import HuntWorker
    from loadchaos.campaigns.hunt.workers import SlotProcess
    from loadchaos.cli.hunt_settings import slot_settings
    from loadchaos.core.ledger.recorder import create_folder
    from loadchaos.server.process.launcher import parse_command_line, refuse_taken_port

    line = parse_command_line(options["launch"])
    slot = slot_settings(line, options, Path())
    refuse_taken_port(slot.url)
    folder = create_folder(out, "hunt-worker").path
    slot = replace(slot, folder=str(folder / "server"))

    def server(most_load_s: float) -> SlotProcess:
        return SlotProcess(replace(slot, most_load_s=most_load_s), folder / "server.log")

    return asyncio.run(HuntWorker(address, server, folder, report).run(wait_s))
