"""`loadchaos bisect`: flags and releases that a failure depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from loadchaos.cli.common import Given, flag, option, rounds_option, say, time_option
from loadchaos.cli.replay import begin_search, end_search, replayed_options
from loadchaos.core.errors import OptionError
from loadchaos.core.private import create_privately
from loadchaos.report.formatting import plural

_EXIT_CODES = """\b
Exit codes:
  0 the failure came again, and the search was finished
  1 the recorded requests do not fail again, or too rarely
  2 a mistake in an option, or nothing to replay
  3 unknown: the budget was spent before the end
  4 the server cannot be tested (it never became healthy)"""


@click.command(epilog=_EXIT_CODES)
@click.argument("source", metavar="SOURCE", type=click.Path(path_type=Path))
@flag("--flags", "Find the needed launch flags, and single changes that cure the failure.")
@option("--versions", "Find the first bad and the first good release of this range.", "A..B")
@option(
    "--launch",
    "Launch command of the server, e.g. 'vllm serve MODEL --port 8000'; with --versions: "
    "'{venv}/bin/vllm serve MODEL'.",
    "COMMAND",
)
@option(
    "--install",
    "With --versions: command that installs a release, e.g. '{venv}/bin/pip install vllm=={version}'.",
    "COMMAND",
)
@option("--package", "With --versions: package whose releases pip lists (default: --install's).", "NAME")
@option("--bad", "With --versions: release that fails (default: the recorded server's).", "VERSION")
@option(
    "--venvs",
    "With --versions: folder of the installed releases (default: in ~/.cache/loadchaos/releases).",
    type=click.Path(path_type=Path, file_okay=False),
)
@option(
    "--change changes",
    "With --flags: also try this flag as a remedy, e.g. '--max-num-seqs 8'. Repeatable.",
    "FLAG",
    multiple=True,
)
@time_option("--budget", "Stop after this time.", positive=True, default="2h", show_default=True)
@rounds_option
@flag("--share-server", "Prove remedies and good releases on one server that survives, not on fresh ones.")
@replayed_options("bisection")
def bisect(source: Path, out: Path, *, flags: bool, **options: Any) -> None:
    """Find the launch flags or the releases that a failure depends on.

    SOURCE is as for `loadchaos replay`; a folder that `loadchaos minimise` wrote is fastest.
    """
    create_privately()
    versions, install = options["versions"], options["install"]
    if flags == bool(versions):
        raise OptionError("choose what to bisect: --flags or --versions A..B")
    if versions and not (install and options["launch"]):
        raise OptionError(
            "--versions needs --install and --launch with placeholders: --install '{venv}/bin/pip install vllm=={version}' "
            "--launch '{venv}/bin/vllm serve MODEL'"
        )
    if versions:
        _bisect_versions(source, out, options)
    else:
        _bisect_flags(source, out, options)


def _bisect_flags(source: Path, out: Path, options: Given) -> None:
    from loadchaos.campaigns.bisect.flag_session import FlagSession

    campaign, trace, plan = begin_search(source, out, "bisect", options)
    say(f"bisecting {plural(len(trace.sends), 'request')} of {source} on {plan.server.describe()}")
    session = FlagSession(campaign, trace, plan, options["budget"])
    end_search(campaign, session.run(options["changes"]))


def _bisect_versions(source: Path, out: Path, options: Given) -> None:
    from loadchaos.campaigns.bisect.installs import InstallPlan, releases_between
    from loadchaos.campaigns.bisect.version_session import VersionSession

    installs = InstallPlan(options["install"], options["launch"], options["package"], options["venvs"])
    installs.check()
    releases = releases_between(options["versions"], installs)
    campaign, trace, plan = begin_search(source, out, "bisect", options)
    bad = options["bad"] or str(trace.header.server.get("version") or "") or None
    if options["bad"] and options["bad"] not in releases:
        raise OptionError(f"--bad {options['bad']}: it is not in the range; there are {', '.join(releases)}")
    requests = plural(len(trace.sends), "request")
    say(f"bisecting {requests} of {source} over {len(releases)} releases of {installs.name()}")
    session = VersionSession(campaign, trace, plan, options["budget"], installs)
    end_search(campaign, session.run(releases, bad))
