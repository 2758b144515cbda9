"""`loadchaos stack`: Prometheus, Alertmanager and Grafana for loadchaos."""

from __future__ import annotations

from pathlib import Path

import click

from loadchaos.core.errors import OptionError


@click.group()
def stack() -> None:
    """Start or stop Prometheus, Alertmanager and Grafana."""


_stack_folder = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("loadchaos-stack"),
    show_default=True,
    help="Folder of the stack's files.",
)


@stack.command()
@_stack_folder
@click.option("--local", is_flag=True, help="Run the Prometheus installed on this machine, without containers.")
@click.option("--write-only", is_flag=True, help="Write the files and start nothing.")
@click.option(
    "--scrape", multiple=True, metavar="HOST:PORT", help="Exporter to scrape (default: 127.0.0.1:9646). Repeatable."
)
@click.option("--port", type=click.IntRange(1, 65535), default=9090, show_default=True, help="Port of Prometheus.")
def up(folder: Path, local: bool, write_only: bool, scrape: tuple[str, ...], port: int) -> None:
    """Write the files of the stack and start it.

    The stack starts only if there is a container engine, or with --local.
    """
    from loadchaos.report.metrics import stack as s

    folder = folder.resolve()
    try:
        s.write(folder, scrape or ("127.0.0.1:9646",), port)
    except OSError as e:
        raise OptionError(f"{folder}: {e.strerror}; give --folder one that can be written") from e
    click.echo(f"{folder}: wrote compose.yaml and the files of Prometheus, Alertmanager and Grafana")
    if write_only:
        return
    if local:
        for line in s.start_local(folder, port):
            click.echo(line)
        click.echo(f"To see the dashboards, import {folder}/grafana/dashboards/*.json into a Grafana of yours.")
    elif command := s.engine():
        s.compose(folder, command, "up", "-d")
        click.echo(f"Grafana: http://127.0.0.1:{s.GRAFANA_PORT}   Prometheus: http://127.0.0.1:{port}")
    else:
        click.echo(
            "This machine has no container engine. Copy the folder to a machine that has one and run "
            "`docker compose up -d` in it, or use --local to run the Prometheus installed on this machine."
        )


@stack.command()
@_stack_folder
def down(folder: Path) -> None:
    """Stop what `stack up` started and keep its data."""
    from loadchaos.report.metrics import stack as s

    folder = folder.resolve()
    if not (folder / "compose.yaml").is_file():
        raise OptionError(f"{folder} has no compose.yaml of a stack; name its folder with --folder")
    stopped = s.stop_local(folder)
    command = s.engine()
    if command:
        s.compose(folder, command, "down")
    names = ", ".join(stopped) or ("the containers" if command else "nothing")
    click.echo(f"{folder}: stopped {names}. The data is kept.")
