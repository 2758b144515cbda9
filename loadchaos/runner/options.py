"""What the command line adds to a profile, and what follows from both: which server, with which headers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from loadchaos.chaos import authorization
from loadchaos.core.errors import OptionError
from loadchaos.core.model import Terms
from loadchaos.core.tls import TlsSettings
from loadchaos.profile.profile import Profile
from loadchaos.runner.resume import Point
from loadchaos.runner.server_under_test import TargetSpec, free_port
from loadchaos.server.discovery.client import parse_target
from loadchaos.server.discovery.local_tokenizer import Folder
from loadchaos.server.monitor.logs import read_spec

_HEADER_VARIABLE = "LOADCHAOS_HEADER_"


@dataclass(frozen=True)
class Master:
    """The load is driven by workers on other machines: how many, where they connect, how long they may take to come."""

    workers: int
    bind_host: str = "*"
    bind_port: int = 5557
    wait_s: float = 300.0


@dataclass(frozen=True)
class Options:
    """What the command line adds to a profile; texts are as the user gave them."""

    target: str | None = None
    admin_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    trust: TlsSettings = field(default_factory=TlsSettings)
    tokenizer: str | None = None
    server_log: Sequence[str] = ()
    out: Path = Path("runs")
    seed: int = 0
    duration_s: float | None = None
    authorize: Sequence[str] = ()
    shared: bool = False
    wait_ready_s: float | None = None
    pid: int | None = None
    toxiproxy: str | None = None
    embedded: bool = False
    exporter_port: int | None = None
    live: bool = True
    processes: int = 1
    master: Master | None = None
    resume: Point | None = None
    argv: Sequence[str] = ()
    follower_variables: Mapping[str, str] = field(default_factory=dict, repr=False)  # notify.handing_over: secrets


def drivers(options: Options) -> int:
    """How many workers share the plan."""
    return options.processes if options.master is None else options.master.workers


def terms(profile: Profile, options: Options) -> Terms:
    """What the verdict is judged by; a run that goes on with another one has only the rest of its requests to send."""
    whole = profile.terms(options.seed)
    return whole if options.resume is None else replace(whole, planned_requests=options.resume.left)


def place(profile: Profile, options: Options) -> TargetSpec:
    """The server that is meant, authorised where it can be harmed. OptionError or AuthorizationError, before anything."""
    kind = target_kind(profile, options)
    if options.master is not None:
        _refuse_for_workers(options)
    url = parse_target(options.target) if options.target is not None else None
    admin_url = parse_target(options.admin_url) if options.admin_url else None
    strangers = _strangers(profile, kind, url, admin_url)
    for stranger in strangers:
        authorization.check(stranger, profile.dangers(), options.authorize)
    for spec in options.server_log:
        _refuse_unreadable(spec, may_come=options.wait_ready_s is not None)
    trust = options.trust
    if trust == TlsSettings():
        trust = TlsSettings(profile.target.ca, profile.target.insecure)
    trust.context()  # a file that is none is told before anything exists
    local_tokenizer(profile, options)
    _refuse_pid(profile, options.pid, [u for u in (url, admin_url) if u is not None])
    toxiproxy = options.toxiproxy or profile.target.toxiproxy
    return TargetSpec(
        kind,
        url,
        admin_url,
        options.server_log,
        request_headers(options),
        trust,
        options.pid,
        parse_target(toxiproxy) if toxiproxy else None,
        strangers,
    )


def local_tokenizer(profile: Profile, options: Options) -> Folder | None:
    """The folder to count words by, where one is named. OptionError where it is none."""
    path = options.tokenizer or profile.target.tokenizer
    return Folder.load(path) if path else None


def _strangers(profile: Profile, kind: str, url: str | None, admin_url: str | None) -> tuple[str, ...]:
    """Every URL that load or attacks reach of a server that loadchaos does not start: each needs a word of its own."""
    replicas = [parse_target(r.url) for r in profile.target.replicas] if kind == "external" else []
    return tuple(dict.fromkeys(u for u in (admin_url, url, *replicas) if u is not None))


def _refuse_pid(profile: Profile, pid: int | None, urls: Sequence[str]) -> None:
    """A pid that is not the server's would have another program signalled in its place."""
    if pid is None:
        return
    if not urls:
        raise OptionError("--pid goes with --target: of a server that loadchaos starts it knows the pid")
    if profile.target.replicas:
        raise OptionError("--pid names one process, and the profile names several replicas: leave it out")
    authorization.refuse_wrong_pid(pid, urls)


