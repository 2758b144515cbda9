"""`loadchaos oracles`: what finds wrong answers."""

from __future__ import annotations

import click

from loadchaos.cli.common import json_option, print_json


@click.command()
@json_option()
def oracles(as_json: bool) -> None:
    """List the oracles that find wrong answers, and their false alarm rules."""
    from loadchaos.analysis.oracles import ORACLES

    if as_json:
        print_json(
            [
                {"name": o.name, "detects": o.detects, "false_alarms": o.false_alarms, "asked_by": o.asked_by}
                for o in ORACLES
            ]
        )
        return
    for oracle in ORACLES:
        click.echo(f"{oracle.name}  (correctness: {{{oracle.asked_by}: ...}})")
        click.echo(f"    detects              {oracle.detects}")
        click.echo(f"    false alarm rules    {oracle.false_alarms}")
