"""What Locust runs: `LOADCHAOS_PLAN=<run folder>/plan.json python -m locust -f loadchaos/load/locustfile.py --headless`.

Locust gives the process, `--processes`, workers on other machines, the web UI and its statistics; the requests are made by
`users.load`, one per worker. The single Locust user of a worker only stands for it, because slots follow the plan's
phases, not a number.
With LOADCHAOS_SESSION=<folder> instead, and Locust's web UI, the process outlives runs: session.jsonl there says when a
load begins and where its plan lies; Locust's users are the slots as soon as somebody edits their number.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import locust
from locust import User, runners, task
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from loadchaos.core.errors import LedgerError
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.model import Reply
from loadchaos.load.cluster.lost_workers import note_lost
from loadchaos.load.cluster.master import Gatherer
from loadchaos.load.cluster.worker_link import SILENT_S, Link
from loadchaos.load.webui import extension
from loadchaos.load.worker import locust_stats
from loadchaos.load.worker.dispatcher import CONTROL_S, Dispatcher
from loadchaos.load.worker.greenlets import on_signal, sleep, spawn
from loadchaos.load.worker.worker_plan import WorkerPlan

PLAN_VARIABLE = "LOADCHAOS_PLAN"
PARENT_VARIABLE = "LOADCHAOS_PARENT"
"""The pid of the run that began this process: see children.py."""
REMOTE_VARIABLE = "LOADCHAOS_WAIT_FOR_WORKERS_S"
"""Set for a master of workers on other machines: how long they may take to come."""
TOKEN_VARIABLE = "LOADCHAOS_TOKEN"  # noqa: S105 - a name, and what it names is no secret
"""Set for such a worker: what the master knows it by."""
SESSION_VARIABLE = "LOADCHAOS_SESSION"
_SIGNAL_GRACE_S = 1.0
_PARENT_S = 0.5
_ARRIVAL_S = 30.0
_QUIT_S = 10.0
_NEVER = 1 << 30
_FAILED = "loadchaos_failed"
_loads: list[Dispatcher] = []
_links: list[Link] = []
_gatherers: list[Gatherer] = []
_events = cast("Any", locust.events)  # its hooks carry no types


class Worker(User):
    """Stands for this worker's slots in Locust's counts, and is one of them where a hand edits their number."""

    crew = 0

    def on_start(self) -> None:
        """One more."""
        Worker.crew += 1

    def on_stop(self) -> None:
        """One less."""
        Worker.crew -= 1

    @task
    def wait(self) -> None:
        """The load runs beside."""
        sleep(3600)


def _on_init(environment: Environment, **_: Any) -> None:
    options, runner = environment.parsed_options, environment.runner
    # As KeyboardInterrupt it would end whichever greenlet runs just then, the load itself with all its rows; and under a
    # shell without job control, which starts its background jobs with SIGINT ignored, it would do nothing.
    on_signal(signal.SIGINT, cast("Any", runner).quit)
    if session := os.environ.get(SESSION_VARIABLE):
        _on_init_of_session(environment, Path(session))
        return
    if options is not None and not isinstance(runner, WorkerRunner):
        # One Locust user for each worker, at once: the ramp is the plan's business.
        workers = options.expect_workers if isinstance(runner, MasterRunner) else 1
        options.num_users, options.spawn_rate = workers, float(workers)
    if TOKEN_VARIABLE in os.environ:
        _join(environment, cast("Any", runner))
    else:
        spawn(_end_with_parent, environment, _parent(environment))
    environment.process_exit_code = 0  # the verdict is not Locust's
    if isinstance(runner, MasterRunner):
        if REMOTE_VARIABLE in os.environ:
            _gather(environment, cast("Any", runner))
            return

        # Workers' exit codes are lost behind a master: one that failed says so, and the load ends everywhere.
        def failed(environment: Environment, **_: Any) -> None:
            environment.process_exit_code = LedgerError.exit_code
            if environment.runner is not None:
                environment.runner.quit()

        cast("Any", runner).register_message(_FAILED, failed, concurrent=True)


def _gather(environment: Environment, runner: Any) -> None:
    """Be the master of workers on other machines: who they are and when the load begins and ends is ours to say."""
    options = cast("Any", environment.parsed_options)
    places, options.expect_workers = options.expect_workers, _NEVER
    runners.HEARTBEAT_LIVENESS = int(SILENT_S)  # Locust would end the load for a worker that stands still for 3 s

    def begin(workers: int) -> None:
        options.num_users, options.spawn_rate, options.expect_workers = workers, float(workers), 1

    def over(failure: LedgerError | None) -> None:
        if failure is not None:
            environment.process_exit_code = LedgerError.exit_code
            _complain(str(failure))
        spawn(runner.quit)
        options.expect_workers = 0

    folder = Path(os.environ[PLAN_VARIABLE]).parent
    _gatherers.append(Gatherer(runner, folder, places, float(os.environ[REMOTE_VARIABLE]), begin, over))


def _join(environment: Environment, runner: Any) -> None:
    """Be a worker on another machine: without its master it ends, for nobody would watch what it does."""
    plan = WorkerPlan.read(Path(os.environ[PLAN_VARIABLE]), None)

    def lost() -> None:
        if not any(load.ended.is_set() for load in _loads):
            _complain(
                f"the master has been silent for {SILENT_S:g} s: the load ends here; its rows lie in {plan.folder}"
            )
            environment.process_exit_code = LedgerError.exit_code
        for load in _loads:
            load.stop(_SIGNAL_GRACE_S)
        if not _loads:
            runner.quit()

    link = Link(runner, plan.folder, plan.worker, os.environ[TOKEN_VARIABLE], lost)
    cast("Any", environment.events).heartbeat_received.add_listener(lambda **_: link.heard())
    _links.append(link)


def _on_init_of_session(environment: Environment, home: Path) -> None:
    environment.process_exit_code = 0
    if not isinstance(environment.runner, WorkerRunner):
        spawn(_end_with_parent, environment, _parent(environment))
        extension.extend(cast("extension.Environment", environment), home)
    if not isinstance(environment.runner, MasterRunner):
        spawn(_serve, environment, home)


def _serve(environment: Environment, home: Path) -> None:
    """A worker of a session: each time a run has made its plan, drive its load."""
    session = Tail(home / "session.jsonl")
    while True:
        for row in session.rows():
            if row.get("what") == "load":
                _loads.clear()
                spawn(_drive, environment, Path(str(row["folder"])) / "plan.json", lambda _: None)
        sleep(CONTROL_S)


def _parent(environment: Environment) -> int:
    """Who began us: a process that --processes forked has its master, any other the run, whoever is its parent by now."""
    told = None if isinstance(environment.runner, WorkerRunner) else os.environ.get(PARENT_VARIABLE)
    return int(told) if told else os.getppid()


def _end_with_parent(environment: Environment, parent: int) -> None:
    """A load whose `loadchaos run` was killed must not go on unwatched against somebody's server."""
    while os.getppid() == parent:
        sleep(_PARENT_S)
    for load in _loads:
        load.stop(_SIGNAL_GRACE_S)
        load.ended.wait(_SIGNAL_GRACE_S + 6)
    if environment.runner is not None:
        environment.runner.quit()


