"""Processes of this machine that run workloads. Each has a server of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import orjson

from loadchaos.campaigns.hunt.journal import MOST_LINE_BYTES, WorkloadResult
from loadchaos.campaigns.hunt.slot import ProbedSlot, SlotSettings, WorkloadOrder
from loadchaos.core.errors import LoadchaosError
from loadchaos.core.lifetime import PYTHON_MODULE
from loadchaos.core.typed_json import from_json, to_json

_STOP_S = 60.0


class SlotLostError(Exception):
    """Signal that the process of a slot ended without an answer."""


class SlotProcess:
    """Runs workloads one after the other in a process (`slot`), started when it is needed."""

    def __init__(self, settings: SlotSettings, servers: Path, number: int) -> None:
        self._settings = replace(settings, folder=str(servers / str(number)))
        self._log = servers / f"slot-{number}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def probe(self) -> ProbedSlot:
        """Start the server and find out its facts. Raises LoadchaosError where it cannot be tested."""
        return from_json(ProbedSlot, await self._ask({"do": "probe"}))

    async def run(self, order: WorkloadOrder) -> WorkloadResult:
        return from_json(WorkloadResult, await self._ask({"do": "run", **to_json(order)}))

    def interrupt(self) -> None:
        """End the workload that is running; its server is stopped by `stop`."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _ask(self, order: Mapping[str, object]) -> Mapping[str, object]:
        process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        line = b""
        with contextlib.suppress(ConnectionError):
            process.stdin.write(orjson.dumps(order) + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
        if not line:
            code = await process.wait()
            self._process = None
            raise SlotLostError(f"the process of a server ended (exit code {code}); its output is in {self._log}")
        answer: Mapping[str, object] = orjson.loads(line)
        if "error" in answer and "exit_code" in answer:
            error = LoadchaosError(str(answer["error"]))
            error.exit_code = int(str(answer["exit_code"]))
            raise error
        return answer

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *PYTHON_MODULE, "loadchaos.campaigns.hunt.slot", stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE, stderr=log, env=dict(os.environ), start_new_session=True,
                    limit=MOST_LINE_BYTES,
                )  # fmt: skip
            assert self._process.stdin is not None
            self._process.stdin.write(orjson.dumps(to_json(self._settings)) + b"\n")
        return self._process
