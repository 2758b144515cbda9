import asyncio
from pathlib import Path
from typing import Any

import pytest

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.campaigns.replay import one_try
from loadchaos.campaigns.replay.expected import ExpectedFailure
from loadchaos.campaigns.replay.one_try import TryPlan, run_try
from loadchaos.campaigns.replay.servers import from_launch
from loadchaos.core import exit_codes
from loadchaos.core.body_hash import store_body
from loadchaos.core.errors import TargetError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.profile.request_trace import TraceSend
from loadchaos.run.finalize import Result
from loadchaos.run.options import Options
from tests.campaigns.traces import trace_of


def tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **failure: Any) -> one_try.TryResult:
    """Result of a try whose server failed before the load."""

    async def run_quietly(*_: object) -> Result:
        verdict = {"failures": [failure], "checks": [{"name": "run", "verdict": "fail", "actual": "no load"}]}
        return Result(
            exit_codes.TARGET_ERROR, Verdict.from_json(verdict), RunFolder(tmp_path), "its first request failed"
        )

    monkeypatch.setattr(one_try, "run_quietly", run_quietly)
    send = TraceSend(id="r0", body=store_body(tmp_path / "bodies", b"{}"))
    trace = trace_of(tmp_path, [send])
    plan = TryPlan(
        from_launch("serve --port 1"), ExpectedFailure("x", any_death=failure.pop("any", False)), Options(), {}
    )
    return asyncio.run(run_try(trace, plan, tmp_path / "try"))


def test_try_whose_server_dies_of_the_questions_before_the_load_reproduces_that_death(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = tried(monkeypatch, tmp_path, id="x", severity="engine_death")
    assert (found.reproduced, found.died) == (True, True)


@pytest.mark.parametrize("failure", [{"id": "y", "severity": "engine_death"}, {"severity": "startup", "any": True}])
def test_try_whose_server_cannot_be_tested_for_another_reason_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: dict[str, Any]
) -> None:
    with pytest.raises(TargetError, match="its first request failed"):
        tried(monkeypatch, tmp_path, **failure)
