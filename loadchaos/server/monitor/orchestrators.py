"""Asks who supervises a server (docker, Kubernetes, systemd) whether it runs, how it ended last, and how often it restarted.

The spec is that of the log (`docker:NAME`, `k8s:NS/POD[/CONTAINER]`, `journal:UNIT`): who knows the log knows the end, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadchaos.core.ledger.rows import Emit, OrchestratorEvent
from loadchaos.server.monitor.gaps import CoverageGap
from loadchaos.server.monitor.logs import read_spec

_EVERY_S = 2.0
_LIMIT_S = 10.0
_MOST_BYTES = 8 << 20
_WHY_CHARS = 200


@dataclass(frozen=True)
class ContainerStatus:
    """What a supervisor says. `exit_code`, `signal` and `oom_killed` are of the newest end there was, None where unknown.

    `life` changes with each start of the server; `reason` is the supervisor's own word for the end.
    """

    running: bool
    life: str
    restarts: int | None
    exit_code: int | None = None
    signal: int | None = None
    oom_killed: bool | None = None
    reason: str = ""

    def end_in_words(self) -> str:
        """`OOMKilled, exited with code 137`."""
        how = f"was ended by signal {self.signal}" if self.signal else f"exited with code {self.exit_code}"
        known = self.signal or self.exit_code is not None
        return ", ".join(w for w in (self.reason, how if known else "") if w) or "ended"


Reader = Callable[[str], ContainerStatus]


def _docker(page: str) -> ContainerStatus:
    """`docker inspect`: the state is of the present life, or of how it ended."""
    found = json.loads(page)[0]
    state: Mapping[str, Any] = found["State"]
    oom = bool(state.get("OOMKilled"))
    running = bool(state.get("Running")) and not state.get("Restarting")
    words = [word for word in ("OOMKilled" if oom else "", str(state.get("Error") or "")) if word]
    code = None if running else int(state.get("ExitCode") or 0)
    return ContainerStatus(
        running, str(state.get("StartedAt")), int(found.get("RestartCount") or 0), code, None, oom, ", ".join(words)
    )


def _kubernetes(container: str | None) -> Reader:
    """`kubectl get pod -o json`: the container's present state and the one before its last restart."""

    def read(page: str) -> ContainerStatus:
        status = json.loads(page)["status"]
        found: list[Mapping[str, Any]] = status.get("containerStatuses") or []
        mine = next((c for c in found if container in (None, c.get("name"))), None)
        if mine is None:
            words = ": ".join(str(status[k]) for k in ("reason", "message") if status.get(k))
            return ContainerStatus(False, str(status.get("startTime")), None, reason=words or str(status.get("phase")))
        state = mine.get("state") or {}
        ended = state.get("terminated") or (mine.get("lastState") or {}).get("terminated") or {}
        reason = str(ended.get("reason") or "")
        return ContainerStatus(
            "running" in state,
            str(mine.get("containerID")),
            int(mine.get("restartCount") or 0),
            ended.get("exitCode"),
            ended.get("signal") or None,
            reason == "OOMKilled" if ended else None,
            "" if reason in ("Error", "Completed") else reason,
        )

    return read


def _systemd(page: str) -> ContainerStatus:
    """`systemctl show`: Result and ExecMain* are of the newest end until the unit starts again."""
    said = dict(line.split("=", 1) for line in page.splitlines() if "=" in line)
    if said.get("LoadState") not in (None, "loaded"):
        raise ValueError(f"the unit is {said['LoadState']}")
    running = said.get("ActiveState") in ("active", "reloading") and said.get("MainPID", "0") != "0"
    over = not running and said.get("ExecMainCode", "0") != "0"
    status = int(said.get("ExecMainStatus") or 0)
    killed = said.get("ExecMainCode") in ("2", "3")  # CLD_KILLED, CLD_DUMPED
    oom = said.get("Result") == "oom-kill"
    return ContainerStatus(
        running,
        said.get("InvocationID") or said.get("ExecMainStartTimestampMonotonic", ""),
        int(said.get("NRestarts") or 0),
        None if killed or not over else status,
        status if killed and over else None,
        oom if over else None,
        "killed by the OOM killer" if oom else "",
    )


def _docker_ends(page: str, now: ContainerStatus) -> ContainerStatus:
    """`docker events` of the last life's end, which `docker inspect` forgets as soon as the container runs again."""
    events = [json.loads(line) for line in page.splitlines() if line.strip()]
    dies = [e["Actor"]["Attributes"].get("exitCode") for e in events if e.get("Action") == "die"]
    oom = any(e.get("Action") == "oom" for e in events)
    code = int(dies[-1]) if dies and dies[-1] else None
    return replace(now, exit_code=code, oom_killed=oom, reason="OOMKilled" if oom else "")


