"""`loadchaos oracles`: what finds wrong answers."""

from __future__ import annotations

import click

from loadchaos.cli.common import json_option, print_result


@click.command()
@json_option()
def oracles(as_json: bool) -> None:
    """List the oracles that find wrong answers, and their false alarm rules."""
    from loadchaos.analysis.oracles import ORACLES

    print_result(
        as_json,
        lambda: [
            {"name": o.name, "detects": o.detects, "false_alarms": o.false_alarms, "asked_by": o.asked_by}
            for o in ORACLES.values()
        ],
        lambda: "\n".join(
            f"{o.name}  (correctness: {{{o.asked_by}: ...}})\n"
            f"    detects              {o.detects}\n"
            f"    false alarm rules    {o.false_alarms}"
            for o in ORACLES.values()
        ),
    )
