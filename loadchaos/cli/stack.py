"""`loadchaos stack`: Prometheus, Alertmanager and Grafana, ready to look at."""

from __future__ import annotations

from pathlib import Path

import click

from loadchaos.core.errors import OptionError


@click.group()
def stack() -> None:
    """Prometheus, Alertmanager and Grafana for loadchaos, ready to look at."""


_stack_folder = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("loadchaos-stack"),
    show_default=True,
    help="Its files' home.",
)


@stack.command()
@_stack_folder
@click.option("--local", is_flag=True, help="Run the machine's own Prometheus, without containers.")
@click.option("--write-only", is_flag=True, help="Write the files and start nothing.")
@click.option("--scrape", multiple=True, metavar="HOST:PORT", help="Exporters; 127.0.0.1:9646 otherwise. Repeatable.")
@click.option("--port", type=click.IntRange(1, 65535), default=9090, show_default=True, help="Prometheus' own port.")
def up(folder: Path, local: bool, write_only: bool, scrape: tuple[str, ...], port: int) -> None:
    """Write a compose file with everything provisioned, and start it where a container engine is."""
    from loadchaos.report.metrics import stack as s

    folder = folder.resolve()
    try:
        s.write(folder, scrape or ("127.0.0.1:9646",), port)
    except OSError as e:
        raise OptionError(f"{folder}: {e.strerror}; --folder names one that can be written") from e
    click.echo(f"{folder}: compose.yaml, Prometheus, Alertmanager and Grafana with dashboards and alerts")
    if write_only:
        return
    if local:
        for line in s.start_local(folder, port):
            click.echo(line)
        click.echo(f"Grafana, where you have one: import {folder}/grafana/dashboards/*.json")
    elif command := s.engine():
        s.compose(folder, command, "up", "-d")
        click.echo(f"Grafana: http://127.0.0.1:{s.GRAFANA_PORT}   Prometheus: http://127.0.0.1:{port}")
    else:
        click.echo(
            "there is no container engine here: take the folder to one and run `docker compose up -d` in it, or use "
            "--local for the machine's own Prometheus"
        )


@stack.command()
@_stack_folder
def down(folder: Path) -> None:
    """Stop what `stack up` started; its data stays."""
    from loadchaos.report.metrics import stack as s

    folder = folder.resolve()
    if not (folder / "compose.yaml").is_file():
        raise OptionError(f"{folder} holds no stack; --folder says where it is")
    ended = s.stop_local(folder)
    command = s.engine()
    if command:
        s.compose(folder, command, "down")
    click.echo(f"{folder}: {', '.join(ended) or ('the containers' if command else 'nothing')} stopped, the data stays")
