"""Measure SSE events per second of the embedded server on one core.

    python bench/sim_events.py [seconds]

It is compared with uvicorn and a raw ASGI app, at 200 streams over loopback. The client reads raw bytes in a process
of its own and counts `data: ` lines. Server CPU time is measured, so the figure for one core also holds on a busy
machine.
"""

from __future__ import annotations

import asyncio
import importlib.util
import multiprocessing as mp
import resource
import socket
import sys
import time
from typing import Any

STREAMS = 200
EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795190199,"model":"sim",'
    b'"choices":[{"index":0,"delta":{"content":" river"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
)


def _own(port: int, seconds: float, report: Any) -> None:
    import uvloop

    from loadchaos.simulator.http.server import HttpExchange, HttpServer

    async def serve() -> int:
        streams: list[HttpExchange] = []

        def handle(exchange: HttpExchange) -> None:
            exchange.start()
            streams.append(exchange)

        server = HttpServer(handle, quiet=True)
        await server.listen("127.0.0.1", port)
        while len(streams) < STREAMS:  # noqa: ASYNC110 - a bench may poll
            await asyncio.sleep(0.01)
        events, end, before = 0, time.monotonic() + seconds, _cpu()
        while time.monotonic() < end:
            for stream in streams:
                if not stream.paused:
                    stream.write(EVENT)
                    events += 1
            await asyncio.sleep(0)
        report.put((events, _cpu() - before))
        return 0

    uvloop.run(serve())


def _uvicorn(port: int, seconds: float, report: Any) -> None:
    uvicorn = importlib.import_module("uvicorn")  # compared with only where it happens to be installed

    counts = {"events": 0, "streams": 0}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        await receive()
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
        await send(start)
        counts["streams"] += 1
        while counts["streams"] < STREAMS:  # noqa: ASYNC110 - a bench may poll
            await asyncio.sleep(0.01)
        end, before = time.monotonic() + seconds, _cpu()
        while time.monotonic() < end:
            await send({"type": "http.response.body", "body": EVENT, "more_body": True})
            counts["events"] += 1
            await asyncio.sleep(0)
        if counts["streams"] == STREAMS:
            counts["streams"] += 1
            report.put((counts["events"], _cpu() - before))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    uvicorn.run(app, port=port, log_level="error", loop="uvloop", http="httptools")


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _read(port: int, seconds: float) -> int:
    async def one() -> int:
        for _ in range(100):
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
                break
            except OSError:
                await asyncio.sleep(0.05)
        else:
            raise SystemExit("the server did not start")
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        seen, end = 0, time.monotonic() + seconds + 2
        while time.monotonic() < end:
            try:
                data = await asyncio.wait_for(reader.read(1 << 16), 1.0)
            except TimeoutError:
                break
            if not data:
                break
            seen += data.count(b"data: ")
        writer.close()
        return seen

    return sum(await asyncio.gather(*(one() for _ in range(STREAMS))))


def measure(name: str, target: Any, seconds: float) -> None:
    report: Any = mp.Queue()
    port = _free_port()
    server = mp.Process(target=target, args=(port, seconds, report), daemon=True)
    server.start()
    seen = asyncio.run(_read(port, seconds))
    events, cpu_s = report.get(timeout=10)
    server.kill()
    print(f"{name:28} {events / cpu_s:>10,.0f} events per CPU second  ({events:,} written, {seen:,} read)")


def whole(seconds: float) -> None:
    """Measure CPU of both real processes at 200 streams of about 50 tokens/s."""
    import re
    import subprocess
    import threading

    import psutil

    from loadchaos.simulator.command import command
    from loadchaos.simulator.options import SimulatorSpec

    flags = {"num_speculative_tokens": 0, "max_num_seqs": 256, "num_gpu_blocks": 32768, "quiet": True, "speed": 0.8}
    argv = command(SimulatorSpec(era="0.32", flags=flags), port=0)
    began = time.monotonic()
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = next(int(m.group(1)) for line in server.stdout if (m := re.search(r"running on http://[^:]+:(\d+)", line)))
    print(f"embedded server listens after {time.monotonic() - began:.2f} s")
    threading.Thread(target=server.stdout.read, daemon=True).start()
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children()]
    tokens = int(seconds * 50)
    body = f'{{"prompt":"the river","max_tokens":{tokens},"ignore_eos":true,"stream":true}}'.encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"

    async def one() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head % len(body) + body)
        seen = 0
        while b"[DONE]" not in (data := await reader.read(1 << 16)) and data:
            seen += data.count(b"data: ")
        writer.close()
        return seen

    async def all_streams() -> int:
        return sum(await asyncio.gather(*(one() for _ in range(STREAMS))))

    before = [sum(p.cpu_times()[:2]) for p in processes]
    began = time.monotonic()
    seen = asyncio.run(all_streams())
    wall_s = time.monotonic() - began
    shares = [(sum(p.cpu_times()[:2]) - b) / wall_s for p, b in zip(processes, before, strict=True)]
    print(f"{STREAMS} streams: {seen / wall_s:,.0f} events/s, {seen / wall_s / STREAMS:.1f} tokens/s each;", end=" ")
    print(f"CPU: API server {shares[0]:.0%}, engine core {shares[1]:.0%}")
    server.terminate()
    server.wait(10)


if __name__ == "__main__":
    duration = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    measure("own protocol on httptools", _own, duration)
    if importlib.util.find_spec("uvicorn"):
        measure("uvicorn, raw ASGI", _uvicorn, duration)
    else:
        print("uvicorn is not installed: not compared")
    whole(duration * 2)
