"""A profile's traffic as users of a Locust that is not ours: its command line, its web UI, its plugins and operators.

    from loadchaos.users import from_profile
    Mixed = from_profile("mixed")

The number of users, their ramp and the end are Locust's; the profile says what is sent, with which weights and behaviours.
Payloads, the wire and the outcomes are those of `loadchaos run`; TTFT and ITL stand in Locust's statistics. There is no run
folder, no watching, no attack and no verdict: for those there is `loadchaos run`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

import locust
from locust import User, task
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import MasterRunner, WorkerRunner

from loadchaos import shipped
from loadchaos.behaviours import BEHAVIOURS
from loadchaos.errors import LoadchaosError
from loadchaos.model import Facts, Step
from loadchaos.payloads import PAYLOADS
from loadchaos.plan.profile import Shelves, load
from loadchaos.plan.steps import of_phase
from loadchaos.users import figures
from loadchaos.users.greenlets import Flag, flag, sleep, spawn
from loadchaos.users.plan import WorkerPlan, header_values
from loadchaos.wire.call import Call, Progress
from loadchaos.wire.sockets import Slot

_SWEEP_S = 0.05
_FOR_EVER = [{"users": 1, "for": "87600h"}]
_SEEDS_APART = 1_000_003


class Line:
    """What all users of a class share in one process: the plan, the next step, and the limits of silence."""

    def __init__(self, plan: WorkerPlan) -> None:
        self.plan = plan
        self.progress = Progress()
        self.calls: set[Call] = set()
        self._steps = _endless(plan)
        spawn(self._sweep)

    def next(self) -> Step:
        """What the next free user sends."""
        return next(self._steps)

    def _sweep(self) -> None:
        while True:
            sleep(_SWEEP_S)
            for call in list(self.calls):
                call.sweep(time.monotonic_ns())


def _endless(plan: WorkerPlan) -> Iterator[Step]:
    for turn in itertools.count():
        yield from of_phase(plan.profile, plan.seed + turn, 0, 0, 1)


class ProfileUser(User):
    """One user; `from_profile` gives classes of it, each with the `plan` its requests are made by."""

    abstract = True
    plan: ClassVar[dict[str, Any]]
    line: ClassVar[Line | None] = None
    learning: ClassVar[Flag | None] = None

    @classmethod
    def learn(cls, host: str | None, environment: Environment) -> Line:
        """Ask the server, once in a process, however many users come at once. StopUser where it cannot be asked."""
        if cls.learning is None:
            cls.learning = flag()
            try:
                cls.line = _learn(cls.plan, host, environment)
            finally:
                cls.learning.set()
        cls.learning.wait()
        if cls.line is None:
            raise StopUser
        return cls.line

    def on_start(self) -> None:
        """Know the server."""
        self._slot = Slot(type(self).learn(self.host, self.environment).plan.target)

    def on_stop(self) -> None:
        """Leave no connection behind."""
        if hasattr(self, "_slot"):
            self._slot.close()

    @task
    def request(self) -> None:
        """Send the profile's next request and tell Locust what it came to."""
        line = type(self).line
        assert line is not None
        step = line.next()
        _, sending, _ = line.plan.make(step)
        due_ns = time.monotonic_ns()
        call = Call(sending, self._slot, line.progress)
        line.calls.add(call)
        try:
            reply = line.plan.redacted(BEHAVIOURS[step.behaviour].act(call))
        finally:
            line.calls.discard(call)
        figures.tell(self.environment, step.traffic, reply, due_ns, tokens=True)


def from_profile(
    name: str,
    *,
    model: str | None = None,
    api_key_env: str | None = None,
    headers: Mapping[str, str] | None = None,
    seed: int = 0,
) -> type[ProfileUser]:
    """A User class for this profile; `headers` may say `env:VAR`. ProfileError for what is wrong with the profile."""
    shelves = Shelves({n: p.Options for n, p in PAYLOADS.items()}, {n: b.Options for n, b in BEHAVIOURS.items()})
    profile = load(shipped.profile(name), shelves)
    plan = {
        "profile": {**profile.to_json(), "load": _FOR_EVER}, "seed": seed, "model": model, "api_key_env": api_key_env,
        "headers": dict(headers or {}), "folder": "",
    }  # fmt: skip
    title = "".join(part.capitalize() for part in profile.name.replace("-", "_").split("_"))
    body = {"abstract": False, "plan": plan, "__doc__": profile.about}
    made = cast("type[ProfileUser]", type(title, (ProfileUser,), body))

    def before_the_clock_runs(environment: Environment, **_: Any) -> None:
        if environment.host and environment.web_ui is None and not isinstance(environment.runner, MasterRunner):
            with contextlib.suppress(StopUser):  # it was told, and Locust ends
                made.learn(environment.host, environment)

    cast("Any", locust.events).init.add_listener(before_the_clock_runs)
    return made


def _learn(plan: Mapping[str, Any], host: str | None, environment: Environment) -> Line:
    """Ask the server, in a process of its own; without an answer no user can send anything, and Locust ends."""
    runner = environment.runner
    try:
        if not host:
            raise LoadchaosError("which server is meant? Give Locust --host URL")
        headers = header_values(plan["headers"], plan["api_key_env"], os.environ)
        asked = {**plan, "base_url": host, "headers": headers}
        done = subprocess.run(
            [sys.executable, "-m", "loadchaos.learn"],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise LoadchaosError(done.stderr.strip().removeprefix("loadchaos: "))
    except LoadchaosError as e:
        print(f"loadchaos: {e}", file=sys.stderr)
        environment.process_exit_code = 4
        if runner is not None:
            spawn(runner.quit)
        raise StopUser from e
    facts = Facts.from_json(json.loads(done.stdout))
    worker = runner.worker_index if isinstance(runner, WorkerRunner) else 0
    own = {**plan, "base_url": host, "seed": plan["seed"] + worker * _SEEDS_APART, "tag": f"{os.getpid():x}"}
    return Line(WorkerPlan(own, facts, 0, os.environ))
