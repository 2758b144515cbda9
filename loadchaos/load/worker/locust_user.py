"""Locust User classes of a profile's traffic, for your own locustfile.

    from loadchaos import from_profile
    Mixed = from_profile("mixed")

Locust decides the number of users, their ramp and the end. The profile decides what is sent, with which weights and
behaviours. Payloads, wire and outcomes are those of `loadchaos run`; TTFT and ITL are in Locust's statistics. There is
no run folder, monitoring, attack or verdict: use `loadchaos run` for those.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

import locust
from locust import User, task
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadchaos.core import resources, typed_json
from loadchaos.core.errors import LoadchaosError, TargetError
from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.lifetime import PYTHON_MODULE
from loadchaos.core.model import Facts, Step
from loadchaos.core.tls import TlsSettings
from loadchaos.load import registry
from loadchaos.load.behaviours import Behaviour
from loadchaos.load.wire.answer_reader import AnswerReader
from loadchaos.load.wire.exchange import SWEEP_S, Exchange, Progress
from loadchaos.load.wire.request import Request, headers_with_values
from loadchaos.load.wire.sockets import Slot
from loadchaos.load.worker import locust_stats
from loadchaos.load.worker.greenlets import Flag, flag, sleep, spawn
from loadchaos.load.worker.sessions import Hands, SessionRun
from loadchaos.load.worker.worker_plan import WorkerPlan
from loadchaos.profile.profile import load
from loadchaos.profile.run_plan import RunPlan
from loadchaos.profile.steps import of_phase

_NO_PLAN_PAUSE_S = 0.5
_ENDLESS_LOAD = [{"users": 1, "for": "87600h"}]
_SEED_STRIDE = 1_000_003
_DISCOVERY_FAILED = "loadchaos_discovery_failed_"


class SharedPlan:
    """The plan, next step and timeouts that all users in a process share."""

    def __init__(self, plan: WorkerPlan) -> None:
        self.plan = plan
        self.progress = Progress()
        self.exchanges: set[Exchange] = set()
        self.ended = self.paused = False
        self.stopping = flag()
        passes = (of_phase(plan.profile, plan.seed + number, 0, 0, 1) for number in itertools.count())
        self.steps: Iterator[Step] = itertools.chain.from_iterable(passes)
        spawn(self._sweep)

    def _sweep(self) -> None:
        while not self.ended or self.exchanges:
            sleep(SWEEP_S)
            for exchange in list(self.exchanges):
                exchange.sweep(time.monotonic_ns())


class ServerState:
    """Discovery of one server in one process. `shared` is None where it failed. `known` is set when discovery has ended."""

    def __init__(self) -> None:
        self.known: Flag = flag()
        self.shared: SharedPlan | None = None


class ProfileUser(User):
    """One user of a profile's traffic; `from_profile` makes classes of it."""

    abstract = True
    title: ClassVar[str]
    plan: ClassVar[RunPlan]
    servers: ClassVar[dict[str | None, ServerState]]
    reported_errors: ClassVar[set[str]]

    _shared: SharedPlan | None = None
    _slot: Slot | None = None

    @classmethod
    def shared_plan(cls, host: str | None, environment: Environment) -> SharedPlan | None:
        """Discover the server, once per process; returns None if that fails."""
        server = cls.servers.get(host)
        if server is None:
            server = cls.servers[host] = ServerState()
            # In its own greenlet, as Stop ends users whatever they wait for.
            spawn(cls._discover, server, host, environment)
        server.known.wait()
        return server.shared

    @classmethod
    def _discover(cls, server: ServerState, host: str | None, environment: Environment) -> None:
        try:
            plan = _discover_plan(cls.plan, host, environment)
            if cls.servers.get(host) is server:
                server.shared = SharedPlan(plan)
        except LoadchaosError as e:
            if cls.servers.get(host) is server:
                cls.stop_load(environment, str(e))
        finally:
            server.known.set()

    @classmethod
    def forget(cls) -> None:
        """Forget all servers; the next load may meet another one, or other flags."""
        for server in cls.servers.values():
            if server.shared is not None:
                server.shared.ended = True
        cls.servers.clear()
        cls.reported_errors.clear()

    @classmethod
    def stop_load(cls, environment: Environment, why: str) -> None:
        """End the load with an error that is also in Locust's failures. Without a web UI, Locust ends, too."""
        runner = cast("Any", environment.runner)
        if isinstance(environment.runner, WorkerRunner):
            runner.send_message(_DISCOVERY_FAILED + cls.title, why)  # only the master knows if there is a web UI
            return
        if why in cls.reported_errors:  # of each worker
            return
        cls.reported_errors.add(why)
        print(f"loadchaos: {why}", file=sys.stderr)
        failure = {"request_type": "LEARN", "name": cls.title, "response_time": 0, "response_length": 0, "context": {}}
        cast("Any", environment.events.request).fire(**failure, response=None, exception=LoadchaosError(why))
        if environment.web_ui is None:
            environment.process_exit_code = TargetError.exit_code
        if runner is not None:
            spawn(runner.quit if environment.web_ui is None else runner.stop)

    def on_start(self) -> None:
        self._shared = type(self).shared_plan(self.host, self.environment)
        self._slot = None if self._shared is None else Slot(self._shared.plan.target)

    def on_stop(self) -> None:
        if self._slot is not None:
            self._slot.close()

    @task
    def request(self) -> None:
        shared, slot = self._shared, self._slot
        if shared is None or slot is None:  # the error was reported, and the load ends
            sleep(_NO_PLAN_PAUSE_S)
            return
        step = next(shared.steps)
        begun_s = time.monotonic()
        request = shared.plan.build_request(step)
        if step.traffic in shared.plan.sessions:
            hands = Hands(self._send, lambda _: None, lambda: Slot(shared.plan.target))
            row = SessionRun(shared.plan, shared, hands, request).run(time.monotonic_ns(), slot)
        else:
            row = self._send(request, time.monotonic_ns(), slot, None)[0]
        if (paused_s := shared.plan.pause_s(row, time.monotonic() - begun_s, slot)) > 0:
            sleep(paused_s)

    def _send(
        self, request: Request, due_ns: int, slot: Slot, _least: int | None
    ) -> tuple[EndRow, AnswerReader | None]:
        shared = self._shared
        assert shared is not None, "it was discovered"
        behaviour: Behaviour = request.step.behaviour_options
        exchange = Exchange(request, slot, shared.progress, due_ns)
        shared.exchanges.add(exchange)
        try:
            row = behaviour.act(exchange)
        finally:
            shared.exchanges.discard(exchange)
        shared.plan.redact(row)
        locust_stats.report(self.environment, row, tokens=True)
        return row, exchange.answer


