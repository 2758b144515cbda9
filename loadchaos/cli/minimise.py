"""`loadchaos minimise`: the fewest requests and flags that still fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from loadchaos.cli.common import launch_option, rounds_option, say, time_option
from loadchaos.cli.replay import begin_search, end_search, replayed_options
from loadchaos.core.private import create_privately
from loadchaos.report.formatting import plural

_EXIT_CODES = """\b
Exit codes:
  0 a reproducer was written, and it reproduced on fresh servers
  1 the recorded requests do not fail again, or too rarely
  2 a mistake in an option, or nothing to replay
  3 unknown: no reproducer held on fresh servers
  4 the server cannot be tested (it never became healthy)"""


@click.command(epilog=_EXIT_CODES)
@click.argument("source", metavar="SOURCE", type=click.Path(path_type=Path))
@launch_option
@time_option("--budget", "Stop reducing after this time.", positive=True, default="1h", show_default=True)
@rounds_option
@replayed_options("minimisation")
def minimise(source: Path, out: Path, budget: float, **options: Any) -> None:
    """Find the fewest requests and launch flags that still cause a failure.

    SOURCE is as for `loadchaos replay`. The result is the folder repro: a script, a README for an upstream issue, a
    profile, and a page that shows what was left out.
    """
    from loadchaos.campaigns.minimise.session import MinimiseSession

    create_privately()
    campaign, trace, plan = begin_search(source, out, "minimise", options)
    say(f"minimising {plural(len(trace.sends), 'request')} of {source} on {plan.server.describe()}")
    end_search(campaign, MinimiseSession(campaign, trace, plan, budget).run())
