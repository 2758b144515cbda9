"""What Locust runs: `LOADCHAOS_PLAN=<run folder>/plan.json python -m locust -f loadchaos/locustfile.py --headless`.

Locust gives the process, `--processes`, the web UI and its statistics; the requests are made by `users.load`, one per
worker. The single Locust user of a worker only stands for it, because slots follow the plan's phases, not a number.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any, cast

import locust
from locust import User, task
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadchaos.errors import LedgerError
from loadchaos.users.greenlets import sleep, spawn
from loadchaos.users.load import Load
from loadchaos.users.plan import WorkerPlan

PLAN_VARIABLE = "LOADCHAOS_PLAN"
_SIGNAL_GRACE_S = 1.0
_PARENT_S = 0.5
_FAILED = "loadchaos_failed"
_loads: list[Load] = []
_events = cast("Any", locust.events)  # its hooks carry no types

# A shell without job control starts its background jobs with SIGINT ignored, and that is inherited: Locust's own way to
# end on it (KeyboardInterrupt) would then be silently off.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Worker(User):
    """Stands for this worker's slots in Locust's counts."""

    @task
    def wait(self) -> None:
        """The load runs beside."""
        sleep(3600)


def _on_init(environment: Environment, **_: Any) -> None:
    options = environment.parsed_options
    if options is not None and not isinstance(environment.runner, WorkerRunner):
        # One Locust user for each worker, at once: the ramp is the plan's business.
        workers = options.expect_workers if isinstance(environment.runner, MasterRunner) else 1
        options.num_users, options.spawn_rate = workers, float(workers)
    if not isinstance(environment.runner, WorkerRunner):
        spawn(_end_with_parent, environment, os.getppid())
    environment.process_exit_code = 0  # the verdict is not Locust's
    if isinstance(environment.runner, MasterRunner):
        # Workers' exit codes are lost behind a master: one that failed says so, and the load ends everywhere.
        def failed(environment: Environment, **_: Any) -> None:
            environment.process_exit_code = LedgerError.exit_code
            if environment.runner is not None:
                environment.runner.quit()

        cast("Any", environment.runner).register_message(_FAILED, failed, concurrent=True)


def _end_with_parent(environment: Environment, parent: int) -> None:
    """A load whose `loadchaos run` was killed must not go on unwatched against somebody's server."""
    while os.getppid() == parent:
        sleep(_PARENT_S)
    for load in _loads:
        load.stop(_SIGNAL_GRACE_S)
        load.over.wait(_SIGNAL_GRACE_S + 6)
    if environment.runner is not None:
        environment.runner.quit()


def _on_start(environment: Environment, **_: Any) -> None:
    runner = environment.runner
    if isinstance(runner, MasterRunner) or runner is None:
        return
    worker = runner.worker_index if isinstance(runner, WorkerRunner) else 0

    request = cast("Any", environment.events.request)

    def fire(name: str, ms: float, size: int, wrong: str | None) -> None:
        request.fire(
            request_type="POST", name=name, response_time=ms, response_length=size, context={}, response=None,
            exception=Exception(wrong) if wrong else None,
        )  # fmt: skip

    def drive() -> None:
        load = None
        try:
            load = Load(WorkerPlan.read(Path(os.environ[PLAN_VARIABLE]), worker), fire)
            _loads.append(load)
            load.run()
        finally:
            failed = load is None or load.failure is not None
            environment.process_exit_code = LedgerError.exit_code if failed else 0
            if load is not None and load.failure is not None:
                with contextlib.suppress(OSError):  # our output is a file on what may be the same full disk
                    print(f"loadchaos: {_in_words(load.failure)}", file=sys.stderr, flush=True)
            if failed and isinstance(runner, WorkerRunner):
                cast("Any", runner).send_message(_FAILED)
            runner.quit()

    spawn(drive)


def _in_words(failure: BaseException) -> str:
    if isinstance(failure, LedgerError):
        return f"the ledger could not be written: {failure}"
    return f"a mistake of loadchaos itself: {failure!r}"


def _on_stop(**_: Any) -> None:
    for load in _loads:
        load.stop(_SIGNAL_GRACE_S)


def _on_quitting(**_: Any) -> None:
    """A signal ended us: the rows of what was in flight are written first."""
    for load in _loads:
        load.stop(_SIGNAL_GRACE_S)
        load.over.wait(_SIGNAL_GRACE_S + 6)


_events.init.add_listener(_on_init)
_events.test_start.add_listener(_on_start)
_events.test_stop.add_listener(_on_stop)
_events.quitting.add_listener(_on_quitting)
