"""Options of `loadchaos run` and the settings that follow from them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from loadchaos.chaos import authorization
from loadchaos.core.errors import OptionError
from loadchaos.core.model import Terms
from loadchaos.core.redact import hidden_variables, launch_secrets
from loadchaos.core.tls import TlsSettings
from loadchaos.load.payloads import images_by_path
from loadchaos.load.wire.request import headers_with_values
from loadchaos.profile.explain import load_text
from loadchaos.profile.profile import Profile
from loadchaos.profile.run_plan import ResumePoint
from loadchaos.run.held_server import HeldServer
from loadchaos.run.others_load import OthersOptions
from loadchaos.run.ports import free_port
from loadchaos.run.server_under_test import TargetSpec
from loadchaos.server.discovery.client import parse_target
from loadchaos.server.discovery.local_tokenizer import LocalTokenizer
from loadchaos.server.monitor.logs import prove

if TYPE_CHECKING:
    from loadchaos.analysis.capacity.step_watch import StepWatch

_HEADER_VARIABLE = "LOADCHAOS_HEADER_"
_NOT_YET = re.compile(
    r"[Nn]o such (?:container|file|object)|[Nn]ot ?[Ff]ound|ended with code 0|waiting to start|initializing"
    r"|No entries|No journal files"
)
_COMMAND_NOT_FOUND = "ended with code 127"


@dataclass(frozen=True)
class Master:
    """Settings for workers on other machines. They connect to `bind_host` and `bind_port` within `wait_s` seconds."""

    workers: int
    bind_host: str = "*"
    bind_port: int = 5557
    wait_s: float = 300.0


@dataclass(frozen=True)
class Options:
    """Options of the command line; texts are as the user gave them. `held` is a launched server that other runs use
    too. A `replay` is one of many short runs: its load process starts early and without Locust, and it has neither a
    live view nor an exporter. A `watch` ends the load early. `duration_is_end`: `duration_s` is a part of the load that was
    asked for, and cuts nothing of a profile. `questions`: those before and beside the load, whose answers are judged.
    `others`: the run watches their load in place of one of its own.
    """

    target: str | None = None
    admin_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: TlsSettings = field(default_factory=TlsSettings)
    tokenizer: str | None = None
    server_log: Sequence[str] = ()
    out: Path = Path("runs")
    seed: int = 0
    duration_s: float | None = None
    duration_is_end: bool = False
    authorize: Sequence[str] = ()
    shared: bool = False
    wait_ready_s: float | None = None
    pid: int | None = None
    embedded: bool = False
    exporter_port: int | Literal["default"] | None = None
    live: bool = True
    processes: int = 1
    master: Master | None = None
    resume: ResumePoint | None = None
    argv: Sequence[str] = ()
    held: HeldServer | None = None
    replay: bool = False
    watch: StepWatch | None = None
    questions: bool = True
    others: OthersOptions | None = None
    follower_variables: Mapping[str, str] = field(default_factory=dict, repr=False)  # notify.to_environment: secrets

    @property
    def load_unseen(self) -> bool:
        """True where the load is requests of others, and none of them passes here."""
        return self.others is not None and self.others.watched == "traffic"


def worker_count(options: Options) -> int:
    return options.processes if options.master is None else options.master.workers


def verdict_terms(profile: Profile, options: Options) -> Terms:
    """Terms that the verdict is judged by. A resumed run plans only the requests that are left."""
    terms = profile.terms(options.seed)
    if options.others is not None:
        watched = options.others.watched
        terms = replace(terms, watched=watched, steady=False, endpoints={}, in_flight=())
        return replace(terms, planned_requests=None, planned_s=None)
    terms = replace(terms, load=load_text(profile, options.duration_s))
    return terms if options.resume is None else replace(terms, planned_requests=options.resume.left)


def target_spec(profile: Profile, options: Options) -> TargetSpec:
    """Find the server to test. Raises OptionError, and AuthorizationError for attacks that --authorize does not allow."""
    kind = target_kind(profile, options)
    if options.master is not None:
        _refuse_for_workers(options)
    url = parse_target(options.target) if options.target is not None else None
    admin_url = parse_target(options.admin_url) if options.admin_url else None
    replicas = (parse_target(r.url) for r in profile.target.replicas)
    external_urls = tuple(dict.fromkeys(u for u in (admin_url, url, *replicas) if u is not None))
    for external_url in external_urls:
        authorization.check(external_url, profile.dangers(), options.authorize)
    if options.master is not None and url is not None:
        authorization.check(url, profile.load_dangers(), options.authorize, elsewhere=True)
    prove_logs(profile, options.server_log, may_appear=options.wait_ready_s is not None)
    tls = options.tls
    if tls == TlsSettings():
        tls = TlsSettings(profile.target.ca, profile.target.insecure)
    tls.context()  # a bad certificate file is an error before anything exists
    local_tokenizer(profile, options)
    _refuse_pid(profile, options.pid, [u for u in (url, admin_url) if u is not None])
    headers = headers_of_options(options)
    return TargetSpec(
        kind=kind,
        url=url,
        admin_url=admin_url,
        server_log=options.server_log,
        headers=headers,
        tls=tls,
        pid=options.pid,
        external_urls=external_urls,
        held=options.held,
    )


def local_tokenizer(profile: Profile, options: Options) -> LocalTokenizer | None:
    """Load the local tokenizer, where one is named. Raises OptionError where its folder is unusable."""
    path = options.tokenizer or profile.target.tokenizer
    return LocalTokenizer.load(path) if path else None


def _refuse_pid(profile: Profile, pid: int | None, urls: Sequence[str]) -> None:
    """Refuse a --pid that is not the server's. Process attacks would signal another program."""
    if pid is None:
        return
    if not urls:
        raise OptionError("--pid needs --target; omit --pid for a server that loadchaos starts")
    if profile.target.replicas:
        raise OptionError("--pid names one process but the profile has several replicas: leave it out")
    authorization.refuse_wrong_pid(pid, urls)


