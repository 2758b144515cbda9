"""Master's side of workers on other machines.

A worker starts a server of its own, says what it is, and gets one workload after the other. `WorkerPort` knows the workers,
`RemoteServer` is one of them as the hunt uses it. A lost worker loses the workload that it had.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import zmq

from loadchaos.campaigns.hunt import link
from loadchaos.campaigns.hunt.workers import SlotLostError, checked
from loadchaos.core.errors import OptionError
from loadchaos.load.cluster import messages

Send = Callable[[str, Mapping[str, Any]], None]
_MOST_REFUSALS = 100


class WorkerGoneError(SlotLostError):
    """Signal that a worker is lost or has left: it gets no other workload."""


class RemoteServer:
    """WorkloadRunner on another machine.

    Attributes:
        probed: facts of its server; None until the server is healthy.
        gone: why it is no longer there; "" while it is.
    """

    def __init__(self, name: str, send: Send, print_line: Callable[[str], None]) -> None:
        self.name, self._send, self._print = name, send, print_line
        self.heard_at_s = time.monotonic()
        self.probed: dict[str, Any] | None = None
        self.gone = ""
        self._number = 0
        self._order: dict[str, Any] | None = None
        self._answer: asyncio.Future[dict[str, Any]] | None = None

    async def probe(self) -> Mapping[str, Any]:
        """Facts of the server."""
        return self.probed or {}

    async def run(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run one workload.

        The worker gets genes, and makes the profile of them itself. It sends the run if a failure is not known yet.
        """
        if self.gone:
            raise WorkerGoneError(self.gone)
        self._number += 1
        self._order = {name: order[name] for name in ("workload", "seed", "known")} | {"number": self._number}
        self._answer = asyncio.get_running_loop().create_future()
        self._send(messages.ORDER, self._order)
        try:
            found = await self._answer
        finally:
            self._order = None
        if found.get("lost"):
            raise SlotLostError(f"{self.name}: {found['lost']}")
        run, packed = Path(order["folder"]) / "run", found.pop("packed_run", None)
        if packed is not None:
            try:
                await asyncio.to_thread(link.unpack_run, packed, run)
            except ValueError as e:
                raise SlotLostError(f"{self.name}: {e}") from e
        return {**checked(found), "run": str(run), "server": self.name}

    def interrupt(self) -> None:
        """End the workload that is running."""
        self._send(messages.INTERRUPT, {})

    async def stop(self) -> None:
        """Tell the worker to end; it stops its server itself."""
        if not self.gone:
            self.gone = f"{self.name} was told to end"
            self._send(messages.END, {})

    def answer_message(self, kind: str, data: dict[str, Any]) -> None:
        """Take a message of the worker."""
        self.heard_at_s = time.monotonic()
        if kind == messages.PING:
            self._send(messages.PONG, {})
            if self._order is not None and data.get("number") != self._order["number"]:
                self._send(messages.ORDER, self._order)  # it was lost with a connection
        elif kind == messages.RESULT:
            self._send(messages.ACK, {"number": data.get("number")})
            result = data.get("result")
            if (
                data.get("number") == self._number
                and isinstance(result, dict)
                and self._answer
                and not self._answer.done()
            ):
                self._answer.set_result(result)
        elif kind == messages.LEAVE:
            self.lose(f"{self.name} left: {data.get('why')}")

    def lose(self, why: str) -> None:
        """Note that the worker is gone; its workload is lost."""
        if self.gone:
            return
        self.gone = why
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(WorkerGoneError(why))
        else:
            self._print(f"worker {why}")


