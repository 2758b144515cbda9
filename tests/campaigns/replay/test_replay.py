import asyncio
import json
from pathlib import Path

import pytest

from loadchaos.campaigns.replay.expected import ExpectedFailure
from loadchaos.campaigns.replay.one_try import TryPlan, run_try
from loadchaos.campaigns.replay.servers import ServerChoice, ServerPool
from loadchaos.campaigns.replay.session import ReplayRequest, ReplaySession
from loadchaos.core.exit_codes import PASS, UNKNOWN
from loadchaos.profile.request_trace import Cause, RequestTrace, TraceSend
from loadchaos.run.interrupts import Interrupts
from loadchaos.run.options import Options
from tests.campaigns.traces import embedded_choice, embedded_command, stored_chat, trace_of
from tests.warm_command import run_command

DEATH = ExpectedFailure("index_oob_indexkernel", severity="engine_death")


def near_max_server() -> ServerChoice:
    """The embedded server with a bug that prompts of more than 1048 tokens trigger."""
    return embedded_choice("near_max_oob", max_model_len=2048, num_speculative_tokens=0)


def healthy_server() -> str:
    return " ".join(embedded_command(max_model_len=4096, num_speculative_tokens=0, speed=4))


def near_max_run(home: Path) -> Path:
    """Folder of a run that dies of that bug."""
    run = run_command("run", "near_max_len", "--embedded", "--no-live", "--out", "runs", cwd=home, limit_s=240)
    assert run.returncode == 1, run.stderr
    return next((home / "runs").glob("near_max_len-*"))


def trace(folder: Path, *words: int) -> RequestTrace:
    after = [(), *((Cause(request=f"r{i}"),) for i in range(len(words) - 1))]
    sends = (TraceSend(id=f"r{i}", after=after[i], body=stored_chat(folder, n)) for i, n in enumerate(words))
    return trace_of(folder, sends)


@pytest.mark.parametrize(("tries", "code"), [(1, UNKNOWN), (99, PASS)])
async def test_replay_proves_no_cure_with_fewer_tries_than_it_needs(
    tries: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_failure(*_: object) -> list[bool]:
        return [False] * tries

    session = ReplaySession.__new__(ReplaySession)
    plan = TryPlan(near_max_server(), DEATH, Options(), {})
    session._request, session._interrupts, session._print_result = ReplayRequest(plan), Interrupts(), print
    session._tries, session._against = [], []
    monkeypatch.setattr(session, "_series", no_failure)
    assert await session._run_against(plan.server, [True, True, False]) == code


def test_try_reproduces_a_death_after_requests_in_order(tmp_path: Path) -> None:
    plan = TryPlan(near_max_server(), DEATH, Options(), {})
    result = asyncio.run(run_try(trace(tmp_path, 10, 20, 1500, 30), plan, tmp_path / "try"))
    assert (result.reproduced, result.failure) == (True, DEATH.id)
    assert result.sent in (3, 4)  # the last one may find a server that is already dead
    verdict = json.loads((Path(result.folder) / "verdict.json").read_text())
    assert verdict["failures"][0]["id"] == DEATH.id


@pytest.mark.slow
async def test_tries_share_a_server_until_it_dies(tmp_path: Path) -> None:
    plan = TryPlan(near_max_server(), DEATH, Options(), {})
    pool = ServerPool(plan.server, tmp_path / "servers")
    found = []
    for n, words in enumerate(((10, 20), (30,), (1500,), (10,))):
        held = await pool.healthy_server()
        tried = await run_try(trace(tmp_path, *words), plan, tmp_path / f"try-{n}", held)
        found.append((tried.reproduced, tried.fresh, tried.sent, pool.started))
    await pool.stop()
    assert found == [(False, True, 2, 1), (False, False, 1, 1), (True, False, 1, 1), (False, True, 1, 2)]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_replay_command_reproduces_a_run_proves_its_cure_and_resumes(tmp_path: Path) -> None:
    folder = near_max_run(tmp_path)
    found = run_command("replay", folder, "--out", "again", "--times", 2, cwd=tmp_path, limit_s=240)
    assert found.stdout == "REPRODUCED 2 of 2 (p = 1.00, 95 % CI 0.34 to 1.00)\n", found.stderr
    assert found.returncode == 0
    resumed = run_command("replay", folder, "--out", "again", "--times", 3, "--resume", cwd=tmp_path, limit_s=240)
    assert resumed.stdout.startswith("REPRODUCED 3 of 3"), resumed.stderr
    assert "try 3: index_oob_indexkernel" in resumed.stderr
    assert "try 2:" not in resumed.stderr
    against = ("--against", healthy_server(), "--share-server")
    fixed = run_command("replay", folder, "--out", "c", "--times", 2, *against, cwd=tmp_path, limit_s=240)
    assert "FIXED 0 of 3 (2 of 2 before; confidence 95 %)" in fixed.stdout, fixed.stderr
    assert fixed.returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_replay_command_replays_an_exported_trace_elsewhere(tmp_path: Path) -> None:
    folder = near_max_run(tmp_path)
    incident = next((folder / "incidents").glob("001-*"))
    exported = run_command("replay", incident, "--export", "trace", cwd=tmp_path, limit_s=240)
    assert exported.returncode == 0, exported.stderr
    launch = ("--launch", healthy_server())
    found = run_command("replay", "trace/trace.jsonl", *launch, "--times", 1, cwd=tmp_path, limit_s=240)
    assert found.stdout == "NOT REPRODUCED 0 of 1 (p < 0.95 at 95 %)\n", found.stderr
    assert found.returncode == 1
