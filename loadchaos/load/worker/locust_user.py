"""A profile's traffic as users of a Locust that is not ours: its command line, its web UI, its plugins and operators.

    from loadchaos import from_profile
    Mixed = from_profile("mixed")

The number of users, their ramp and the end are Locust's; the profile says what is sent, with which weights and behaviours.
Payloads, the wire and the outcomes are those of `loadchaos run`; TTFT and ITL stand in Locust's statistics. There is no run
folder, no watching, no attack and no verdict: for those there is `loadchaos run`.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, cast

import locust
from locust import User, task
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadchaos.core import resources
from loadchaos.core.errors import LoadchaosError, TargetError
from loadchaos.core.model import Facts, Step
from loadchaos.core.tls import TlsSettings
from loadchaos.load import registry
from loadchaos.load.behaviours import BEHAVIOURS
from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.wire.sockets import Slot
from loadchaos.load.worker import locust_stats
from loadchaos.load.worker.greenlets import Flag, flag, sleep, spawn
from loadchaos.load.worker.worker_plan import WorkerPlan, header_values
from loadchaos.profile.profile import load
from loadchaos.profile.steps import of_phase

_SWEEP_S = 0.05
_REST_S = 0.5
_FOR_EVER = [{"users": 1, "for": "87600h"}]
_SEEDS_APART = 1_000_003
_UNTAUGHT = "loadchaos_untaught_"


class SharedPlan:
    """What all users of a class share in one process: the plan, the next step, and the limits of silence."""

    def __init__(self, plan: WorkerPlan) -> None:
        self.plan = plan
        self.progress = Progress()
        self.calls: set[Exchange] = set()
        self.over = False
        self._steps = _endless(plan)
        spawn(self._sweep)

    def next(self) -> Step:
        """What the next free user sends."""
        return next(self._steps)

    def _sweep(self) -> None:
        while not self.over or self.calls:
            sleep(_SWEEP_S)
            for call in list(self.calls):
                call.sweep(time.monotonic_ns())


def _endless(plan: WorkerPlan) -> Iterator[Step]:
    for turn in itertools.count():
        yield from of_phase(plan.profile, plan.seed + turn, 0, 0, 1)


class ServerFacts:
    """What one process knows of one server, as soon as it is `done`: a line, or nothing where it could not be asked."""

    def __init__(self) -> None:
        self.done: Flag = flag()
        self.line: SharedPlan | None = None


class ProfileUser(User):
    """One user; `from_profile` gives classes of it, each with the `plan` its requests are made by."""

    abstract = True
    title: ClassVar[str]
    plan: ClassVar[dict[str, Any]]
    lessons: ClassVar[dict[str | None, ServerFacts]]
    troubles: ClassVar[set[str]]

    _line: SharedPlan | None = None
    _slot: Slot | None = None

    @classmethod
    def learn(cls, host: str | None, environment: Environment) -> SharedPlan | None:
        """Ask the server, once in a process, however many users come at once. None where it cannot be asked."""
        lesson = cls.lessons.get(host)
        if lesson is None:
            lesson = cls.lessons[host] = ServerFacts()
            spawn(cls._study, lesson, host, environment)  # Stop ends users, whatever they wait for
        lesson.done.wait()
        return lesson.line

    @classmethod
    def _study(cls, lesson: ServerFacts, host: str | None, environment: Environment) -> None:
        try:
            plan = _learn(cls.plan, host, environment)
            if cls.lessons.get(host) is lesson:
                lesson.line = SharedPlan(plan)
        except LoadchaosError as e:
            if cls.lessons.get(host) is lesson:
                cls.give_up(environment, str(e))
        finally:
            lesson.done.set()

    @classmethod
    def forget(cls) -> None:
        """The next load may meet another server, or the same with other flags."""
        for lesson in cls.lessons.values():
            if lesson.line is not None:
                lesson.line.over = True
        cls.lessons.clear()
        cls.troubles.clear()

    @classmethod
    def give_up(cls, environment: Environment, why: str) -> None:
        """Nothing can be sent: say why, in Locust's failures, too. The load ends; without a web UI, so does Locust."""
        runner = cast("Any", environment.runner)
        if isinstance(environment.runner, WorkerRunner):
            runner.send_message(_UNTAUGHT + cls.title, why)  # its master knows whether there is a web UI
            return
        if why in cls.troubles:  # of each worker
            return
        cls.troubles.add(why)
        print(f"loadchaos: {why}", file=sys.stderr)
        told = {"request_type": "LEARN", "name": cls.title, "response_time": 0, "response_length": 0, "context": {}}
        cast("Any", environment.events.request).fire(**told, response=None, exception=LoadchaosError(why))
        if environment.web_ui is None:
            environment.process_exit_code = TargetError.exit_code
        if runner is not None:
            spawn(runner.quit if environment.web_ui is None else runner.stop)

    def on_start(self) -> None:
        """Know the server."""
        self._line = type(self).learn(self.host, self.environment)
        self._slot = None if self._line is None else Slot(self._line.plan.target)

    def on_stop(self) -> None:
        """Leave no connection behind."""
        if self._slot is not None:
            self._slot.close()

    @task
    def request(self) -> None:
        """Send the profile's next request and tell Locust what it came to."""
        line, slot = self._line, self._slot
        if line is None or slot is None:  # it was told, and the load ends
            sleep(_REST_S)
            return
        step = line.next()
        call = Exchange(line.plan.make(step), slot, line.progress)
        line.calls.add(call)
        try:
            reply = line.plan.redacted(BEHAVIOURS[step.behaviour].act(call))
        finally:
            line.calls.discard(call)
        locust_stats.tell(self.environment, step.traffic, reply, call.due_ns, tokens=True)