def from_profile(
    name: str,
    *,
    model: str | None = None,
    api_key_env: str | None = None,
    headers: Mapping[str, str] | None = None,
    seed: int = 0,
) -> type[ProfileUser]:
    """Make a User class that sends the traffic of a profile.

    Args:
        name: Path of a profile, or the name of a shipped one.
        model: Model to ask for; the server's first one without it.
        api_key_env: Variable that holds the API key.
        headers: More headers; a value may be `env:VAR`.
        seed: Seed of the requests.

    Raises:
        ProfileError: The profile is invalid.
    """
    profile = load(resources.profile(name), registry.traffic_registry())
    plan = RunPlan(
        profile={**profile.to_json(), "load": _ENDLESS_LOAD},
        seed=seed,
        base_url="",
        model=model,
        api_key_env=api_key_env,
        headers=dict(headers or {}),
        folder="",
        tls=TlsSettings(profile.target.ca, profile.target.insecure),
    )
    title = "".join(part.capitalize() for part in profile.name.replace("-", "_").split("_"))
    attributes = {
        "abstract": False,
        "title": title,
        "plan": plan,
        "servers": {},
        "reported_errors": set(),
        "__doc__": profile.about,
    }
    user_class = cast("type[ProfileUser]", type(title, (ProfileUser,), attributes))
    events = cast("Any", locust.events)
    events.init.add_listener(partial(_on_init, user_class))
    events.test_stop.add_listener(lambda **_: user_class.forget())
    return user_class


def _on_init(user_class: type[ProfileUser], environment: Environment, **_: Any) -> None:
    """Discover the server before Locust's run time begins. Only where nobody presses Start. A master sends no requests,
    but it waits as long as its workers need, and ends at once for a server that is not there.
    """
    runner = environment.runner
    if isinstance(runner, MasterRunner):
        cast("Any", runner).register_message(
            _DISCOVERY_FAILED + user_class.title,
            lambda environment, msg, **_: user_class.stop_load(environment, str(msg.data)),
            concurrent=True,
        )
    if not environment.host or environment.web_ui is not None:
        return
    if user_class.shared_plan(environment.host, environment) is None and not isinstance(runner, WorkerRunner):
        sys.exit(TargetError.exit_code)


def _discover_plan(plan: RunPlan, host: str | None, environment: Environment) -> WorkerPlan:
    """Discover the server in a process of its own. Raises LoadchaosError if that fails."""
    runner = environment.runner
    if not host:
        raise LoadchaosError("no server is given: start Locust with --host URL, or fill in Host in its web UI")
    headers = headers_with_values(plan.headers, plan.api_key_env, os.environ)
    request = replace(plan, base_url=host, headers=headers)
    finished = subprocess.run(
        [*PYTHON_MODULE, "loadchaos.run.discover"],
        input=json.dumps(typed_json.to_json(request)),
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise LoadchaosError(finished.stderr.strip().removeprefix("loadchaos: "))
    facts = typed_json.from_json(Facts, json.loads(finished.stdout))
    worker = runner.worker_index if isinstance(runner, WorkerRunner) else 0
    own = replace(plan, base_url=host, seed=plan.seed + worker * _SEED_STRIDE, tag=f"{os.getpid():x}")
    return WorkerPlan(own, facts, 0, os.environ)
