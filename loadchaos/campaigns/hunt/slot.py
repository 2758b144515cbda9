"""Process of a hunt that owns one server and runs workloads on it.

    python -m loadchaos.campaigns.hunt.slot

It reads orders from stdin and answers each on stdout, one JSON object a line. The first order is its settings
(`SlotSettings`). `{"do": "probe"}` answers the facts of the server, `{"do": "run", ...}` the result of one workload.
The end of stdin ends the run, the server and the process: a hunt that is killed leaves no server behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson

from loadchaos.analysis.coverage import WorkloadCoverage
from loadchaos.analysis.failure import DEADLY_OR_HUNG
from loadchaos.analysis.verdict.model import FailureResult
from loadchaos.analysis.verdict.run_health import PROOF
from loadchaos.campaigns.hunt.journal import MOST_LINE_BYTES, HuntFailure, WorkloadResult
from loadchaos.campaigns.replay.expected import guilty_frame
from loadchaos.campaigns.replay.servers import ServerChoice, ServerPool
from loadchaos.chaos import authorization
from loadchaos.core import exit_codes
from loadchaos.core.errors import LoadchaosError, OptionError, StoppedBySignalError, TargetError
from loadchaos.core.ledger.reader import Reader
from loadchaos.core.ledger.row_check import fits_its_kind
from loadchaos.core.limits import DEATH_SHOWS_S, READY_WITHIN_S
from loadchaos.core.model import Facts, Row
from loadchaos.core.private import create_privately
from loadchaos.core.tls import TlsSettings
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.load import registry
from loadchaos.profile.profile import from_mapping
from loadchaos.run import probe
from loadchaos.run.discovery_client import discovery_client
from loadchaos.run.endpoint_check import routed_endpoints
from loadchaos.run.finalize import Result
from loadchaos.run.held_server import HeldServer
from loadchaos.run.interrupts import Interrupts
from loadchaos.run.options import Options, headers_of_options
from loadchaos.run.run import run_quietly
from loadchaos.server.discovery.client import CalibrationRequest
from loadchaos.server.memory import ServerMemory
from loadchaos.server.process.launcher import CommandLine

_PORT_FREE_S = 20.0
_LEAKS = ("kv_leak", "lost_requests_held")
QUESTIONS = ("before", "beside", "after", "last")
"""Purposes of the questions of a workload: to the idle server, beside the load, again after it, and the last one."""
_REFUSAL_CHARS, _LEAST_REFUSAL_CHARS = 60, 12


@dataclass(frozen=True)
class SlotSettings:
    """Settings of a slot. `most_load_s`: a workload that takes longer is ended."""

    argv: tuple[str, ...]
    url: str
    folder: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    ready_within_s: float = READY_WITHIN_S
    most_load_s: float = 60.0
    model: str | None = None
    api_key_env: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    ca: str | None = None
    insecure: bool = False
    authorize: tuple[str, ...] = ()

    def server(self) -> ServerChoice:
        return ServerChoice(CommandLine(tuple(self.argv), dict(self.env), self.url), ready_within_s=self.ready_within_s)

    def options(self) -> Options:
        return Options(
            model=self.model, api_key_env=self.api_key_env, headers=self.headers,
            tls=TlsSettings(self.ca, self.insecure), authorize=self.authorize, live=False, replay=True,
            duration_s=self.most_load_s, duration_is_end=True, argv=["loadchaos", "hunt"],
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ProbedSlot:
    """Facts of a server, its `settings` by our names, and the requests `asked` that identified it, of each kind."""

    facts: Facts
    models: tuple[str, ...] = ()
    trouble: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    endpoints: tuple[str, ...] = ()
    asked: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkloadOrder:
    """A workload to run: its profile without a target, its seed and the folder for its run."""

    profile: Mapping[str, object]
    seed: int
    folder: str


class ServerSlot:
    """One server and the runs on it."""

    def __init__(self, settings: SlotSettings, interrupts: Interrupts) -> None:
        self._settings, self._choice, self._interrupts = settings, settings.server(), interrupts
        self._pool = ServerPool(self._choice, Path(settings.folder), ServerMemory())

    async def answer(self, order: Mapping[str, object]) -> object:
        if order["do"] == "probe":
            return await self._probe()
        return await self._run(from_json(WorkloadOrder, order))

    async def stop(self) -> None:
        await self._pool.stop()

    async def _probe(self) -> ProbedSlot:
        held, settings = await self._server(), self._settings
        authorization.check(settings.url, ["each workload of the hunt"], settings.authorize, launched=True)
        headers = headers_of_options(settings.options())
        tls = TlsSettings(settings.ca, settings.insecure).context()
        async with discovery_client(settings.url, headers=headers, tls=tls, model=settings.model) as client:
            client.memory = held.memory.discovery if held.memory is not None else None
            request = CalibrationRequest(model=settings.model, api_key_env=settings.api_key_env)
            probed = await probe.probe(client, request, {}, quick=False)
            endpoints = await routed_endpoints(client, probed.facts)
        await asyncio.sleep(DEATH_SHOWS_S if probed.trouble else 0.0)
        if not held.alive:
            raise TargetError(
                f"the server died of the requests that identify it ({probed.trouble}); its log {held.log} says why"
            )
        return ProbedSlot(
            facts=probed.facts,
            models=tuple(probed.models),
            trouble=probed.trouble,
            settings={name: value for name, (value, _) in probed.configured.items()},
            endpoints=tuple(endpoints),
            asked={"reads": client.reads, "generations": client.generations},
        )

    async def _server(self) -> HeldServer:
        """Healthy server. The port may be in use for a moment after the one before."""
        deadline = time.monotonic() + _PORT_FREE_S
        while True:
            try:
                return await self._pool.healthy_server()
            except OptionError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.5)

    async def _run(self, order: WorkloadOrder) -> WorkloadResult:
        begin_s, started = time.monotonic(), self._pool.started
        held = await self._server()
        profile = from_mapping({**order.profile, "target": self._choice.target()}, registry.full_registry())
        out = Path(order.folder)
        shutil.rmtree(out, ignore_errors=True)  # of a workload that was killed
        options = replace(self._settings.options(), out=out, held=held, seed=order.seed)
        found = summary(await run_quietly(profile, options, self._interrupts, lambda _: None))
        restarted = self._pool.started != started
        if found.died:
            await self._pool.stop()
        return replace(found, restarted=restarted, seconds=round(time.monotonic() - begin_s, 3))


def summary(result: Result) -> WorkloadResult:
    """Result of a run as a hunt needs it: coverage, failures, requests."""
    coverage, begins, asked = WorkloadCoverage(), 0, Counter[str]()
    state, refusals = "healthy", set[str]()
    for row in Reader(result.folder, fits_its_kind).new(final=True):
        coverage.fold(row)
        if row["row"] == "begin":
            begins += 1
        elif purpose := _purpose(row):
            asked[purpose] += 1
        elif row["row"] == "discovery":
            asked["discovery"] += int(row["generations"])
            asked["reads"] += int(row["reads"])
        elif row["row"] == "state":
            state = str(row["to"])
        elif row["row"] == "end" and (text := _refusal(row)):
            refusals.add(text)
    failures = tuple(_failure(f, begins, refusals) for f in result.failures)
    why = _unproved(result, begins)
    return WorkloadResult(
        features=tuple(sorted(coverage.features)),
        lines=tuple(coverage.lines),
        idle_lines=tuple(coverage.idle_lines),
        failures=failures,
        requests=begins,
        questions=sum(asked[name] for name in QUESTIONS),
        asked=dict(asked),
        proved=not why,
        why=why,
        outcomes=dict(result.outcomes),
        died=state != "healthy" or any(f.severity in DEADLY_OR_HUNG or f.id in _LEAKS for f in failures),
        stopped=result.exit_code in exit_codes.BY_SIGNAL,
        run=str(result.folder.path),
    )


def _purpose(row: Row) -> str:
    if row.get("row") == "last_question" and row.get("what") == "ask":
        return "last"
    if row.get("row") != "question" or row.get("remembered"):
        return ""
    return {"load": "beside", "after": "after"}.get(str(row.get("when")), "before")


def _refusal(row: Row) -> str:
    """Begin of the text of an answer with a 4xx as status or as code of an error event; "" for any other."""
    code = row.get("status") if (row.get("status") or 0) >= 400 else row.get("error_code")
    text = str(row.get("error") or "")[:_REFUSAL_CHARS]
    return text if isinstance(code, int) and 400 <= code < 500 and len(text) >= _LEAST_REFUSAL_CHARS else ""


def _failure(failure: FailureResult, requests: int, refusals: set[str]) -> HuntFailure:
    """`refused`: it is only the refusal of a request, as the client or the log of the server has it."""
    line = failure.evidence.text or ""
    return HuntFailure(
        id=failure.id,
        frame=guilty_frame(failure),
        title=failure.title,
        severity=failure.severity,
        attribution=failure.attribution,
        line=line,
        count=failure.count,
        after_requests=requests,
        accepted=failure.accepted,
        before_load=failure.before_load or not requests,
        incident=failure.incident,
        refused=failure.severity == "request" and any(text in line for text in refusals),
    )


def _unproved(result: Result, requests: int) -> str:
    """Say why a run proves nothing; "" if it does."""
    if result.verdict is None or result.error:
        return result.error or "it was not judged"
    if not requests:
        return "no request was sent"
    if not result.failures and not result.outcomes.get("ok"):
        return "no request was answered"
    for check in result.verdict.checks:
        if check.name in PROOF and check.verdict == "unknown":
            return f"{check.name}: {check.actual}"
    return ""


async def serve(out_fd: int, interrupts: Interrupts) -> None:
    """Answer orders until stdin ends. A signal ends the workload in order; outside of one it ends the process."""
    loop = asyncio.get_running_loop()
    orders: asyncio.Queue[Mapping[str, object] | None] = asyncio.Queue()
    reader = asyncio.StreamReader(limit=MOST_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    working = False

    async def read() -> None:
        while line := await reader.readline():
            await orders.put(orjson.loads(line))
        await orders.put(None)
        if working:
            interrupts.receive(signal.SIGTERM)  # ends the run in order

    reading = asyncio.create_task(read())
    first = await orders.get()
    slot = ServerSlot(from_json(SlotSettings, first), interrupts) if first is not None else None
    try:
        while slot is not None and (order := await orders.get()) is not None:
            working = True
            try:
                answer: object = to_json(await slot.answer(order))
            except LoadchaosError as e:
                answer = {"error": str(e), "exit_code": e.exit_code}
            working = False
            with contextlib.suppress(OSError):
                os.write(out_fd, orjson.dumps(answer, option=orjson.OPT_NON_STR_KEYS) + b"\n")
    finally:
        reading.cancel()
        if slot is not None:
            await slot.stop()


def main() -> int:
    """Serve orders; everything else that is printed goes to stderr."""
    create_privately()
    out_fd = os.dup(1)
    os.dup2(2, 1)
    interrupts = Interrupts()
    try:
        interrupts.run(serve(out_fd, interrupts))
    except StoppedBySignalError as e:
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