_SYSTEMD = "LoadState,ActiveState,MainPID,Result,ExecMainCode,ExecMainStatus,NRestarts,InvocationID"


@dataclass(frozen=True)
class _Question:
    """What asks a supervisor, and what reads its answer. `past` asks for an end that the answer no longer tells."""

    argv: Sequence[str]
    read: Reader
    past: Sequence[str] = ()


def _question(spec: str) -> _Question | None:
    """How the supervisor of this log is asked; None where a log has none."""
    kind, rest = read_spec(spec)
    if kind == "docker":
        filters = (f"container={rest}", "event=die", "event=oom")
        past = ("docker", "events", "--format", "{{json .}}", *(a for f in filters for a in ("--filter", f)))
        return _Question(("docker", "inspect", "--type", "container", rest), _docker, past)
    if kind == "k8s":
        namespace, pod, *container = rest.split("/")
        question = ("kubectl", "get", "pod", "-n", namespace, pod, "-o", "json")
        return _Question(question, _kubernetes(container[0] if container else None))
    if kind == "journal":
        return _Question(("systemctl", "show", rest, f"--property={_SYSTEMD}"), _systemd)
    return None


class Supervisor:
    """Asks for one replica every two seconds until cancelled; `run()` is the task. Rows of kind `supervisor`.

    `what` is seen (the first answer), ended (it does not run any more, or runs again after an end), started. A
    supervisor that cannot be asked is told once as a gap without length: that costs a name, not the sight of the server.
    """

    def __init__(self, replica: str, spec: str, emit: Emit) -> None:
        self._replica, self._spec, self._emit = replica, spec, emit
        self._question = _question(spec)
        self._gap = CoverageGap(emit, replica, "supervisor")
        self._known: ContainerStatus | None = None
        self._told = ""
        self._asked = time.time()

    @property
    def exists(self) -> bool:
        """Whether there is anybody to ask."""
        return self._question is not None

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            begin = time.monotonic()
            await self._ask()
            await asyncio.sleep(max(begin + _EVERY_S - time.monotonic(), _EVERY_S / 2))

    async def _ask(self) -> None:
        assert self._question is not None
        asked = time.time()
        try:
            standing = self._question.read(await _output(self._question.argv))
            before, self._known = self._known, standing
            if before is None:
                self._row("seen", standing)
            elif standing.life != before.life or standing.restarts != before.restarts:
                # An end that fell between two questions is told, too.
                if before.running:
                    self._row("ended", await self._ended(standing))
                if standing.running:
                    self._row("started", standing)
            elif standing.running != before.running:
                self._row("started" if standing.running else "ended", standing)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as e:
            why = f"{self._question.argv[0]} does not say how the server is: {e}"[:_WHY_CHARS]
            if why != self._told:
                self._told = why
                self._gap.once(0.0, why)
        self._asked = asked

    async def _ended(self, now: ContainerStatus) -> ContainerStatus:
        """The end of the life before this one."""
        assert self._question is not None
        if not self._question.past or not now.running:
            return now
        span = ("--since", f"{self._asked - _EVERY_S:.3f}", "--until", f"{time.time():.3f}")
        try:
            return _docker_ends(await _output((*self._question.past, *span)), now)
        except (OSError, ValueError, LookupError, TypeError):
            return now  # that it ended is known all the same

    def _row(self, what: OrchestratorEvent, said: ContainerStatus) -> None:
        self._emit(
            {
                "row": "supervisor",
                "at_ns": time.monotonic_ns(),
                "replica": self._replica,
                "source": self._spec,
                "what": what,
                "running": said.running,
                "exit_code": said.exit_code,
                "signal": said.signal,
                "oom_killed": said.oom_killed,
                "restarts": said.restarts,
                "reason": said.end_in_words() if what == "ended" else said.reason,
            }
        )


async def _output(argv: Sequence[str]) -> str:
    """What a command prints. OSError where it is not there or does not end, ValueError where it fails."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_MOST_BYTES,
    )
    try:
        async with asyncio.timeout(_LIMIT_S):
            out, error = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        said = error.decode("utf-8", "replace").strip().splitlines()
        raise ValueError(said[-1] if said else f"exit code {process.returncode}")
    return out.decode("utf-8", "replace")