class WorkerPort:
    """Port at which workers on other machines join a hunt."""

    def __init__(self, host: str, port: int, workload_s: float, print_line: Callable[[str], None]) -> None:
        self._address, self._workload_s, self._print = (host, port), workload_s, print_line
        self._workers: dict[bytes, RemoteServer] = {}
        self._ready: asyncio.Queue[RemoteServer] = asyncio.Queue()
        self._refused = set[bytes]()
        self._tasks: list[asyncio.Task[None]] = []

    def open(self) -> None:
        """Listen for workers. Raises OptionError where the address is taken."""
        host, port = self._address
        self._socket = link.open_socket(zmq.ROUTER, host, port)
        try:
            self._socket.bind(f"tcp://{host}:{port}")
        except zmq.ZMQError as e:
            raise OptionError(
                f"--master-bind-host {host} --master-bind-port {port}: {e}; choose another address"
            ) from e
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch())]

    async def joined(self) -> RemoteServer:
        """Wait for the next worker whose server is healthy."""
        while (worker := await self._ready.get()).gone:
            pass
        return worker

    def refuse(self, worker: RemoteServer, why: str) -> None:
        """Send a worker away."""
        client = next(c for c, w in self._workers.items() if w is worker)
        self._refuse(client, worker.name, why)
        worker.gone = f"{worker.name} was refused: {why}"

    async def close(self) -> None:
        """Tell all workers to end, and close the port."""
        for task in self._tasks:
            task.cancel()
        for worker in self._workers.values():
            await worker.stop()
        if self._tasks:
            await asyncio.sleep(0)  # the socket sends from the loop
            await asyncio.to_thread(link.close_socket, self._socket)
        self._tasks = []

    async def _receive(self) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            with contextlib.suppress(ValueError):
                self._dispatch(frames[0], *link.unpack(frames[-1]))

    def _dispatch(self, client: bytes, kind: str, data: dict[str, Any]) -> None:
        worker = self._workers.get(client)
        if kind == messages.HELLO:
            if worker is None:
                worker = self._welcome(client, data)
            if worker is not None:
                worker.heard_at_s = time.monotonic()
                self._send(client, messages.WELCOME, {"workload_s": self._workload_s})
        elif worker is None:
            self._send(client, messages.REFUSED, {"why": "this master does not know the worker: start it again"})
        elif worker.gone:
            if kind != messages.LEAVE:
                self._send(client, messages.REFUSED, {"why": worker.gone, "lost": True})
        elif kind == messages.READY:
            self._send(client, messages.ACK, {"number": 0})
            if worker.probed is None and isinstance(data.get("probed"), dict):
                worker.probed = data["probed"]
                self._ready.put_nowait(worker)
        else:
            worker.answer_message(kind, data)

    def _welcome(self, client: bytes, data: Mapping[str, Any]) -> RemoteServer | None:
        """Worker that joins; None where its version or task differs."""
        versions = data.get("versions")
        why = messages.mismatch(versions if isinstance(versions, dict) else {}, "hunt")
        host = str(data.get("host"))
        if why is not None:
            self._refuse(client, host, why)
            return None
        worker = RemoteServer(f"{host}-{len(self._workers) + 1}", lambda k, d: self._send(client, k, d), self._print)
        self._workers[client] = worker
        self._print(f"worker {worker.name} is connected; it starts its server")
        return worker

    def _refuse(self, client: bytes, name: str, why: str) -> None:
        if client not in self._refused and len(self._refused) < _MOST_REFUSALS:
            self._refused.add(client)
            self._print(f"worker {name} was refused: {why}")
        self._send(client, messages.REFUSED, {"why": why})

    async def _watch(self) -> None:
        """Note workers that are silent."""
        while True:
            await asyncio.sleep(link.PING_S)
            for worker in self._workers.values():
                silent_s = time.monotonic() - worker.heard_at_s
                if silent_s > link.LOST_AFTER_S and not worker.gone:
                    worker.lose(f"{worker.name} sent nothing for {silent_s:.0f} s")

    def _send(self, client: bytes, kind: str, data: Mapping[str, Any]) -> None:
        # zmq drops what has no receiver, and the worker asks again.
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send_multipart([client, link.pack(kind, data, client.decode("utf-8", "replace"))])
