"""`loadchaos watch`: judge a server beside somebody else's load."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import click

from loadchaos.cli.common import (
    COUNT,
    Given,
    authorize_option,
    base_url,
    expect_option,
    exporter_port_option,
    flag,
    free_exporter_port,
    no_live_option,
    option,
    options_of,
    out_option,
    profile_names,
    refuse_bound,
    say,
    server_log_option,
    server_options,
    time_option,
    verbose_option,
    wait_ready_option,
)
from loadchaos.cli.help import HelpInGroups, in_group
from loadchaos.cli.profiles import profile_of
from loadchaos.cli.record import listen_address
from loadchaos.core.errors import OptionError
from loadchaos.core.private import create_privately
from loadchaos.core.urls import LOOPBACK


class _UrlFirst(HelpInGroups):
    """Command that takes `URL` in front of its options, as `probe` and `doctor` do, for `--target URL`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["--target", *args] if args and "://" in args[0] else args)


@click.command(cls=_UrlFirst, context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]", type=click.UNPROCESSED)
@option("-H --target targets", "URL of the server. Repeatable: replicas of one service.", "URL", multiple=True)
@server_log_option
@server_options
@time_option("--for duration", "End after this time, and end COMMAND.", positive=True)
@option("--attack", "Make the attacks of this profile meanwhile.", "PROFILE", shell_complete=profile_names)
@authorize_option("Allow attacks on this server. Repeatable.")
@option(
    "--set overrides",
    "Override a value of the profile of a watch, e.g. 'accept=[{id: ..., because: ..., until: ...}]'. Repeatable.",
    "PATH=VALUE",
    multiple=True,
)
@expect_option("Also expect this, e.g. 'ttft_p99 <= 2s'. Repeatable.")
@verbose_option
@in_group(
    "Recording proxy",
    option("--listen", "Address of the proxy, also without COMMAND. COMMAND gets a free port by default.", "HOST:PORT"),
)
@in_group(
    "Service",
    flag(
        "--service",
        "Watch until it is stopped, in parts with a verdict each; old ones are deleted.",
        allow_from_autoenv=False,
    ),
    time_option("--part", "Length of a part.", positive=True, default="1h", show_default=True),
    option("--keep", "Size of the folder with all parts.", "SIZE", default="2GB", show_default=True),
    option("--healthz", "Serve /healthz about the service, and /metrics, at this address.", "HOST:PORT"),
)
@in_group("Server", option("--pid", "Process ID of the server on this machine.", type=COUNT), wait_ready_option)
@in_group(
    "Run folder and output",
    out_option("Folder for run folders."),
    no_live_option,
    option("--notify", "Webhook for incidents and the verdict, as for `run`. Repeatable.", "URL", multiple=True),
    exporter_port_option,
)
def watch(command: tuple[str, ...], targets: tuple[str, ...], **options: Any) -> None:
    """Watch a server while others use it: deaths, hangs, failures in its log, a verdict at the end.

    It ends with --for or Ctrl-C. With COMMAND, this command is the load and its end is the end:
    `loadchaos watch --target URL -- vllm bench serve --base-url {url} ...`. {url} in its words, and OPENAI_BASE_URL in its
    environment, are a recording proxy in front of the server, so that each of its requests is judged as in a run.
    {host} and {port} are parts of that URL. The exit code is that of the verdict.
    """
    create_privately()
    if not targets:
        raise OptionError(f"no server: give --target {command[0] if command and '://' in command[0] else 'URL'}")
    if options["service"]:  # its parts import what a run needs
        sys.exit(_serve(command, options))
    sys.exit(_watch(command, tuple(dict.fromkeys(base_url(url) for url in targets)), options))


def _watch(command: tuple[str, ...], targets: tuple[str, ...], options: Given) -> int:
    from loadchaos.campaigns.watch.watch_profile import PROXY_MODULE, watch_profile
    from loadchaos.cli.run import print_run_result, redacted_argv
    from loadchaos.report.export import notify
    from loadchaos.run.interrupts import Interrupts
    from loadchaos.run.others_load import OthersOptions
    from loadchaos.run.run import run as run_once

    listen = _listen(options["listen"], targets)
    if command and shutil.which(command[0]) is None:
        raise OptionError(f"{command[0]}: no such command; give one that can be run after --")
    others = OthersOptions(command, listen, PROXY_MODULE)
    attacks = None if options["attack"] is None else profile_of(options["attack"], ())
    profile = watch_profile(targets, options["server_log"], others, options["expect"], attacks, options["overrides"])
    addresses = [notify.address(a) for a in options["notify"]]
    settings = options_of(
        {**options, "target": targets[0], "server_log": options["server_log"] if len(targets) == 1 else ()},
        others=others,
        exporter_port=free_exporter_port(options["exporter_port"]),
        live=not (options["no_live"] or command),
        questions=False,
        argv=redacted_argv(sys.argv, options["notify"]),
        follower_variables=notify.to_environment(addresses),
    )
    interrupts = Interrupts()
    result = interrupts.run(run_once(profile, settings, interrupts))
    print_run_result(result, None, {**options, "ci": None}, addresses)
    return result.exit_code


def _serve(command: tuple[str, ...], options: Given) -> int:
    from loadchaos.campaigns.watch.service import ServiceOrder, serve
    from loadchaos.core.units import byte_count
    from loadchaos.report.export import notify

    if command or options["duration"]:
        raise OptionError("--service has no end, so that --for and a command have no place there: leave them out")
    try:
        keep = byte_count(options["keep"])
    except ValueError as e:
        raise OptionError(f"--keep: {e}") from None
    health = None if options["healthz"] is None else listen_address(options["healthz"], "--healthz")
    home = Path(options["out"]).absolute()
    addresses = [notify.address(a) for a in options["notify"]]
    return serve(ServiceOrder(_part_words(sys.argv[2:]), home, options["part"], keep), say, health, addresses)


def _part_words(words: list[str]) -> tuple[str, ...]:
    """Options of the service that its parts have, too."""
    own = {"--service": 0, "--part": 1, "--keep": 1, "--healthz": 1, "--out": 1, "--wait-ready": 1}
    kept, rest = [], iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in own:
            kept.append(word)
        elif own[name] and not equals:
            next(rest, None)
    return tuple(kept)


def _listen(text: str | None, targets: tuple[str, ...]) -> tuple[str, int] | None:
    from urllib.parse import urlsplit

    if text is None:
        return None
    host, port = listen_address(text)
    here = (*LOOPBACK, "0.0.0.0")
    if port and any(urlsplit(url).port == port and urlsplit(url).hostname in here for url in targets):
        raise OptionError(f"--listen {text}: this is the target, so the proxy would pass requests on to itself")
    refuse_bound(host, port, f"--listen {text}", " address, or port 0 for a free one")
    return host, port
