"""Worker's side of a hunt on several machines.

The worker has a server of its own and gets workloads from the master. The master sends genes and seeds, never a command: the
worker starts the command that its user gave, and makes the profiles itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import zmq

from loadchaos.campaigns.hunt import link
from loadchaos.campaigns.hunt.corpus import finding_key, findings_of
from loadchaos.campaigns.hunt.genes import GenePool, ServerLimits, pool_of
from loadchaos.campaigns.hunt.workers import SlotLostError, WorkloadRunner
from loadchaos.campaigns.hunt.workload import Workload
from loadchaos.core import exit_codes
from loadchaos.core.errors import LoadchaosError, OptionError, TargetError
from loadchaos.core.model import Facts
from loadchaos.load.cluster import messages


class HuntWorker:
    """One worker of a hunt.

    It ends with the master, a signal or silence.
    """

    def __init__(
        self,
        address: tuple[str, int],
        make_runner: Callable[[float], WorkloadRunner],
        folder: Path,
        report: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            address: host and port of the master.
            make_runner: makes the server, given the longest time of a workload in seconds.
            folder: folder of this worker.
            report: prints a line.
        """
        self._address, self._make_runner, self._folder, self._report = address, make_runner, folder, report
        self._name = f"{socket.gethostname()}_hunt_{uuid4().hex}"
        self._number = 0
        self._unconfirmed: tuple[int, str, dict[str, Any]] | None = None
        self._sent_at_s = self._heard_at_s = time.monotonic()
        self._tasks = set[asyncio.Task[None]]()
        self._runner: WorkloadRunner | None = None
        self._pool: GenePool | None = None

    async def run(self, wait_s: float) -> int:
        """Join a master within `wait_s` and work. Returns the exit code.

        Raises:
            OptionError: the master refused this worker.
            TargetError: no master answered.
            LoadchaosError: the server cannot be tested.
        """
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._socket = link.open_socket(zmq.DEALER, *self._address)
        self._socket.setsockopt(zmq.IDENTITY, self._name.encode())
        self._socket.connect(f"tcp://{self._address[0]}:{self._address[1]}")
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._leave, f"signal {number}", 128 + number)
        try:
            self._start(self._join(wait_s))
            return await self._over
        finally:
            for task in self._tasks:
                task.cancel()
            if self._runner is not None:
                self._runner.interrupt()
                await self._runner.stop()
            await asyncio.to_thread(link.close_socket, self._socket)

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._over.done():
            self._send(messages.LEAVE, {"why": str(error)})
            self._over.set_exception(error)

    def _leave(self, why: str, code: int) -> None:
        if not self._over.done():
            self._send(messages.LEAVE, {"why": why})
            self._over.set_result(code)

    # --- the master -----------------------------------------------------------------------------------------------------

    async def _join(self, wait_s: float) -> None:
        """Ask until the master answers, start the server, and say what it is."""
        hello = {"token": self._name, "host": socket.gethostname(), "versions": messages.versions("hunt")}
        host, port = self._address
        deadline_s, told = time.monotonic() + wait_s, False
        while True:
            self._send(messages.HELLO, hello)
            kind, data = "", dict[str, Any]()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(link.PING_S):
                    kind, data = await self._receive()
            if kind == messages.REFUSED:
                raise OptionError(f"refused: {data.get('why')}")
            if kind == messages.WELCOME:
                break
            if time.monotonic() > deadline_s:
                raise TargetError(
                    f"no master at {host}:{port} accepted this worker within {wait_s:g} s: check that "
                    "`loadchaos hunt --master` runs there and that no firewall blocks its port"
                )
            if not told:
                self._report("no master answers yet; retrying")
                told = True
        self._heard_at_s = time.monotonic()
        self._start(self._listen())
        self._start(self._ping())
        self._report(f"connected to {host}:{port}; the server is started")
        self._runner = self._make_runner(float(data["workload_s"]))
        try:
            probed = dict(await self._runner.probe())
        except SlotLostError as e:
            raise TargetError(f"the server could not be started: {e}; see that log") from e
        limits = ServerLimits(
            Facts.from_json(probed["facts"]), probed["settings"], tuple(probed["models"]),
            endpoints=tuple(probed.get("endpoints", ())),
        )  # fmt: skip
        self._pool = pool_of(limits)
        self._report("the server is healthy; waiting for workloads")
        self._confirm(0, messages.READY, {"probed": probed})

    async def _receive(self) -> tuple[str, dict[str, Any]]:
        while True:
            frames = await self._socket.recv_multipart()
            with contextlib.suppress(ValueError):
                return link.unpack(frames[-1])

    async def _listen(self) -> None:
        while True:
            kind, data = await self._receive()
            self._heard_at_s = time.monotonic()
            if kind == messages.REFUSED and data.get("lost"):
                self._report(f"the master lost this worker: {data.get('why')}")
                self._leave("the master lost this worker", exit_codes.UNKNOWN)
            elif kind == messages.REFUSED:
                raise OptionError(f"refused: {data.get('why')}")
            elif kind == messages.END:
                self._report("the master ended the hunt")
                self._leave("the hunt is over", exit_codes.PASS)
            elif kind == messages.INTERRUPT and self._runner is not None:
                self._runner.interrupt()
            elif kind == messages.ACK and self._unconfirmed and self._unconfirmed[0] == data.get("number"):
                self._unconfirmed = None
            elif kind == messages.ORDER and data.get("number") == self._number + 1 and self._pool is not None:
                self._number += 1
                self._unconfirmed = None
                self._start(self._work(data))

    async def _ping(self) -> None:
        """Send signs of life, and again what the master has not confirmed."""
        while True:
            self._send(messages.PING, {"number": self._number})
            if self._unconfirmed is not None and time.monotonic() - self._sent_at_s > link.RESEND_S:
                self._confirm(*self._unconfirmed)
            await asyncio.sleep(link.PING_S)
            silent_s = time.monotonic() - self._heard_at_s
            if silent_s > link.LOST_AFTER_S:
                self._report(f"the master sent nothing for {silent_s:.0f} s; the server is stopped")
                self._leave("the master was silent", exit_codes.UNKNOWN)

    # --- workloads ------------------------------------------------------------------------------------------------------

    async def _work(self, order: Mapping[str, Any]) -> None:
        """Run a workload and send its result."""
        runner, number = self._runner, self._number
        assert runner is not None
        folder = self._folder / "runs" / f"{number:05}"
        result: dict[str, Any]
        try:
            profile = self._profile(order)
            result = dict(await runner.run({"profile": profile, "seed": order["seed"], "folder": str(folder)}))
        except SlotLostError as e:
            result = {"lost": str(e)}
        except LoadchaosError as e:
            result = {"error": str(e), "exit_code": e.exit_code}
        else:
            known, run = set(order.get("known") or ()), Path(result.pop("run"))
            if any(finding_key(f) not in known for f in findings_of(result)):
                result["packed_run"] = await asyncio.to_thread(link.pack_run, run)
            self._report(f"workload {number}: {result['requests']} requests, {result['seconds']:.0f} s")
        shutil.rmtree(folder, ignore_errors=True)
        self._confirm(number, messages.RESULT, {"number": number, "result": result})

    def _profile(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Make the profile of an order's genes.

        Raises OptionError for anything else.
        """
        assert self._pool is not None
        try:
            return Workload.from_json(order["workload"]).profile(self._pool)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise OptionError(f"the master sent a workload that is none ({e!r}): check that it is your master") from e

    def _confirm(self, number: int, kind: str, data: dict[str, Any]) -> None:
        """Send what the master must have; it is sent again until ACK arrives."""
        self._unconfirmed, self._sent_at_s = (number, kind, data), time.monotonic()
        self._send(kind, data)

    def _send(self, kind: str, data: Mapping[str, Any]) -> None:
        self._socket.send(link.pack(kind, data, self._name))
