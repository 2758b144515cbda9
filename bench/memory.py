"""Measure memory of a load process: per waiting user, and over requests.

Usage: python -m bench.memory [REQUESTS REQUESTS USERS]

The numbers are those of requests between which growth is measured, and of users (default 200000 1000000 1000). The
server is a process of its own with instant short answers. The load is the real Locust child, whose ledger takes 1.3
GB of the temporary folder for a million requests.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

LOCUSTFILE = Path(__file__).parents[1] / "loadchaos" / "load" / "locustfile.py"
BODY = json.dumps(
    {
        "id": "x",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": " of"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 64, "completion_tokens": 1},
    }
).encode()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
USERS = 20


def serve(silent: bool) -> None:
    """Answer requests with a short answer, or never if silent; print the port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(listener.getsockname()[1], flush=True)
    poll = selectors.DefaultSelector()
    poll.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in poll.select():
            if key.fileobj is listener:
                poll.register(listener.accept()[0], selectors.EVENT_READ)
                continue
            peer = key.fileobj
            assert isinstance(peer, socket.socket)
            data = peer.recv(65536)
            if not data:
                poll.unregister(peer)
                peer.close()
            elif not silent and data.endswith(b"}"):
                peer.sendall(ANSWER)


@contextmanager
def server(*, silent: bool = False) -> Iterator[str]:
    argv = [sys.executable, "-m", "bench.memory", "--silent" if silent else "--serve"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def load(url: str, users: int, requests: int) -> Iterator[tuple[psutil.Process, Path]]:
    """Start the Locust child; give it with the file of its rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        traffic = [{"name": "text", "payload": {"text": {"tokens": 64}}, "output": {"max": 1}, "stream": False}]
        profile = {"name": "memory", "traffic": traffic, "load": [{"users": users, "requests": requests}]}
        plan = {"profile": profile, "seed": 1, "base_url": url, "folder": name, "workers": 1}
        (folder / "plan.json").write_text(json.dumps(plan))
        facts = {"base_url": url, "admin_url": url, "dialect": "vllm", "model": "m"}
        (folder / "facts.json").write_text(json.dumps(facts))
        argv = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary"]
        environment = {**os.environ, "LOADCHAOS_PLAN": str(folder / "plan.json")}
        child = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield psutil.Process(child.pid), folder / "requests-0.jsonl"
        finally:
            child.kill()
            child.wait()


def beats(path: Path) -> Iterator[dict[str, int]]:
    """Give each heartbeat as it comes."""
    while not path.exists():
        time.sleep(0.05)
    with path.open("rb") as f:
        rest = b""
        while True:
            *lines, rest = (rest + f.read(1 << 22)).split(b"\n")
            for line in lines:
                if b'"row":"heartbeat"' in line:
                    yield json.loads(line)
            if not lines:
                time.sleep(0.1)


def growth(few: int, many: int) -> None:
    with server() as url, load(url, USERS, many + USERS) as (child, rows):
        seen: list[tuple[int, int]] = []
        for beat in beats(rows):
            if beat["ended"] >= (few if not seen else many):
                seen.append((beat["ended"], child.memory_info().rss))
                print(f"{beat['ended']:>10,} requests: {seen[-1][1] / 1e6:8.1f} MB resident", flush=True)
                if len(seen) == 2:
                    break
    print(f"grown by {(seen[1][1] - seen[0][1]) / 1e6:.1f} MB")


def idle(users: int) -> None:
    """Measure users who wait for an answer, against a load of one such user."""
    sizes = []
    for count in (1, users):
        with server(silent=True) as url, load(url, count, count) as (child, rows):
            for beat in beats(rows):
                if beat["in_flight"] == count:
                    break
            time.sleep(1)
            sizes.append(child.memory_info().rss)
    print(f"{users} users who wait: {(sizes[1] - sizes[0]) / (users - 1) / 1e3:.1f} kB each")


def main() -> None:
    if "--serve" in sys.argv or "--silent" in sys.argv:
        serve("--silent" in sys.argv)
    few, many, users = (int(a) for a in (*sys.argv[1:], *("200000", "1000000", "1000")[len(sys.argv) - 1 :]))
    idle(users)
    growth(few, many)


if __name__ == "__main__":
    main()
