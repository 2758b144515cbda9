"""The locustfile of `loadchaos run`, with the plan in LOADCHAOS_PLAN.

    LOADCHAOS_PLAN=<run folder>/plan.json python -m locust -f loadchaos/load/locustfile.py --headless

Locust provides processes, workers on other machines, the web UI and its statistics. The requests are made by
`load.worker`, one `Dispatcher` per worker. The single Locust user of a worker only represents it, because slots follow
the plan's phases.

With LOADCHAOS_SESSION=<folder> instead, and Locust's web UI, the process outlives runs: session.jsonl there announces
each load and its plan. Locust's users are the slots as soon as their number is edited.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import locust
from locust import User, runners, task
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadchaos.core.errors import LedgerError
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.lifetime import parent_pid
from loadchaos.load.cluster.lost_workers import record_lost_workers
from loadchaos.load.cluster.master import Coordinator
from loadchaos.load.cluster.worker_link import MASTER_SILENCE_S, WorkerLink
from loadchaos.load.locust_main import SESSION_VARIABLE
from loadchaos.load.webui import extension
from loadchaos.load.worker import locust_stats
from loadchaos.load.worker.dispatcher import (
    CONTROL_POLL_S,
    PARENT_POLL_S,
    SIGNAL_GRACE_S,
    Dispatcher,
    print_error,
    print_failure,
)
from loadchaos.load.worker.greenlets import on_signal, sleep, spawn
from loadchaos.load.worker.worker_plan import WorkerPlan

PLAN_VARIABLE = "LOADCHAOS_PLAN"
REMOTE_VARIABLE = "LOADCHAOS_WAIT_FOR_WORKERS_S"
"""Set for a master of workers on other machines: seconds to wait for them."""
TOKEN_VARIABLE = "LOADCHAOS_TOKEN"  # noqa: S105 - a name, and what it names is no secret
"""Set for such a worker: identifies it to the master."""
_ARRIVAL_S = 30.0
_QUIT_S = 10.0
_NEVER = 1 << 30
_FAILED = "loadchaos_failed"
_loads: list[Dispatcher] = []
_links: list[WorkerLink] = []
_coordinators: list[Coordinator] = []
_events = cast("Any", locust.events)  # its hooks carry no types


class WorkerUser(User):
    """Represents this worker in Locust's counts; one of its slots, once the number of users is edited."""

    users = 0

    def on_start(self) -> None:
        WorkerUser.users += 1

    def on_stop(self) -> None:
        WorkerUser.users -= 1

    @task
    def wait(self) -> None:
        sleep(3600)


def _on_init(environment: Environment, **_: Any) -> None:
    options, runner = environment.parsed_options, environment.runner
    # A KeyboardInterrupt would end whichever greenlet runs just then, possibly the load with all its rows. A shell without
    # job control starts its background jobs with SIGINT ignored, so that it would have no effect there.
    on_signal(signal.SIGINT, cast("Any", runner).quit)
    if session := os.environ.get(SESSION_VARIABLE):
        _on_init_of_session(environment, Path(session))
        return
    if options is not None and not isinstance(runner, WorkerRunner):
        # One Locust user for each worker, at once: the ramp belongs to the plan.
        workers = options.expect_workers if isinstance(runner, MasterRunner) else 1
        options.num_users, options.spawn_rate = workers, float(workers)
    if TOKEN_VARIABLE in os.environ:
        _act_as_remote_worker(environment, cast("Any", runner))
    else:
        spawn(_end_with_parent, environment, _parent_pid(environment))
    environment.process_exit_code = 0  # the verdict is not Locust's
    if isinstance(runner, MasterRunner):
        if REMOTE_VARIABLE in os.environ:
            _act_as_master(environment, cast("Any", runner))
            return

        # A master hides its workers' exit codes: a worker that failed sends a message, and the load ends everywhere.
        def failed(environment: Environment, **_: Any) -> None:
            environment.process_exit_code = LedgerError.exit_code
            if environment.runner is not None:
                environment.runner.quit()

        cast("Any", runner).register_message(_FAILED, failed, concurrent=True)


def _act_as_master(environment: Environment, runner: Any) -> None:
    options = cast("Any", environment.parsed_options)
    slots, options.expect_workers = options.expect_workers, _NEVER
    runners.HEARTBEAT_LIVENESS = int(MASTER_SILENCE_S)  # Locust would end the load for a worker that is silent for 3 s

    def begin(workers: int) -> None:
        options.num_users, options.spawn_rate, options.expect_workers = workers, float(workers), 1

    def on_end(failure: LedgerError | None) -> None:
        if failure is not None:
            environment.process_exit_code = LedgerError.exit_code
            print_error(str(failure))
        spawn(runner.quit)
        options.expect_workers = 0

    folder = Path(os.environ[PLAN_VARIABLE]).parent
    _coordinators.append(Coordinator(runner, folder, slots, float(os.environ[REMOTE_VARIABLE]), begin, on_end))


def _act_as_remote_worker(environment: Environment, runner: Any) -> None:
    """Act as a worker on another machine; it ends when its master is silent."""
    plan = WorkerPlan.read(Path(os.environ[PLAN_VARIABLE]), None)

    def lost() -> None:
        if not any(load.ended.is_set() for load in _loads):
            print_error(
                f"no message from the master for {MASTER_SILENCE_S:g} s: this worker ends; its rows are in {plan.folder}"
            )
            environment.process_exit_code = LedgerError.exit_code
        for load in _loads:
            load.stop(SIGNAL_GRACE_S)
        if not _loads:
            runner.quit()

    link = WorkerLink(runner, plan.folder, plan.worker, os.environ[TOKEN_VARIABLE], lost)
    cast("Any", environment.events).heartbeat_received.add_listener(lambda **_: link.note_master_alive())
    _links.append(link)


