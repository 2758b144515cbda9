"""Poll docker, Kubernetes or systemd, whichever the place of the log names, for the state of a server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loadchaos.core.ledger.rows import Emit, OrchestratorEvent
from loadchaos.server.command_output import command_output
from loadchaos.server.monitor.gaps import CoverageGap
from loadchaos.server.monitor.logs import read_spec
from loadchaos.server.repeat import repeat

EVERY_S = 2.0
"""Period at which Docker, Kubernetes or systemd is asked."""
_LIMIT_S = 10.0
_WHY_CHARS = 200


@dataclass(frozen=True)
class ContainerStatus:
    """State of a container, pod or unit. `life` changes with each start; code, signal and `oom_killed` are of the
    newest end.
    """

    running: bool
    life: str
    restarts: int | None
    exit_code: int | None = None
    signal: int | None = None
    oom_killed: bool | None = None
    reason: str = ""

    def describe_end(self) -> str:
        """`OOMKilled, exited with code 137`."""
        end = f"was ended by signal {self.signal}" if self.signal else f"exited with code {self.exit_code}"
        known = self.signal or self.exit_code is not None
        return ", ".join(part for part in (self.reason, end if known else "") if part) or "ended"


Reader = Callable[[str], ContainerStatus]


def _docker(page: str) -> ContainerStatus:
    """Read `docker inspect`, whose state is of the newest start."""
    found = json.loads(page)[0]
    state = found["State"]
    oom = bool(state.get("OOMKilled"))
    running = bool(state.get("Running")) and not state.get("Restarting")
    reasons = [text for text in ("OOMKilled" if oom else "", str(state.get("Error") or "")) if text]
    code = None if running else int(state.get("ExitCode") or 0)
    return ContainerStatus(
        running, str(state.get("StartedAt")), int(found.get("RestartCount") or 0), code, None, oom, ", ".join(reasons)
    )


def _kubernetes(container: str | None) -> Reader:
    """Read `kubectl get pod -o json`. The state includes the one before the last restart."""

    def read(page: str) -> ContainerStatus:
        status = json.loads(page)["status"]
        mine = next((c for c in status.get("containerStatuses") or () if container in (None, c.get("name"))), None)
        if mine is None:
            reason = ": ".join(str(status[k]) for k in ("reason", "message") if status.get(k))
            return ContainerStatus(False, str(status.get("startTime")), None, reason=reason or str(status.get("phase")))
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
    """Read `systemctl show`. Result and ExecMain* are of the newest end until the unit starts again."""
    shown = dict(line.split("=", 1) for line in page.splitlines() if "=" in line)
    if shown.get("LoadState") not in (None, "loaded"):
        raise ValueError(f"the unit is {shown['LoadState']}")
    running = shown.get("ActiveState") in ("active", "reloading") and shown.get("MainPID", "0") != "0"
    ended = not running and shown.get("ExecMainCode", "0") != "0"
    status = int(shown.get("ExecMainStatus") or 0)
    killed = shown.get("ExecMainCode") in ("2", "3")  # CLD_KILLED, CLD_DUMPED
    oom = shown.get("Result") == "oom-kill"
    return ContainerStatus(
        running,
        shown.get("InvocationID") or shown.get("ExecMainStartTimestampMonotonic", ""),
        int(shown.get("NRestarts") or 0),
        None if killed or not ended else status,
        status if killed and ended else None,
        oom if ended else None,
        "killed by the OOM killer" if oom else "",
    )


def _docker_ends(page: str, now: ContainerStatus) -> ContainerStatus:
    """Read the last end from `docker events`. `docker inspect` forgets it once the container runs again."""
    events = [json.loads(line) for line in page.splitlines() if line.strip()]
    dies = [e["Actor"]["Attributes"].get("exitCode") for e in events if e.get("Action") == "die"]
    oom = any(e.get("Action") == "oom" for e in events)
    code = int(dies[-1]) if dies and dies[-1] else None
    return replace(now, exit_code=code, oom_killed=oom, reason="OOMKilled" if oom else "")


_SYSTEMD = "LoadState,ActiveState,MainPID,Result,ExecMainCode,ExecMainStatus,NRestarts,InvocationID"


@dataclass(frozen=True)
class StatusCommand:
    """The command that reads a status, and its parser. `past` is a command for an end before the present start."""

    argv: Sequence[str]
    read: Reader
    past: Sequence[str] = ()


def status_command(spec: str) -> StatusCommand | None:
    """Choose the status command for a log. Returns None for a log without an orchestrator."""
    kind, rest = read_spec(spec)
    if kind == "docker":
        filters = (f"container={rest}", "event=die", "event=oom")
        past = ("docker", "events", "--format", "{{json .}}", *(a for f in filters for a in ("--filter", f)))
        return StatusCommand(("docker", "inspect", "--type", "container", rest), _docker, past)
    if kind == "k8s":
        namespace, pod, *container = rest.split("/")
        argv = ("kubectl", "get", "pod", "-n", namespace, pod, "-o", "json")
        return StatusCommand(argv, _kubernetes(container[0] if container else None))
    if kind == "journal":
        return StatusCommand(("systemctl", "show", rest, f"--property={_SYSTEMD}"), _systemd)
    return None


class OrchestratorMonitor:
    """Writes `supervisor` rows of one replica: seen (the first), ended (it does not run, or runs again) or started.
    Failed polls write one gap without length: the other parts still observe the server.
    """

    def __init__(self, replica: str, spec: str, command: StatusCommand, emit: Emit) -> None:
        self._replica, self._spec, self._command, self._emit = replica, spec, command, emit
        self._gap = CoverageGap(emit, replica, "supervisor")
        self._known: ContainerStatus | None = None
        self._last_error = ""
        self._polled = time.time()

    async def run(self) -> None:
        await repeat(EVERY_S, self._poll, shortest_wait_s=EVERY_S / 2)

    async def _poll(self) -> None:
        polled = time.time()
        try:
            status = self._command.read(await command_output(self._command.argv, _LIMIT_S))
            before, self._known = self._known, status
            if before is None:
                self._row("seen", status)
            elif status.life != before.life or status.restarts != before.restarts:
                # It ended and started between two polls.
                if before.running:
                    self._row("ended", await self._ended(status))
                if status.running:
                    self._row("started", status)
            elif status.running != before.running:
                self._row("started" if status.running else "ended", status)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as e:
            why = f"{self._command.argv[0]} cannot report the server's state: {e}"[:_WHY_CHARS]
            if why != self._last_error:
                self._last_error = why
                self._gap.report(0.0, why)
        self._polled = polled

    async def _ended(self, now: ContainerStatus) -> ContainerStatus:
        if not self._command.past or not now.running:
            return now
        span = ("--since", f"{self._polled - EVERY_S:.3f}", "--until", f"{time.time():.3f}")
        try:
            return _docker_ends(await command_output((*self._command.past, *span), _LIMIT_S), now)
        except (OSError, ValueError, LookupError, TypeError):
            return now  # the end itself is known

    def _row(self, what: OrchestratorEvent, status: ContainerStatus) -> None:
        self._emit(
            {
                "row": "supervisor",
                "at_ns": time.monotonic_ns(),
                "replica": self._replica,
                "source": self._spec,
                "what": what,
                "running": status.running,
                "exit_code": status.exit_code,
                "signal": status.signal,
                "oom_killed": status.oom_killed,
                "restarts": status.restarts,
                "reason": status.describe_end() if what == "ended" else status.reason,
            }
        )
