"""Bench client: httpx, one AsyncClient for all users, `aiter_raw`."""

from __future__ import annotations

import asyncio

import httpx
import uvloop

from bench.clients.common import PATH, Job, Marks, job, now_ns

_DONE = b"data: [DONE]\n\n"


async def user(work: Job, marks: Marks, client: httpx.AsyncClient, number: int) -> None:
    await asyncio.sleep(number * work.stagger_s)
    headers = {"Content-Type": "application/json"}
    while marks.more():
        if not work.stream:
            answer = await client.post(PATH, content=work.body, headers=headers)
            marks.done(well=answer.status_code == 200)
            continue
        pieces = marks.stream()
        async with client.stream("POST", PATH, content=work.body, headers=headers) as response:
            async for data in response.aiter_raw():
                pieces.append((now_ns(), data))
        marks.done(well=response.status_code == 200 and pieces[-1][1].endswith(_DONE))


async def run(work: Job, marks: Marks) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    trust = work.context() or True
    async with httpx.AsyncClient(base_url=work.url, limits=limits, timeout=None, verify=trust) as client:
        await asyncio.gather(*(user(work, marks, client, n) for n in range(work.users)))


def main() -> None:
    work = job()
    marks = Marks(work)
    uvloop.run(run(work, marks))
    marks.write()


if __name__ == "__main__":
    main()
