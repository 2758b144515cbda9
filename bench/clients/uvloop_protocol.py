"""Bench client: a bare asyncio protocol under uvloop, the least in Python."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import uvloop

from bench.clients.common import Job, Marks, WholeAnswer, job, now_ns


class User(asyncio.Protocol):
    """One connection; sends its next request when the last one is over."""

    def __init__(self, work: Job, marks: Marks, request: bytes, all_done: asyncio.Event) -> None:
        self._work, self._marks, self._request, self._all_done = work, marks, request, all_done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport  # uvloop's own class, no asyncio.Transport
        self._next()

    def data_received(self, data: bytes) -> None:
        at_ns = now_ns()
        if self._pieces is not None:
            self._pieces.append((at_ns, data))
        if self._answer.feed(data):
            if self._marks.done(well=True):
                self._all_done.set()
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if not self._transport.is_closing() and self._marks.done(well=False):
            self._all_done.set()

    def _next(self) -> None:
        if not self._marks.more():
            self._transport.close()
            return
        self._answer = WholeAnswer(stream=self._work.stream)
        self._pieces = self._marks.stream() if self._work.stream else None
        self._transport.write(self._request)


async def run(work: Job, marks: Marks, trust: ssl.SSLContext | None) -> None:
    loop, all_done, request = asyncio.get_running_loop(), asyncio.Event(), work.head() + work.body
    for number in range(work.users):
        host, port = work.address
        await loop.create_connection(lambda: User(work, marks, request, all_done), host, port, ssl=trust)
        await asyncio.sleep(work.stagger_s if number else 0)
    await all_done.wait()


def main() -> None:
    work = job()
    marks = Marks(work)
    uvloop.run(run(work, marks, work.context()))
    marks.write()


if __name__ == "__main__":
    main()
