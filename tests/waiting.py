"""Wait for what other processes and threads do."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import psutil

T = TypeVar("T")


def until(condition: Callable[[], T | None], what: str = "the condition", limit_s: float = 60.0) -> T:
    """Return the condition's first true value; fail when it does not come."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.01)
    return value


async def until_async(condition: Callable[[], object], what: str = "the condition", limit_s: float = 60.0) -> None:
    """The same beside other work of the event loop."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        await asyncio.sleep(0.01)


def gone(pid: int) -> bool:
    """True when a process has ended, a zombie included."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def listens(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Let the work go on until the end of the context, which cancels it."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
