"""Flags in, one call, exit code out. Every command imports what it needs when it runs, so that --help is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadchaos.cli.classify import classify, signatures
from loadchaos.cli.common import duration, profile_names, tell, terminal
from loadchaos.cli.images import images
from loadchaos.cli.launch import launch
from loadchaos.cli.profiles import check, explain, init, profile_of, profiles, set_option
from loadchaos.cli.resume import again, point, rest
from loadchaos.cli.runs import compare, export, follow, judge, report, runs
from loadchaos.cli.sim import sim
from loadchaos.cli.soak import soak, trend
from loadchaos.cli.stack import stack
from loadchaos.cli.worker import master, worker
from loadchaos.core.errors import LoadchaosError, OptionError, ProfileError
from loadchaos.core.redact import REDACTED

if TYPE_CHECKING:
    from loadchaos.profile.profile import Profile
    from loadchaos.runner.run import Result
    from loadchaos.runner.web_runs import Address

_EXIT_CODES = """\b
Exit codes: 0 pass, 1 fail, 2 profile, options, ports, folder or authorisation, 3 unknown (nothing was proved),
4 the target (never healthy, 401, wrong model, no images, no development endpoints), 130 Ctrl-C, 143 SIGTERM."""


class _Commands(click.Group):
    """Our own errors end with their exit code and one message; anything else is a bug of ours and shows its trace."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LoadchaosError as e:
            # A mistake in a file begins with its place, as compilers have it: editors jump there.
            click.echo(str(e) if isinstance(e, ProfileError) else f"loadchaos: {e}", err=True)
            ctx.exit(e.exit_code)
        except KeyboardInterrupt:  # before a run has begun, which hears Ctrl-C itself
            ctx.exit(130)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each command's first sentence, wrapped where click would cut it."""
        with formatter.section("Commands"):
            formatter.write_dl([(n, self.commands[n].get_short_help_str(500)) for n in self.list_commands(ctx)])


@click.group(cls=_Commands, epilog=_EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="loadchaos")
def main() -> None:
    """Find the bugs an LLM server shows only under load, and say what broke."""


# --- run ---------------------------------------------------------------------------------------------------------------


@main.command()
@click.pass_context
@set_option
@click.argument("profile", required=False, shell_complete=profile_names)
@click.option("--resume", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="RUN",
              help="Go on with an interrupted run: its profile, options and seed, from its plan's next step.")  # fmt: skip