def _refuse_for_workers(options: Options) -> None:
    if options.processes > 1:
        raise OptionError(
            "--processes and --master exclude each other: with --master, start one `loadchaos worker` for each process"
        )
    if images_by_path.allowed():
        raise OptionError(
            "--allow-path and --master exclude each other: workers get files from the folder of a requests file only; "
            "copy the images there"
        )
    texts = [name for name, value in options.headers.items() if not value.startswith("env:")]
    if texts:
        raise OptionError(
            f"--header {texts[0]}: the value would be sent to the workers unencrypted; write {texts[0]}=env:VAR and set "
            "VAR for each worker"
        )


def prove_logs(profile: Profile, specs: Sequence[str], *, may_appear: bool) -> None:
    """Try to follow each log. Raises OptionError with the words of its command for one that cannot be followed. With
    `may_appear` a log may not exist yet, as the server still has to start.
    """
    replicas = [(f"target.replicas.{n}.log", r.log) for n, r in enumerate(profile.target.replicas) if r.log]
    for name, spec in (*(("--server-log", spec) for spec in specs), *replicas):
        why = prove(spec)
        is_absent = _NOT_YET.search(why) is not None and _COMMAND_NOT_FOUND not in why
        if why and not (may_appear and is_absent):
            hint = " (with --wait-ready it may appear later)" if is_absent else ""
            raise OptionError(f"{name} {spec} cannot be followed: {why}{hint}")


def target_kind(profile: Profile, options: Options) -> str:
    """`embedded` (where neither target nor launch command is given), `launched` or `external`."""
    if options.target is not None and options.embedded:
        raise OptionError("--target and --embedded exclude each other: give one of them")
    if options.target is not None:
        return "external"
    if profile.target.launch is not None and not options.embedded:
        return "launched"
    if profile.target.embedded is None:
        raise OptionError(
            f"{profile.name} needs a server: give --target URL, or --embedded for a simulated one (the profile has none)"
        )
    if os.environ.get("CI") == "true" and not options.embedded:
        raise OptionError(
            "under CI=true the embedded server runs only with --embedded; give --embedded or --target URL"
        )
    return "embedded"


def headers_of_options(options: Options) -> dict[str, str]:
    """Request headers with values from the environment. Raises OptionError for a variable that is not set."""
    return headers_with_values(options.headers, options.api_key_env, os.environ)


def planned_headers(options: Options) -> dict[str, str]:
    """Headers for plan.json, with values only by variable name. plan.json is no place for secrets."""
    return {
        name: f"env:{_HEADER_VARIABLE}{n}" if value and not value.startswith("env:") else value
        for n, (name, value) in enumerate(options.headers.items())
    }


def locust_arguments(options: Options, profile: Profile) -> tuple[list[str], dict[str, str]]:
    launch = profile.target.launch
    variables = {**header_variables(options), **hidden_variables(launch_secrets(launch.env).values() if launch else ())}
    if (master := options.master) is not None:
        argv = ["--master", "--expect-workers", str(master.workers), "--master-bind-host", master.bind_host]
        argv += ["--master-bind-port", str(master.bind_port)]
        return argv, {**variables, "LOADCHAOS_WAIT_FOR_WORKERS_S": str(master.wait_s)}
    if options.processes == 1:
        return [], variables
    port = str(free_port())  # Locust's default port is taken when two runs go on at a time
    argv = ["--processes", str(options.processes), "--master-bind-host", "127.0.0.1", "--master-bind-port", port]
    return [*argv, "--master-host", "127.0.0.1", "--master-port", port], variables


def header_variables(options: Options) -> dict[str, str]:
    texts = enumerate(options.headers.values())
    return {f"{_HEADER_VARIABLE}{n}": value for n, value in texts if not value.startswith("env:")}
