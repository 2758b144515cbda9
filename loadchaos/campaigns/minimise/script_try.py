"""Try of a candidate by the script that would be its reproducer."""

from __future__ import annotations

import time
from pathlib import Path

from loadchaos.analysis.classify import signature_file
from loadchaos.campaigns.minimise import script
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.validate import run_once
from loadchaos.campaigns.replay.expected import ExpectedFailure
from loadchaos.campaigns.replay.one_try import TryResult
from loadchaos.campaigns.replay.servers import ServerChoice
from loadchaos.run.held_server import HeldServer

_HANGS = ("hang", "startup")
"""Failures that a script cannot see: it knows a dead server, a failed request and an answer that breaks its schema."""
_OF_ANSWERS = "figures.toml"
"""File of the signatures of wrong answers."""


def can_try(expected: ExpectedFailure) -> bool:
    """True for a failure that a script can see."""
    if expected.id in script.CHECKS:
        return True
    signature = signature_file.load().get(expected.id)
    return expected.severity not in _HANGS and (signature is None or signature.file != _OF_ANSWERS)


def facts_of(server: ServerChoice, expected: ExpectedFailure, dialect: str) -> script.ScriptFacts:
    assert server.launch is not None
    return script.ScriptFacts(
        expected.title or expected.describe(),
        server.describe(),
        server.launch.url,
        dialect,
        expected.deadly,
        script.CHECKS.get(expected.id, ""),
    )


async def try_script(
    candidate: Reduction, facts: script.ScriptFacts, expected: ExpectedFailure, folder: Path, held: HeldServer,
    limit_s: float,
) -> TryResult:  # fmt: skip
    """Write the script of a candidate and run it once against a server. `folder` exists and is empty."""
    begin_s, fresh = time.monotonic(), held.runs == 0
    held.runs += 1
    found = await run_once(script.write(candidate, facts, folder), held, expected, limit_s)
    (folder / "repro.txt").write_text(found.output)
    seconds, reproduced = time.monotonic() - begin_s, found.line is not None
    died = not held.alive or found.code is None or (facts.deadly and found.code == 1)
    failure = expected.id if reproduced else found.other
    other = died and not reproduced
    return TryResult(reproduced, failure, other, candidate.requests, seconds, str(folder), fresh, died=died)