def _on_start(environment: Environment, **_: Any) -> None:
    runner = environment.runner
    if isinstance(runner, MasterRunner) or runner is None or SESSION_VARIABLE in os.environ:
        return

    def over(load: Dispatcher | None) -> None:
        failed = load is None or load.failure is not None
        environment.process_exit_code = environment.process_exit_code or (LedgerError.exit_code if failed else 0)
        if _links:
            _deliver(_links[0], "failed" if failed or load is None else load.control.why, environment)
        elif failed and isinstance(runner, WorkerRunner):
            cast("Any", runner).send_message(_FAILED)
        runner.quit()

    spawn(_drive, environment, Path(os.environ[PLAN_VARIABLE]), over)


def _drive(environment: Environment, plan: Path, over: Callable[[Dispatcher | None], None]) -> None:
    """One load, from its first to its last row; `over` gets it, or None where the plan could not be read."""
    runner = environment.runner
    worker = None if _links else runner.worker_index if isinstance(runner, WorkerRunner) else 0
    link = _links[0] if _links else None

    def fire(traffic: str, reply: Reply, due_ns: int) -> None:
        locust_stats.tell(environment, traffic, reply, due_ns, tokens=SESSION_VARIABLE in os.environ)

    load = None
    try:
        if link is not None:
            link.known.wait(SILENT_S)
        load = Dispatcher(
            WorkerPlan.read(plan, worker), fire, None if link is None else link.clock, lambda: Worker.crew
        )
        _loads.append(load)
        if link is not None:
            link.noting(load.note)
        load.run()
    finally:
        if load is not None and load.failure is not None:
            _complain(_in_words(load.failure))
        over(load)


def _deliver(link: Link, why: str, environment: Environment) -> None:
    """See the last rows off; then the master, which knows when all are done, has us quit."""
    if not link.finish(why, _ARRIVAL_S):
        environment.process_exit_code = LedgerError.exit_code
        _complain(f"the master did not get all rows; they lie in {os.environ[PLAN_VARIABLE]}")
        return
    sleep(_QUIT_S)


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):  # our output is a file on what may be the same full disk
        print(f"loadchaos: {text}", file=sys.stderr, flush=True)


def _in_words(failure: BaseException) -> str:
    if isinstance(failure, LedgerError):
        return f"the ledger could not be written: {failure}"
    return f"a mistake of loadchaos itself, please report it with the run folder: {failure!r}"


def _on_stop(**_: Any) -> None:
    for load in _loads:
        load.stop(_SIGNAL_GRACE_S)


def _on_quitting(environment: Environment, **_: Any) -> None:
    """A signal ended us: the rows of what was in flight are written first, and sent where they go to a master."""
    for load in _loads:
        load.stop(_SIGNAL_GRACE_S)
        load.ended.wait(_SIGNAL_GRACE_S + 6)
    for link in _links:
        link.finish("stopped", _SIGNAL_GRACE_S)
    alone = not {REMOTE_VARIABLE, SESSION_VARIABLE} & os.environ.keys()
    local = alone and isinstance(environment.runner, MasterRunner)
    try:
        for gatherer in _gatherers:
            gatherer.close()
        if local and not environment.process_exit_code:  # where a ledger failed, nothing more is proved
            note_lost(Path(os.environ[PLAN_VARIABLE]), cast("Any", environment.parsed_options).processes)
    except LedgerError as e:
        environment.process_exit_code = LedgerError.exit_code
        _complain(_in_words(e))


_events.init.add_listener(_on_init)
_events.test_start.add_listener(_on_start)
_events.test_stopping.add_listener(_on_stop)  # before its users go: where they are the slots, none would be left
_events.quitting.add_listener(_on_quitting)
