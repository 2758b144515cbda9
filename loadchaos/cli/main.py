"""The `loadchaos` command: group of all commands, help and exit codes. Each command is in a file of its own and imports
what it needs when it runs, so that `loadchaos --help` starts fast.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

import click

from loadchaos.cli.bisect import bisect
from loadchaos.cli.capacity import capacity
from loadchaos.cli.classify import classify, signatures
from loadchaos.cli.common import say
from loadchaos.cli.doctor import doctor
from loadchaos.cli.environment import PREFIX, name_variables
from loadchaos.cli.help import help_all_option, shows_all
from loadchaos.cli.hunt import hunt
from loadchaos.cli.images import images
from loadchaos.cli.launch import launch
from loadchaos.cli.minimise import minimise
from loadchaos.cli.new import new
from loadchaos.cli.oracles import oracles
from loadchaos.cli.plugins import plugins
from loadchaos.cli.probe import probe
from loadchaos.cli.profiles import check, explain, init, profiles
from loadchaos.cli.record import record
from loadchaos.cli.replay import replay
from loadchaos.cli.run import run
from loadchaos.cli.runs import compare, export, follow, judge, report, runs
from loadchaos.cli.sim import sim
from loadchaos.cli.soak import soak, trend
from loadchaos.cli.suite import suite
from loadchaos.cli.watch import watch
from loadchaos.cli.worker import worker
from loadchaos.core import exit_codes
from loadchaos.core.errors import LoadchaosError, ProfileError, StoppedBySignalError

_EXIT_CODES = """\b
Exit codes of a run:
  0 pass, 1 fail, 3 unknown (nothing was proved),
  2 a mistake in the profile, an option, a port, a folder or an authorisation,
  4 the target cannot be tested (never healthy, 401, wrong model, no images,
    no development endpoints),
  70 a bug of loadchaos,
  130 Ctrl-C, 143 SIGTERM."""

COMMAND_GROUPS = {
    "Test": (probe, doctor, run, watch, suite, capacity, soak),
    "Read": (report, compare, trend, runs, export, classify),
    "Reproduce": (replay, minimise, bisect, hunt, record),
    "Write": (new, check, explain, profiles),
    "More": (init, judge, follow, signatures, oracles, plugins, launch, worker, images, sim),
}
"""All commands. `--help` leaves out the last group."""


class _Commands(click.Group):
    """Command group that prints loadchaos' own errors as one message. Any other exception is a bug of loadchaos: it
    shows its traceback and ends with code 70.
    """

    def main(self, *args: Any, **options: Any) -> Any:
        try:
            return super().main(*args, **options)
        except Exception:  # noqa: BLE001 - a bug must not end with 1, which means fail
            click.echo(traceback.format_exc(), err=True, nl=False)
            click.echo(
                f"loadchaos: a bug in loadchaos (exit code {exit_codes.INTERNAL_ERROR}): please report the lines above",
                err=True,
            )
            sys.exit(exit_codes.INTERNAL_ERROR)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LoadchaosError as e:
            # A mistake in a file starts with file:line:column, as compilers print it: editors can jump there.
            say(str(e) if isinstance(e, ProfileError) else f"loadchaos: {e}")
            ctx.exit(e.exit_code)
        except KeyboardInterrupt:  # before a run has started: a run handles Ctrl-C itself
            say("loadchaos: interrupted")
            ctx.exit(exit_codes.INTERRUPTED)
        except StoppedBySignalError as e:
            ctx.exit(e.exit_code)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List each command with its whole first sentence. click would truncate it."""
        for title, commands in COMMAND_GROUPS.items():
            if title != "More" or shows_all(ctx):
                with formatter.section(title):
                    formatter.write_dl([(str(c.name), c.get_short_help_str(500)) for c in commands])


@click.group(
    cls=_Commands,
    epilog=_EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": PREFIX},
)
@click.version_option(package_name="loadchaos", allow_from_autoenv=False)
def main() -> None:
    """Find and name bugs that an LLM server shows only under load."""


main.params.append(help_all_option("Show all commands."))

for _command in (command for group in COMMAND_GROUPS.values() for command in group):
    name_variables(_command)
    main.add_command(_command)