@click.option(
    "-H", "--target", "--host", "--base-url", "target", metavar="URL", help="The server, with or without /v1."
)
@click.option(
    "--launch", metavar="COMMAND", help="Start this server: 'vllm serve MODEL --port 8000', at --target if given."
)
@click.option("--admin-url", metavar="URL", help="Where /health, /metrics and the admin endpoints are, if elsewhere.")
@click.option("--model", metavar="NAME", help="The model to ask for; the server's first otherwise.")
@click.option("--api-key-env", metavar="VAR", help="The variable that holds the API key; keys never reach disk.")
@click.option("--tokenizer", metavar="DIR", help="Count words by tokenizer.json in this folder; nothing is downloaded.")
@click.option("--header", "headers", multiple=True, metavar="NAME=env:VAR", help="A further header, also NAME=text.")
@click.option("--ca", metavar="FILE", help="Believe these certificates (PEM) in place of the system's.")
@click.option("-k", "--insecure", is_flag=True, help="Believe any certificate.")
@click.option(
    "--server-log",
    multiple=True,
    metavar="SOURCE",
    help="PATH, docker:NAME, k8s:NS/POD[/CONTAINER], journal:UNIT, ssh:HOST:PATH or cmd:'...'; repeatable.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Run folders' home."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Same profile and seed: same requests.")
@click.option(
    "-t", "--duration", "--run-time", "duration", callback=duration, metavar="TIME", help="End the load then."
)
@click.option("-u", "--users", "--concurrency", "users", type=click.IntRange(min=1), help="Users in every phase.")
@click.option("--authorize", multiple=True, metavar="HOST:PORT", help="This server may be harmed; repeatable.")
@click.option("--pid", type=click.IntRange(min=1), help="The process of a server on this machine, for signals to it.")
@click.option(
    "--toxiproxy", metavar="URL", help="The API of a toxiproxy to use for network attacks, in place of our own."
)
@click.option("--shared", is_flag=True, help="Go on although others use the server.")
@click.option("--wait-ready", callback=duration, metavar="TIME", help="How long a server may take to become healthy.")
@click.option("--embedded", is_flag=True, help="Use the embedded server, also under CI=true.")
@click.option("--exporter-port", type=click.IntRange(0, 65535), help="Prometheus port; 9646 otherwise, 0: a free one.")
@click.option(
    "--processes", type=click.IntRange(min=1), default=1, show_default=True, help="Load-generating processes."
)
@click.option("--master", is_flag=True, help="Let workers on other machines drive the load (`loadchaos worker`).")
@click.option(
    "--expect-workers", type=click.IntRange(min=1), metavar="N", help="So many; the load begins with the last."
)
@click.option("--master-bind-host", default="*", metavar="HOST", help="Where they connect; every address otherwise.")
@click.option("--master-bind-port", type=click.IntRange(1, 65535), default=5557, show_default=True)
@click.option("--wait-workers", callback=duration, metavar="TIME", help="How long they may take to come; 5m otherwise.")
@click.option("--no-live", is_flag=True, help="Plain lines in place of the live view.")
@click.option("--web", is_flag=True, help="Locust's web UI as the cockpit: each Start...Stop in it is a run.")
@click.option("--web-port", type=click.IntRange(0, 65535), help="Its port; 8089 otherwise, 0: a free one.")
@click.option(
    "--web-host", metavar="HOST", help="Where it listens; 127.0.0.1 otherwise. Elsewhere it asks for a login."
)
@click.option("--headless", is_flag=True, hidden=True, help="Accepted for Locust's sake: the default.")
@click.option("--dry-run", is_flag=True, help="Print what would be sent and when, and send nothing.")
@click.option("--ci", type=click.Choice(["github"]), help="Annotations and a step summary for GitHub Actions.")
@click.option(
    "--notify",
    multiple=True,
    metavar="URL",
    help="A webhook for incidents and the verdict, also env:VAR or an apprise URL.",
)
def run(ctx: click.Context, /, profile: str | None, overrides: tuple[str, ...], **options: Any) -> None:
    """Run a profile (a path, or a shipped name) against the embedded server, a launched one, or --target."""
    import asyncio

    from loadchaos.profile.explain import explain

    resumed = None
    if (folder := options["resume"]) is not None:
        profile, overrides, options = again(ctx, folder)
    elif profile is None:
        raise OptionError("which profile? A path, or a shipped name: loadchaos profiles")
    users = options["users"]
    loaded = profile_of(profile, [*overrides, *([f"load.*.users={users}"] if users else [])])
    if options["launch"]:
        loaded, options["target"] = _launching(loaded, options["launch"], options["target"]), None
    if folder is not None:
        resumed = point(folder, loaded, options["seed"])
        options["duration"] = rest(ctx, folder, options["duration"], resumed.loaded_s)
    if options["dry_run"]:
        click.echo(explain(loaded, seed=options["seed"]))
        return
    from loadchaos.core.tls import TlsSettings
    from loadchaos.report.export import notify
    from loadchaos.runner.options import Options
    from loadchaos.runner.run import run as go

    addresses = [notify.address(a) for a in options["notify"]]
    asked = Options(
        target=options["target"],
        admin_url=options["admin_url"],
        model=options["model"],
        api_key_env=options["api_key_env"],
        headers=_headers(options["headers"]),
        trust=TlsSettings(options["ca"], options["insecure"]),
        tokenizer=options["tokenizer"],
        server_log=options["server_log"],
        out=options["out"],
        seed=options["seed"],
        duration_s=options["duration"],
        authorize=options["authorize"],
        shared=options["shared"],
        pid=options["pid"],
        toxiproxy=options["toxiproxy"],
        wait_ready_s=options["wait_ready"],
        embedded=options["embedded"],
        exporter_port=_exporter_port(options["exporter_port"]),
        live=not options["no_live"],
        processes=options["processes"],
        master=master(options),
        resume=resumed,
        argv=_without(sys.argv, options["notify"]),
        follower_variables=notify.handing_over(addresses),
    )

    def told(result: Result) -> None:
        _tell_result(result, profile, options["ci"], addresses)

    if options["web"]:
        from loadchaos.runner.web_runs import cockpit

        sys.exit(asyncio.run(cockpit(loaded, asked, _web_address(options), lambda words: tell(words, err=True), told)))
    result = asyncio.run(go(loaded, asked))
    told(result)
    sys.exit(result.exit_code)


def _web_address(options: Mapping[str, Any]) -> Address:
    from loadchaos.runner.web_runs import Address

    standard = Address()
    port = options["web_port"]
    return Address(options["web_host"] or standard.host, standard.port if port is None else port)


def _tell_result(result: Result, profile: str, ci: str | None, addresses: Sequence[str]) -> None:
    from loadchaos.report.export import github, notify
    from loadchaos.report.terminal.summary import render

    if result.verdict is not None:
        verdict, home = dict(result.verdict), result.folder.path
        color, width = terminal()
        words = render(verdict, home, color=color, width=width)
        tell(words if ci is None else github.fenced(words))
        if ci == "github":
            _tell_github(verdict, home, profile)
        for trouble in filter(None, (notify.send(a, notify.message(verdict, home)) for a in addresses)):
            tell(f"loadchaos: {trouble}", err=True)
    if result.error:
        tell(f"loadchaos: {result.error}", err=True)


def _launching(profile: Profile, command: str, url: str | None) -> Profile:
    """The profile with this server to start in place of its own."""
    from loadchaos.server.discovery.client import parse_target
    from loadchaos.server.process.launcher import typed

    what = typed(command)
    started = {"command": what.argv, "env": what.env, "url": parse_target(url) if url else what.url}
    return profile.launching(started)


def _tell_github(verdict: Mapping[str, Any], home: Path, profile: str) -> None:
    from loadchaos.core import resources
    from loadchaos.report.export import github

    tell("\n".join(github.annotate(verdict, os.path.relpath(resources.profile(profile)))))
    try:
        github.summarise(verdict, home)
    except OSError as e:  # a summary that cannot be written must not cost the run's exit code
        tell(f"loadchaos: the step summary: {e}", err=True)


def _without(argv: Sequence[str], secret: Sequence[str]) -> tuple[str, ...]:
    """The command line without the addresses of notifications: whoever has a webhook's URL may write to it."""
    hidden = [x for x in secret if not x.startswith("env:")]
    for text in hidden:
        argv = [part.replace(text, REDACTED) for part in argv]
    return tuple(argv)


def _headers(texts: Sequence[str]) -> Mapping[str, str]:
    headers = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise OptionError(f"--header {text!r}: NAME=env:VAR or NAME=text was expected")
        headers[name.strip()] = value
    return headers


def _exporter_port(asked: int | None) -> int:
    """The port asked for, which must be free; without one 9646, or a free one where that is taken."""
    import socket

    port = 9646 if asked is None else asked
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError as e:
            if asked is None:
                return 0
            raise OptionError(f"--exporter-port {port} is in use ({e.strerror}); 0 takes a free one") from None
    return port


# --- probe ------------------------------------------------------------------------------------------------------------


@main.command()
@click.argument("url")
@click.option("--admin-url", metavar="URL", help="Where /health, /metrics and the admin endpoints are, if elsewhere.")
@click.option("--model", metavar="NAME", help="The model to ask for; the server's first otherwise.")
@click.option("--api-key-env", metavar="VAR", help="The variable that holds the API key.")
@click.option("--header", "headers", multiple=True, metavar="NAME=env:VAR", help="A further header, also NAME=text.")
@click.option("--ca", metavar="FILE", help="Believe these certificates (PEM) in place of the system's.")
@click.option("-k", "--insecure", is_flag=True, help="Believe any certificate.")
@click.option("--lengths", is_flag=True, help="Search the longest prompt it takes, with at most 40 generations.")
@click.option("--authorize", multiple=True, metavar="HOST:PORT", help="This server may be harmed (by --lengths).")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def probe(
    url: str,
    admin_url: str | None,
    model: str | None,
    api_key_env: str | None,
    headers: tuple[str, ...],
    ca: str | None,
    insecure: bool,
    lengths: bool,
    authorize: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say what a server is, what it can take, and which profiles fit it: at most 20 reads and 3 small generations."""
    import asyncio

    import httpx
    import orjson

    from loadchaos.chaos import authorization
    from loadchaos.core import resources
    from loadchaos.core.tls import TlsSettings
    from loadchaos.runner import probe as room
    from loadchaos.runner.options import Options, request_headers
    from loadchaos.server.discovery.calibrate import CalibrationRequest, DiscoveryClient, parse_target

    base = parse_target(url)
    admin = parse_target(admin_url) if admin_url else base
    sent = request_headers(Options(api_key_env=api_key_env, headers=_headers(headers)))
    tls = TlsSettings(ca, insecure).context()
    profiles = {name: profile_of(str(path), ()) for name, path in resources.profiles().items()}
    if lengths:
        authorization.check(admin, ["--lengths sends prompts at the edge of its context"], authorize)

    async def ask() -> room.Probed:
        async with httpx.AsyncClient(headers=sent, verify=tls, trust_env=False) as client:
            wanted = CalibrationRequest(model=model, api_key_env=api_key_env)
            return await room.probe(DiscoveryClient(client, base, admin), wanted, profiles, lengths=lengths)

    probed = asyncio.run(ask())
    click.echo(orjson.dumps(probed.to_json(), option=orjson.OPT_INDENT_2).decode() if as_json else room.page(probed))
    if probed.trouble:
        sys.exit(4)


# --- commands that have files of their own ------------------------------------------------------------------------------

for _command in (
    check,
    explain,
    profiles,
    init,
    judge,
    report,
    compare,
    runs,
    export,
    follow,
    soak,
    trend,
    classify,
    signatures,
    stack,
    launch,
    worker,
    images,
    sim,
):
    main.add_command(_command)
