"""A sweeper that ends a test's exchange when its timeouts have passed."""

import contextlib
import threading
import time
from collections.abc import Iterator

from loadchaos.load.wire.exchange import Exchange


@contextlib.contextmanager
def swept(call: Exchange, *others: Exchange) -> Iterator[Exchange]:
    """Sweep exchanges a hundred times a second until the block is left; gives the first."""
    done = threading.Event()

    def sweep() -> None:
        while not done.wait(0.01):
            for each in (call, *others):
                each.sweep(time.monotonic_ns())

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        yield call
    finally:
        done.set()
        sweeper.join()