def _on_init_of_session(environment: Environment, home: Path) -> None:
    environment.process_exit_code = 0
    if not isinstance(environment.runner, WorkerRunner):
        spawn(_end_with_parent, environment, _parent_pid(environment))
        extension.extend_web_ui(cast("extension.Environment", environment), home)
    if not isinstance(environment.runner, MasterRunner):
        spawn(_run_session_worker, environment, home)


def _run_session_worker(environment: Environment, home: Path) -> None:
    session = Tail(home / "session.jsonl")
    while True:
        for row in session.rows():
            if row["row"] == "session" and row.get("what") == "load":
                _loads.clear()
                spawn(_run_load, environment, Path(str(row["folder"])) / "plan.json", lambda _: None)
        sleep(CONTROL_POLL_S)


def _parent_pid(environment: Environment) -> int:
    """Return the pid that must stay alive. The master of a forked process, else the run."""
    return os.getppid() if isinstance(environment.runner, WorkerRunner) else parent_pid()


def _end_with_parent(environment: Environment, parent: int) -> None:
    """End the load when its `loadchaos run` is gone. It would go on unmonitored."""
    while os.getppid() == parent:
        sleep(PARENT_POLL_S)
    for load in _loads:
        load.stop(SIGNAL_GRACE_S)
        load.ended.wait(SIGNAL_GRACE_S + 6)
    if environment.runner is not None:
        environment.runner.quit()


def _on_start(environment: Environment, **_: Any) -> None:
    runner = environment.runner
    if isinstance(runner, MasterRunner) or runner is None or SESSION_VARIABLE in os.environ:
        return

    def on_end(load: Dispatcher | None) -> None:
        failed = load is None or load.failure is not None
        environment.process_exit_code = environment.process_exit_code or (LedgerError.exit_code if failed else 0)
        if _links:
            _deliver(_links[0], "failed" if failed or load is None else load.control.end_reason, environment)
        elif failed and isinstance(runner, WorkerRunner):
            cast("Any", runner).send_message(_FAILED)
        runner.quit()

    spawn(_run_load, environment, Path(os.environ[PLAN_VARIABLE]), on_end)


def _run_load(environment: Environment, plan: Path, on_end: Callable[[Dispatcher | None], None]) -> None:
    """Run one load; `on_end` gets it, or None where the plan cannot be read."""
    runner = environment.runner
    worker = None if _links else runner.worker_index if isinstance(runner, WorkerRunner) else 0
    link = _links[0] if _links else None

    watched = SESSION_VARIABLE in os.environ  # by the web UI, which shows TTFT and ITL, too

    def fire(row: EndRow) -> None:
        locust_stats.report(environment, row, tokens=watched)

    counted = locust_stats.CountedRequests(environment, fire)
    flusher = spawn(_flush_often, counted)
    load = None
    try:
        if link is not None:
            link.known.wait(MASTER_SILENCE_S)
        load = Dispatcher(
            WorkerPlan.read(plan, worker),
            fire if watched else counted.report,
            None if link is None else link.clock,
            lambda: WorkerUser.users,
        )
        _loads.append(load)
        if link is not None:
            link.record_clock(load.write_row)
        load.run()
    finally:
        flusher.kill()
        counted.flush()
        if load is not None and load.failure is not None:
            print_failure(load.failure)
        on_end(load)


def _flush_often(counted: locust_stats.CountedRequests) -> None:
    while True:
        sleep(locust_stats.FLUSH_S)
        counted.flush()


def _deliver(link: WorkerLink, why: str, environment: Environment) -> None:
    """Wait until the master has the last rows; it then ends this process."""
    if not link.finish(why, _ARRIVAL_S):
        environment.process_exit_code = LedgerError.exit_code
        print_error(f"the master did not receive all rows; they are in the folder of {os.environ[PLAN_VARIABLE]}")
        return
    sleep(_QUIT_S)


def _on_stop(**_: Any) -> None:
    for load in _loads:
        load.stop(SIGNAL_GRACE_S)


def _on_quitting(environment: Environment, **_: Any) -> None:
    """End after a signal. Write the rows of requests in flight, and send them to a master."""
    for load in _loads:
        load.stop(SIGNAL_GRACE_S)
        load.ended.wait(SIGNAL_GRACE_S + 6)
    for link in _links:
        link.finish("stopped", SIGNAL_GRACE_S)
    alone = not {REMOTE_VARIABLE, SESSION_VARIABLE} & os.environ.keys()
    local = alone and isinstance(environment.runner, MasterRunner)
    try:
        for coordinator in _coordinators:
            coordinator.close()
        if local and not environment.process_exit_code:  # after a ledger failure nothing more counts
            record_lost_workers(Path(os.environ[PLAN_VARIABLE]), cast("Any", environment.parsed_options).processes)
    except LedgerError as e:
        environment.process_exit_code = LedgerError.exit_code
        print_failure(e)


if TOKEN_VARIABLE in os.environ:
    # By default Locust tries for five minutes to connect to a master that has died since its welcome.
    runners.CONNECT_RETRY_COUNT = int(MASTER_SILENCE_S / runners.CONNECT_TIMEOUT) - 1
_events.init.add_listener(_on_init)
_events.test_start.add_listener(_on_start)
_events.test_stopping.add_listener(_on_stop)  # before its users leave: where they are the slots, none would be left
_events.quitting.add_listener(_on_quitting)