def _refuse_for_workers(options: Options) -> None:
    """What cannot be with workers on other machines, said before anything exists."""
    if options.processes > 1:
        raise OptionError("--processes is for this machine alone; with --master each `loadchaos worker` is a process")
    texts = [name for name, value in options.headers.items() if not value.startswith("env:")]
    if texts:
        raise OptionError(
            f"--header {texts[0]}: its value would travel to the workers in the open; write {texts[0]}=env:VAR and set VAR "
            "for each worker"
        )


def _refuse_unreadable(spec: str, *, may_come: bool) -> None:
    """A log that cannot be read would leave causes unnamed without a word. `may_come`: the server is still to start."""
    kind, rest = read_spec(spec)
    if kind != "file":
        return
    path = Path(rest).expanduser()
    if path.is_dir():
        raise OptionError(f"--server-log {spec} is a folder; the server's log is a file")
    if not path.exists():
        if may_come:
            return
        raise OptionError(f"--server-log {spec}: no such file (with --wait-ready it may come later)")
    if not os.access(path, os.R_OK):
        raise OptionError(
            f"--server-log {spec}: this user may not read it: give it the right to (chmod, a group), or run as who may"
        )


def target_kind(profile: Profile, options: Options) -> str:
    """embedded, launched or external; the embedded server only where neither a target nor a command is given."""
    if options.target is not None and options.embedded:
        raise OptionError("--target and --embedded exclude each other: which server is meant?")
    if options.target is not None:
        return "external"
    if profile.target.launch is not None and not options.embedded:
        return "launched"
    if profile.target.embedded is None:
        raise OptionError(f"{profile.name} needs a server: give --target URL (the profile has no embedded one)")
    if os.environ.get("CI") == "true" and not options.embedded:
        raise OptionError("under CI=true the embedded server runs only when asked for: --embedded, or --target URL")
    return "embedded"


def request_headers(options: Options) -> dict[str, str]:
    """Headers with their values from the environment; a variable that is missing is said before anything exists."""
    headers = {}
    for name, value in options.headers.items():
        headers[name] = _variable(value[4:], f"--header {name}={value}") if value.startswith("env:") else value
    if options.api_key_env is not None:
        key = _variable(options.api_key_env, f"--api-key-env {options.api_key_env}")
        headers["Authorization"] = f"Bearer {key}"
    return headers


def planned_headers(options: Options) -> dict[str, str]:
    """Headers as plan.json may hold them: values only by the name of their variable, those given as text too."""
    return {
        name: value if value.startswith("env:") else f"env:{_HEADER_VARIABLE}{n}"
        for n, (name, value) in enumerate(options.headers.items())
    }


def locust_arguments(options: Options) -> tuple[list[str], dict[str, str]]:
    """What of Locust's own options, and which variables, its child gets."""
    variables = header_variables(options)
    if (master := options.master) is not None:
        argv = ["--master", "--expect-workers", str(master.workers), "--master-bind-host", master.bind_host]
        argv += ["--master-bind-port", str(master.bind_port)]
        return argv, {**variables, "LOADCHAOS_WAIT_FOR_WORKERS_S": str(master.wait_s)}
    if options.processes == 1:
        return [], variables
    port = str(free_port())  # Locust's own is taken where two runs go on at a time
    here = [
        "--master-bind-host",
        "127.0.0.1",
        "--master-bind-port",
        port,
        "--master-host",
        "127.0.0.1",
        "--master-port",
        port,
    ]
    return ["--processes", str(options.processes), *here], variables


def header_variables(options: Options) -> dict[str, str]:
    """The variables that `planned_headers` names, for the workers' environment."""
    texts = enumerate(options.headers.values())
    return {f"{_HEADER_VARIABLE}{n}": value for n, value in texts if not value.startswith("env:")}


def _variable(name: str, option: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise OptionError(f"{option}: the variable {name} is not set: export it")
    return value
