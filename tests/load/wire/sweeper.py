"""The sweeper that ends calls whose limits are over, as a worker has it, beside one call of a test."""

import contextlib
import threading
import time
from collections.abc import Iterator

from loadchaos.load.wire.exchange import Exchange


@contextlib.contextmanager
def swept(call: Exchange) -> Iterator[Exchange]:
    """The call, looked at a hundred times a second until the block is left."""
    over = threading.Event()

    def sweep() -> None:
        while not over.wait(0.01):
            call.sweep(time.monotonic_ns())

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        yield call
    finally:
        over.set()
        sweeper.join()
