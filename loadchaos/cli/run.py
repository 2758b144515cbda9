"""`loadchaos run`: run a profile and exit with the code of its verdict."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadchaos.cli.common import (
    COUNT,
    FOLDER,
    Given,
    allow_path_option,
    authorize_option,
    echo,
    expect_option,
    exporter_port_option,
    flag,
    free_exporter_port,
    no_live_option,
    no_questions_option,
    option,
    options_of,
    out_option,
    process_count,
    profile_names,
    say,
    server_options,
    shared_option,
    target_option,
    terminal,
    time_option,
    verbose_option,
    wait_ready_option,
    yes_option,
)
from loadchaos.cli.environment import from_openai_variables, openai_target, words_from_environment
from loadchaos.cli.help import in_group
from loadchaos.cli.load_options import (
    LoadCommand,
    endpoint_of,
    goodput_option,
    load_options,
    made_from,
    made_profile,
    refuse_with_profile,
)
from loadchaos.cli.profiles import acts_of, profile_of, set_option
from loadchaos.cli.result_options import figures_of, result_options, show
from loadchaos.cli.resume import called_again, remaining_duration
from loadchaos.cli.worker import bind_options, master
from loadchaos.core import exit_codes, resources
from loadchaos.core.errors import OptionError, ProfileError
from loadchaos.core.model import DEFAULT_EXPECT
from loadchaos.core.private import create_privately
from loadchaos.core.redact import REDACTED

if TYPE_CHECKING:
    from loadchaos.analysis.verdict.model import Verdict
    from loadchaos.campaigns.repeat.session import Repeats
    from loadchaos.profile.profile import Profile
    from loadchaos.profile.run_plan import ResumePoint
    from loadchaos.run.finalize import Result
    from loadchaos.run.interrupts import Interrupts
    from loadchaos.run.options import Options


def _repeats(_ctx: click.Context, _option: click.Parameter, text: str | None) -> Repeats | None:
    if text is None:
        return None
    from loadchaos.campaigns.repeat.session import parse

    return parse(text)


@click.command(cls=LoadCommand)
@click.pass_context
@click.argument("profile", required=False, shell_complete=profile_names)
@target_option("-H --target --host --base-url target", "URL of the server, with or without /v1.")
@option(
    "--launch", "Start this server, e.g. 'vllm serve MODEL --port 8000'. It listens at --target if given.", "COMMAND"
)
@flag("--embedded", "Use the embedded server, also if CI=true or the profile has none.")
@option(
    "--server-log",
    "Server log: PATH, docker:NAME, k8s:NS/POD[/CONTAINER], journal:UNIT, ssh:HOST:PATH or cmd:'...'. Repeatable.",
    "SOURCE",
    multiple=True,
)
@server_options
@option(
    "-u --users --concurrency --max-concurrency users",
    "Number of users in every phase that has users. Without a profile and with --rate: most requests in flight.",
    type=COUNT,
)
@load_options
@goodput_option
@time_option("-t --duration --run-time duration", "End the load after this time.", positive=True)
@expect_option("Also expect this, e.g. 'ttft_p99 <= 2s'. Repeatable.")
@set_option
@authorize_option("Allow attacks on this server. Repeatable.")
@flag("--dry-run", "Print what would be sent and when. Send nothing.")
@verbose_option
@in_group(
    "Server",
    option("--tokenizer", "Count tokens with tokenizer.json in this folder. Nothing is downloaded.", "DIR"),
    option(
        "--endpoint",
        "Send all traffic to this endpoint: chat, completions, responses and others (docs/traffic.md), or to a path as it "
        "is, such as /api/v3/chat/completions.",
        "NAME|PATH",
    ),
    option("--pid", "Process ID of a server on this machine, for signals.", type=COUNT),
    option(
        "--on-429",
        "wait: send a request that is refused with 429 again after its Retry-After.",
        type=click.Choice(["end", "wait"]),
    ),
)
@in_group("Before the load", no_questions_option, shared_option, wait_ready_option, yes_option, allow_path_option)
@in_group(
    "Run folder and output",
    out_option("Folder for run folders."),
    option(
        "--resume",
        "Continue an interrupted run with its profile, options and seed, at the next step of its plan.",
        "RUN",
        type=FOLDER,
    ),
    option("--seed", "The same profile and seed give the same requests.", type=int, default=0, show_default=True),
    option(
        "--repeat",
        "Run it N times with successive seeds, or until the headline figures are known to 5 % (until=5%, at most 20 "
        "times), and show the interval between runs.",
        "N|until=5%",
        callback=_repeats,
    ),
    option(
        "--audit",
        "Send the load with distinct and with equal prompts, by turns, and say how much the caches of the server give: "
        "three times each, or --repeat N.",
        type=click.Choice(["cache"]),
    ),
    no_live_option,
    flag("--print-profile", "Print the profile as YAML, with all options in it. Send nothing."),
    option("--ci", "Write annotations and a step summary for GitHub Actions.", type=click.Choice(["github"])),
    option(
        "--notify",
        "Webhook for incidents and the verdict: a URL, env:VAR or an Apprise URL. Repeatable.",
        "URL",
        multiple=True,
    ),
    exporter_port_option,
)
@result_options
@in_group(
    "Workers",
    option(
        "--processes",
        "Number of load-generating processes. auto: from the profile and the cores of this machine.",
        "N|auto",
        callback=process_count,
        default="1",
        show_default=True,
    ),
    flag("--master", "Let workers on other machines send the load (`loadchaos worker`)."),
    option("--expect-workers", "Start the load when N workers are connected.", "N", type=COUNT),
    bind_options,
    time_option("--wait-workers", "Wait at most this long for workers.", default="5m", show_default=True),
)
@in_group(
    "Web UI",
    flag("--web", "Start Locust's web UI. Each Start...Stop in it is a run."),
    option(
        "--web-port",
        "Port of the web UI. 0 selects a free port.",
        type=click.IntRange(0, 65535),
        default=8089,
        show_default=True,
    ),
    option(
        "--web-host",
        "Address of the web UI. Any other address asks for a login.",
        "HOST",
        default="127.0.0.1",
        show_default=True,
    ),
    flag("--headless", "Accepted for compatibility with Locust. This is the default.", hidden=True),
)
def run(ctx: click.Context, /, profile: str | None, overrides: tuple[str, ...], **options: Any) -> None:
    """Run a profile: send its load, watch the server, judge the result.

    The server is --target, --launch, the one the profile launches, or the embedded one. PROFILE is a path or the name of a
    shipped profile. Without a profile, options named as in `vllm bench serve` describe the load, for example
    `loadchaos run --target URL --rate 5 --num-prompts 200 --random-input-len 1024 --random-output-len 128`.
    """
    create_privately()
    resumed = None
    if (folder := options["resume"]) is not None:
        options.update(called_again(ctx, folder))
        profile, overrides = options["profile"], options["overrides"]
    loaded, options["duration"] = _loaded(profile, overrides, options)
    options["duration_is_end"] = profile is None
    own_server = loaded.target.launch or loaded.target.embedded or options["embedded"] or options["launch"]
    replicas = [replica.url for replica in loaded.target.replicas]
    options |= from_openai_variables(options, needs_target=not own_server, replicas=replicas)
    options["words"] = words_from_environment(ctx)
    if options["print_profile"]:
        click.echo(loaded.to_yaml(), nl=False)
        return
    if options["launch"]:
        loaded, options["target"] = with_launch(loaded, options["launch"], options["target"]), None
    if folder is not None:
        from loadchaos.core.ledger.folder import RunFolder
        from loadchaos.run.resume import point

        resumed = point(RunFolder(folder), loaded, options["seed"])
        options["duration"] = remaining_duration(ctx, folder, options["duration"], resumed.loaded_s)
    if options["processes"] == "auto":
        options["processes"] = _processes_for(loaded, options)
    if options["dry_run"]:
        from loadchaos.profile.explain import explain

        asked = not options["no_questions"]
        echo(explain(loaded, options["seed"], target=_server_of(options), ends_s=options["duration"], questions=asked))
        return
    if (
        profile is not None
        and (acts := acts_of(loaded))
        and resources.profile(profile) not in resources.profiles().values()
    ):
        say("\n  ".join([f"{profile} is no shipped profile:", *acts]))
    sys.exit(_run(loaded, profile, options, resumed))


def _server_of(options: Given) -> str | None:
    from loadchaos.server.discovery.client import parse_target

    return None if options["target"] is None else parse_target(options["target"])


def _processes_for(loaded: Profile, options: Given) -> int:
    from loadchaos.core.cores import usable_cores
    from loadchaos.profile.cpu_estimate import choose_processes, estimate

    if options["master"]:
        raise OptionError("--processes auto counts the cores of this machine, and --master sends no load: leave it out")
    tls = any(str(url).startswith("https:") for url in (options["target"], *(r.url for r in loaded.target.replicas)))
    chosen, text = choose_processes(estimate(loaded, options["seed"] or 0, tls=tls), usable_cores())
    echo(text, err=True)
    return chosen


def _loaded(profile: str | None, overrides: Sequence[str], options: Given) -> tuple[Profile, float | None]:
    """Profile and duration of the run; the phase of a profile that is made of options may have the duration."""
    duration_s = options["duration"]
    overrides = [*overrides, *([f"on_429={options['on_429']}"] if options["on_429"] else [])]
    if profile is None:
        from loadchaos.profile.made import name_of, phase_takes_duration
        from loadchaos.profile.target import Target

        if (made := made_from(options)) is None:
            raise OptionError(
                "a profile is missing: give a path or a shipped name (`loadchaos profiles` lists them), or describe the "
                "load, e.g. --rate 5 --num-prompts 200"
            )
        if options["target"] and not options["print_profile"]:  # `trend` and `runs` keep servers apart by the name
            made = replace(made, name=f"{name_of(made)}-{_server_name(options['target'])}")
        profile_made = made_profile(made, overrides)
        if more := _expecting(options["expect"], profile_made):
            profile_made = made_profile(made, [*overrides, *more])
        server = options["target"] or options["launch"] or profile_made.target != Target() or openai_target()
        if not (server or options["print_profile"] or options["dry_run"]):
            raise OptionError("no server: give --target URL, --launch COMMAND, or --embedded (a simulated one)")
        return profile_made, None if phase_takes_duration(made) else duration_s
    refuse_with_profile(options, profile)
    users, endpoint = options["users"], endpoint_of(options["endpoint"], options["backend"])
    changes = [*overrides, *([f"load.*.users={users}"] if users else [])]
    if options["goodput"]:
        from loadchaos.profile import slo

        changes.append(f"slo={{{', '.join(f'{k}: {v}' for k, v in slo.written(options['goodput']).items())}}}")
    loaded = profile_of(profile, changes)
    if options["embedded"] and loaded.target.embedded is None:
        changes.append("target.embedded={}")
        loaded = profile_of(profile, changes)
    if more := _expecting(options["expect"], loaded):
        changes += more
        loaded = profile_of(profile, changes)
    return _moved(profile, changes, endpoint, len(loaded.traffic)) if endpoint else loaded, duration_s


def _server_name(target: str) -> str:
    """`port-8000` of a server on this machine, `gpu7-8000` of another one."""
    from loadchaos.core.urls import LOOPBACK, host_and_port
    from loadchaos.server.discovery.client import parse_target

    host, port = host_and_port(parse_target(target))
    return f"port-{port}" if host in LOOPBACK else re.sub(r"[^A-Za-z0-9.]+", "-", f"{host}-{port}").strip("-")


def _expecting(rules: Sequence[str], profile: Profile) -> list[str]:
    """Changes of a profile that add expectations to its own, or to the default ones."""
    from loadchaos.core import expectation_names

    known = profile.expect or DEFAULT_EXPECT
    for rule in rules:
        try:
            expectation_names.parse(rule, profile.expect_prefixes())
        except ValueError as e:
            raise OptionError(f"--expect {rule!r}: {e}") from None
    return [f"expect={json.dumps(list(dict.fromkeys([*known, *rules])))}"] if rules else []


def _moved(profile: str, changes: Sequence[str], endpoint: str, traffics: int) -> Profile:
    """The profile with all traffic at one endpoint. Raises ProfileError that names what cannot be sent there."""
    moves = [f"traffic.{number}.endpoint={endpoint}" for number in range(traffics)]
    try:
        return profile_of(profile, [*changes, *moves])
    except ProfileError as e:
        raise ProfileError(
            [f"--endpoint {endpoint}: traffic of {profile} cannot be sent there:", *e.mistakes]
        ) from None


def _run(loaded: Profile, profile: str | None, options: Given, resumed: ResumePoint | None) -> int:
    from loadchaos.report.export import notify
    from loadchaos.run.interrupts import Interrupts
    from loadchaos.run.run import run as run_once

    addresses = [notify.address(a) for a in options["notify"]]
    interrupts = Interrupts()
    settings, figures = run_options(options, resumed, notify.to_environment(addresses)), figures_of(options)
    if options["audit"] is not None:
        return _audit(loaded, settings, options, interrupts)
    if options["repeat"] is not None:
        return _repeat(loaded, settings, options, interrupts)

    def print_result(result: Result) -> None:
        print_run_result(result, profile, options, addresses)
        if text := show(result, figures, options):
            echo(text)

    if options["web"]:
        from loadchaos.campaigns.webui.web_runs import WebSession

        web = WebSession(loaded, settings, interrupts, say, print_result)
        return interrupts.run(web.serve(options["web_host"], options["web_port"]))
    result = interrupts.run(run_once(loaded, settings, interrupts))
    print_result(result)
    return result.exit_code


def _repeat(loaded: Profile, settings: Options, options: Given, interrupts: Interrupts) -> int:
    from loadchaos.campaigns.campaign import Campaign
    from loadchaos.campaigns.repeat.session import RepeatSession
    from loadchaos.report.terminal.repeat import render

    _refuse_of_one_run("--repeat", options)
    campaign = Campaign(options["out"] / f"repeat-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{loaded.name}", say, interrupts)
    campaign.lock("loadchaos run --repeat")
    session = RepeatSession(campaign, loaded, settings, options["repeat"])
    try:
        interrupts.run(session.run())
    finally:
        campaign.close()
        if session.result.runs:
            echo(render(session.result, campaign.folder))
    return session.result.exit_code or exit_codes.PASS


def _refuse_of_one_run(option: str, options: Given) -> None:
    for name in ("web", "master", "resume", "save_result", "percentile_metrics", "metric_percentiles", "ci", "notify"):
        if options[name]:
            raise OptionError(f"{option}: --{name.replace('_', '-')} is of a single run; leave one of them out")


def _audit(loaded: Profile, settings: Options, options: Given, interrupts: Interrupts) -> int:
    from loadchaos.campaigns.campaign import Campaign
    from loadchaos.campaigns.repeat.audit import DISTINCT, EQUAL, TIMES, CacheAudit
    from loadchaos.report.terminal.audit import render

    _refuse_of_one_run("--audit", options)
    repeats = options["repeat"]
    if repeats is not None and repeats.within is not None:
        raise OptionError(f"--audit: --repeat {repeats.text}: a number of runs of each kind was expected, such as 5")
    campaign = Campaign(options["out"] / f"audit-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{loaded.name}", say, interrupts)
    audit = CacheAudit(campaign, loaded, settings, TIMES if repeats is None else repeats.times)
    campaign.lock("loadchaos run --audit")
    try:
        interrupts.run(audit.run())
    finally:
        campaign.close()
        if audit.audited(EQUAL).result.runs:
            echo(render(audit.audited(DISTINCT), audit.audited(EQUAL), audit.exit_code, campaign.folder))
    return audit.exit_code


def run_options(options: Given, resumed: ResumePoint | None, variables: Mapping[str, str]) -> Options:
    return options_of(
        options,
        exporter_port=free_exporter_port(options["exporter_port"]),
        live=not options["no_live"],
        questions=not options["no_questions"],
        master=master(options),
        resume=resumed,
        argv=redacted_argv([*sys.argv, *options.get("words", ())], options["notify"]),
        follower_variables=variables,
    )


def run_parameters(arguments: Sequence[str]) -> Given:
    """Parse arguments as `loadchaos run` does, without running anything."""
    return run.make_context("loadchaos run", list(arguments)).params


def has_parameter(name: str, arguments: Sequence[str]) -> bool:
    """True if arguments or the environment set an option of `loadchaos run`."""
    ctx = run.make_context("loadchaos run", list(arguments))
    return ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


def print_run_result(result: Result, profile: str | None, options: Given, addresses: Sequence[str]) -> None:
    from loadchaos.report.export import github, notify
    from loadchaos.report.terminal.summary import render

    if result.verdict is not None:
        verdict, home, ci = result.verdict, result.folder.path, options["ci"]
        color, width = terminal()
        summary = render(verdict, home, color=color, width=width, full=options["verbose"])
        echo(summary if ci is None else github.fenced(summary))
        if ci == "github":
            _print_github(verdict, home, profile)
        for trouble in filter(None, (notify.send(a, notify.message(verdict, home)) for a in addresses)):
            say(f"loadchaos: {trouble}")
    if result.error:
        say(f"loadchaos: {result.error}")


def with_launch(profile: Profile, command: str, url: str | None) -> Profile:
    from loadchaos.server.discovery.client import parse_target
    from loadchaos.server.process.launcher import parse_command_line

    server = parse_command_line(command)
    return profile.with_launch(
        {"command": server.argv, "env": server.env, "url": parse_target(url) if url else server.url}
    )


def _print_github(verdict: Verdict, home: Path, profile: str | None) -> None:
    from loadchaos.report.export import github

    path = home / "profile.yaml" if profile is None else resources.profile(profile)
    echo("\n".join(github.annotate(verdict, os.path.relpath(path))))
    try:
        github.summarise(verdict, home)
    except OSError as e:  # a summary that cannot be written must not change the run's exit code
        say(f"loadchaos: the step summary cannot be written: {e}")


def redacted_argv(argv: Sequence[str], secrets: Sequence[str]) -> tuple[str, ...]:
    """Command line without notification URLs. Anybody who has a webhook's URL can post to it."""
    for text in secrets:
        if not text.startswith("env:"):
            argv = [part.replace(text, REDACTED) for part in argv]
    return tuple(argv)