def from_profile(
    name: str,
    *,
    model: str | None = None,
    api_key_env: str | None = None,
    headers: Mapping[str, str] | None = None,
    seed: int = 0,
) -> type[ProfileUser]:
    """A User class for this profile; `headers` may say `env:VAR`. ProfileError for what is wrong with the profile."""
    profile = load(resources.profile(name), registry.of_traffic())
    plan = {
        "profile": {**profile.to_json(), "load": _FOR_EVER}, "seed": seed, "model": model, "api_key_env": api_key_env,
        "headers": dict(headers or {}), "folder": "",
        "tls": TlsSettings(profile.target.ca, profile.target.insecure).to_json(),
    }  # fmt: skip
    title = "".join(part.capitalize() for part in profile.name.replace("-", "_").split("_"))
    body = {"abstract": False, "title": title, "plan": plan, "lessons": {}, "troubles": set(), "__doc__": profile.about}
    made = cast("type[ProfileUser]", type(title, (ProfileUser,), body))
    events = cast("Any", locust.events)
    events.init.add_listener(partial(_before_the_clock_runs, made))
    events.test_stop.add_listener(lambda **_: made.forget())
    return made


def _before_the_clock_runs(made: type[ProfileUser], environment: Environment, **_: Any) -> None:
    """Where the server is known by then and nobody presses Start: a run time is for requests.

    A master sends none, but it waits for as long as its workers need, and ends at once for a server that is not there.
    """
    runner = environment.runner
    if isinstance(runner, MasterRunner):
        cast("Any", runner).register_message(
            _UNTAUGHT + made.title,
            lambda environment, msg, **_: made.give_up(environment, str(msg.data)),
            concurrent=True,
        )
    if not environment.host or environment.web_ui is not None:
        return
    if made.learn(environment.host, environment) is None and not isinstance(runner, WorkerRunner):
        sys.exit(TargetError.exit_code)


def _learn(plan: Mapping[str, Any], host: str | None, environment: Environment) -> WorkerPlan:
    """Ask the server, in a process of its own. LoadchaosError where it cannot be asked."""
    runner = environment.runner
    if not host:
        raise LoadchaosError("which server is meant? Give Locust --host URL, or fill in Host in its web UI")
    headers = header_values(plan["headers"], plan["api_key_env"], os.environ)
    asked = {**plan, "base_url": host, "headers": headers}
    done = subprocess.run(
        [sys.executable, "-m", "loadchaos.runner.discover"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LoadchaosError(done.stderr.strip().removeprefix("loadchaos: "))
    facts = Facts.from_json(json.loads(done.stdout))
    worker = runner.worker_index if isinstance(runner, WorkerRunner) else 0
    own = {**plan, "base_url": host, "seed": plan["seed"] + worker * _SEEDS_APART, "tag": f"{os.getpid():x}"}
    return WorkerPlan(own, facts, 0, os.environ)
