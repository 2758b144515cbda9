"""Options of a hunt that `--resume` takes from hunt.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from loadchaos.cli.common import Given, parse_header_options
from loadchaos.core.errors import OptionError
from loadchaos.core.redact import REDACTED

if TYPE_CHECKING:
    from loadchaos.campaigns.hunt.journal import HuntSettings
    from loadchaos.campaigns.hunt.slot import SlotSettings
    from loadchaos.server.process.launcher import CommandLine

_SCHEDULE = ("seed", "requests", "no_feedback")
"""Options that the schedule of workloads depends on: a resumed hunt must have the same."""
_REPLACEABLE = (
    "findings",
    "parallel",
    "workload_time",
    "wait_ready",
    "model",
    "api_key_env",
    "headers",
    "ca",
    "insecure",
)
"""Options that a resumed hunt takes from the stored hunt unless they are given again."""


def stored_form(options: Given) -> dict[str, Any]:
    """Options as they are stored. The value of a header is stored only if it names an environment variable."""
    stored = {name: options[name] for name in (*_SCHEDULE, *_REPLACEABLE)}
    stored["headers"] = tuple(
        text if text.partition("=")[2].startswith("env:") else f"{text.partition('=')[0]}={REDACTED}"
        for text in options["headers"]
    )
    return stored


def with_stored(context: click.Context, options: Given, stored: HuntSettings) -> dict[str, Any]:
    """Complete the options of a resumed hunt from those that were stored; `context` knows those that were typed.

    Raises OptionError where an option of the schedule differs, or the value of a header was not stored.
    """
    found = dict(options)
    for name in (*_SCHEDULE, *_REPLACEABLE):
        before = getattr(stored, name)
        if context.get_parameter_source(name) is ParameterSource.DEFAULT:
            found[name] = before
        elif name in _SCHEDULE and found[name] != before:
            raise OptionError(f"--{name.replace('_', '-')} differs from that of the hunt ({before}); start a new hunt")
    for text in found["headers"]:
        name, _, value = text.partition("=")
        if value == REDACTED:
            raise OptionError(
                f"the value of the header {name} is not stored: give it again with --header {name}=env:VAR"
            )
    return found


def slot_settings(line: CommandLine, options: Given, folder: Path) -> SlotSettings:
    """Settings of one server of a hunt, from the options that describe it. Raises OptionError where a variable for a
    header is missing.
    """
    from loadchaos.campaigns.hunt.slot import SlotSettings
    from loadchaos.run.options import Options, headers_of_options

    headers = parse_header_options(options["headers"])
    headers_of_options(Options(api_key_env=options["api_key_env"], headers=headers))
    return SlotSettings(
        line.argv, line.url, str(folder), dict(line.env),
        **({"ready_within_s": options["wait_ready"]} if options["wait_ready"] else {}),
        model=options["model"], api_key_env=options["api_key_env"], headers=headers, ca=options["ca"],
        insecure=options["insecure"],
    )  # fmt: skip
