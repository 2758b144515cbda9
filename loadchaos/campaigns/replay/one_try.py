"""One try of a replay: a run whose load is a trace."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from loadchaos.analysis.failure import DEADLY_OR_HUNG
from loadchaos.analysis.verdict.run_health import PROOF
from loadchaos.campaigns.replay import bodies
from loadchaos.campaigns.replay.expected import ExpectedFailure
from loadchaos.campaigns.replay.servers import ServerChoice
from loadchaos.core import exit_codes
from loadchaos.core.errors import LoadchaosError, TargetError
from loadchaos.core.limits import BACK_WITHIN_S
from loadchaos.core.urls import CHAT_PATH
from loadchaos.load import registry
from loadchaos.load.endpoints import DEFAULT, known_endpoint_of_path
from loadchaos.profile import request_trace
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.profile.request_trace import RequestTrace
from loadchaos.run.finalize import Result
from loadchaos.run.held_server import HeldServer
from loadchaos.run.interrupts import Interrupts
from loadchaos.run.options import Options
from loadchaos.run.run import run_quietly


@dataclass(frozen=True)
class TryResult:
    """Result of one try. `reproduced`: None where it proved nothing (`why`). `other`: the server died of another
    failure. `sent` until the death or the end; of these `answered` were ok, and the clients of `left` left as planned.
    `died`: the server died or hung: it is of no use for another try.
    """

    reproduced: bool | None
    failure: str | None
    other: bool
    sent: int
    seconds: float
    folder: str
    fresh: bool
    why: str = ""
    died: bool = False
    answered: int = 0
    left: int = 0
    outcomes: str = ""


@dataclass(frozen=True)
class TryPlan:
    """Settings that all tries of a replay share. `base`: parts of the recorded profile that tries keep. `rounds`: how
    often the trace is sent in one try. `share`: counted tries share a launched server that survives; its caches are
    emptied between them.
    """

    server: ServerChoice
    expected: ExpectedFailure
    options: Options
    base: Mapping[str, object]
    rounds: int = 1
    name: str = "replay"
    share: bool = False
    interrupts: Interrupts = field(default_factory=Interrupts, compare=False)


def try_profile(trace: RequestTrace, file: Path, plan: TryPlan) -> Profile:
    attacks = [{**dict(a.attack), "at": f"{max(1, round(a.at_s * 1000))}ms"} for a in trace.attacks]
    return from_mapping(
        {
            "name": plan.name,
            "target": plan.server.target(),
            "traffic": [
                {"name": name, "payload": {"recorded": {"trace": str(file)}}, **_endpoint(trace, name)}
                for name in trace.traffic_names()
            ],
            "load": [{"replay": str(file), **({"rounds": plan.rounds} if plan.rounds > 1 else {})}],
            **({"attacks": attacks} if attacks else {}),
            **dict(plan.base),
        },
        registry.full_registry(),
    )


def _endpoint(trace: RequestTrace, traffic: str) -> Mapping[str, str]:
    """The path of recorded chat requests, where it is not that of OpenAI: the questions before a try go there, too."""
    path = next(send.path for send in trace.sends if send.traffic == traffic)
    return {"endpoint": path} if known_endpoint_of_path(path) == DEFAULT and path != CHAT_PATH else {}


async def run_try(trace: RequestTrace, plan: TryPlan, folder: Path, held: HeldServer | None = None) -> TryResult:
    """Run one try in its folder. Raises OptionError and TargetError for what would make every try fail."""
    begin_s = time.monotonic()
    file = request_trace.write(bodies.with_aborts(trace), folder)
    with contextlib.suppress(FileExistsError):
        (folder / request_trace.BODIES).symlink_to((trace.folder / request_trace.BODIES).resolve())
    profile = try_profile(trace, file, plan)
    lines: list[str] = []
    options = _with_server(plan, folder, held)
    result = await run_quietly(profile, options, plan.interrupts, lines.append)
    found = _result(result, plan.expected, time.monotonic() - begin_s, held is None or held.runs == 1)
    if not any(f.severity == "engine_death" and plan.expected.matches(f) for f in result.failures):
        _refuse_useless(result)  # it may die of the questions before the load: that is the failure, too
    return found


def _with_server(plan: TryPlan, folder: Path, held: HeldServer | None) -> Options:
    return replace(
        plan.options, target=plan.server.url, out=folder / "run", held=held, live=False, replay=True,
        wait_ready_s=plan.options.wait_ready_s or (BACK_WITHIN_S if plan.server.url else plan.server.ready_within_s),
    )  # fmt: skip


def _refuse_useless(result: Result) -> None:
    """Raise the error of a run that sent nothing. The next try would fail in the same way."""
    if result.exit_code in exit_codes.BEFORE_LOAD:
        reason = result.error or "the server cannot be tested: look at its log"
        raise TargetError(reason) if result.exit_code == exit_codes.TARGET_ERROR else LoadchaosError(reason)


def _result(result: Result, expected: ExpectedFailure, seconds: float, fresh: bool) -> TryResult:
    failures = [f for f in result.failures if not f.before_load]
    found = next((f for f in failures if expected.matches(f)), None)
    dead = next((f for f in failures if f.severity in DEADLY_OR_HUNG), None)
    why = "it was interrupted" if result.exit_code in exit_codes.BY_SIGNAL else "" if dead else _unproved(result)
    why = "" if found is not None else why
    shown = None if why else found or dead or next(iter(failures), None)
    return TryResult(
        reproduced=None if why else found is not None,
        failure=None if shown is None else shown.id,
        other=shown is not None and shown is not found and shown is dead,
        sent=result.verdict.sent if result.verdict is not None else 0,
        seconds=seconds,
        folder=str(result.folder.path),
        fresh=fresh,
        why=why,
        died=any(f.severity in DEADLY_OR_HUNG for f in result.failures),
        answered=result.outcomes.get("ok", 0),
        left=result.outcomes.get("aborted", 0),
        outcomes=", ".join(f"{n} {outcome}" for outcome, n in result.outcomes.items()),
    )


def _unproved(result: Result) -> str:
    """Say why a try without a failure proves nothing; "" if it does."""
    if result.verdict is None or result.exit_code == exit_codes.INTERNAL_ERROR:
        return result.error or "it was not judged"
    for check in result.verdict.checks:
        if check.name in (*PROOF, "load_delivered") and check.verdict != "pass":
            return f"{check.name}: {check.actual}"
    return ""
