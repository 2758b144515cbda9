"""Bench client: aiohttp under uvloop, one session, `iter_any`."""

from __future__ import annotations

import asyncio

import aiohttp  # type: ignore[import-not-found,unused-ignore]  # lives in an environment of its own
import uvloop

from bench.clients.common import PATH, Job, Marks, job, now_ns

_DONE = b"data: [DONE]\n\n"


async def user(work: Job, marks: Marks, session: aiohttp.ClientSession, number: int) -> None:
    await asyncio.sleep(number * work.stagger_s)
    headers = {"Content-Type": "application/json"}
    while marks.more():
        async with session.post(work.url + PATH, data=work.body, headers=headers) as response:
            if not work.stream:
                await response.read()
                marks.done(well=response.status == 200)
                continue
            pieces = marks.stream()
            async for data in response.content.iter_any():
                pieces.append((now_ns(), data))
            marks.done(well=response.status == 200 and pieces[-1][1].endswith(_DONE))


async def run(work: Job, marks: Marks) -> None:
    connector = aiohttp.TCPConnector(limit=0, ssl=work.context() or False)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await asyncio.gather(*(user(work, marks, session, n) for n in range(work.users)))


def main() -> None:
    work = job()
    marks = Marks(work)
    uvloop.run(run(work, marks))
    marks.write()


if __name__ == "__main__":
    main()
