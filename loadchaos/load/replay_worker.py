"""Process that sends one replay: one worker, without Locust.

    LOADCHAOS_PLAN=<run folder>/plan.json python -m loadchaos.load.replay_worker

A replay is one of many short runs, and its process starts in half of Locust's time. It imports everything, then waits
for the file `load.start` beside the plan.
"""

from __future__ import annotations

from gevent import monkey

monkey.patch_all()  # type: ignore[no-untyped-call]

import os  # noqa: E402 - gevent patches first
import signal  # noqa: E402
from pathlib import Path  # noqa: E402

from loadchaos.core.errors import LedgerError  # noqa: E402
from loadchaos.core.lifetime import end_with, parent_pid  # noqa: E402
from loadchaos.load.worker.dispatcher import PARENT_POLL_S, SIGNAL_GRACE_S, Dispatcher, print_error, print_failure  # noqa: E402
from loadchaos.load.worker.greenlets import on_signal, sleep, spawn  # noqa: E402
from loadchaos.load.worker.worker_plan import WorkerPlan  # noqa: E402

START_FILE = "load.start"
_POLL_S = 0.01


def main() -> int:
    """Wait for the start, send the plan. Returns the exit code."""
    plan = Path(os.environ["LOADCHAOS_PLAN"])
    parent = parent_pid()
    end_with(parent)
    loads: list[Dispatcher] = []

    def stop() -> None:
        if not loads:
            os._exit(0)
        loads[0].stop(SIGNAL_GRACE_S)

    def end_with_parent() -> None:
        while os.getppid() == parent:
            sleep(PARENT_POLL_S)
        stop()

    on_signal(signal.SIGTERM, stop)
    on_signal(signal.SIGINT, stop)
    spawn(end_with_parent)
    while not plan.with_name(START_FILE).exists():
        sleep(_POLL_S)
    try:
        loads.append(Dispatcher(WorkerPlan.read(plan, 0), lambda _: None))
    except LedgerError as e:
        print_error(str(e))
        return LedgerError.exit_code
    loads[0].run()
    if (failure := loads[0].failure) is None:
        return 0
    print_failure(failure)
    return LedgerError.exit_code


if __name__ == "__main__":
    code = main()
    os._exit(code)  # sockets and greenlets of the load need no clean-up
