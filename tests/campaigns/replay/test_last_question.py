import asyncio
import json
from pathlib import Path

import pytest

from loadchaos.campaigns.replay.expected import ExpectedFailure
from loadchaos.campaigns.replay.one_try import TryPlan, run_try
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.profile.request_trace import RequestTrace, TraceSend
from loadchaos.run.options import Options
from tests.campaigns.traces import embedded_choice, stored_chat, trace_of

HANG = ExpectedFailure("alive_but_hung", severity="hang")
PLACES = 20


def leaving_clients(folder: Path, n: int) -> RequestTrace:
    name = stored_chat(folder)
    sends = [
        TraceSend(id=f"r{i}", at_s=i / 50, body=name, behaviour={"abort": {"before": "body"}}, expect=("ok", "aborted"))
        for i in range(n)
    ]
    return trace_of(folder, sends)


@pytest.mark.parametrize(("clients", "hangs"), [(PLACES, True), (PLACES // 2, False)])
def test_server_that_answers_nothing_after_the_load_hangs(clients: int, hangs: bool, tmp_path: Path) -> None:
    plan = TryPlan(embedded_choice("connection_slot_leak"), HANG, Options(), {})
    result = asyncio.run(run_try(leaving_clients(tmp_path, clients), plan, tmp_path / "t"))
    rows = [row for row in Reader(RunFolder(Path(result.folder))).new(final=True) if row["row"] == "last_question"]
    assert [row.get("status") for row in rows] == ([None] if hangs else [None, 200])
    assert result.reproduced is hangs
    verdict = json.loads((Path(result.folder) / "verdict.json").read_text())
    assert [f["id"] for f in verdict["failures"]] == (["alive_but_hung"] if hangs else [])
