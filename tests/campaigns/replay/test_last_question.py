import asyncio
import json
from pathlib import Path

import orjson
import pytest

from loadchaos.campaigns.replay.expected import ExpectedFailure
from loadchaos.campaigns.replay.one_try import TryPlan, run_try
from loadchaos.campaigns.replay.servers import ServerChoice
from loadchaos.core.body_hash import store_body
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.profile.request_trace import RequestTrace, TraceHeader, TraceSend
from loadchaos.run.options import Options
from loadchaos.run.ports import free_port
from loadchaos.server.process.launcher import CommandLine
from loadchaos.simulator.command import command
from loadchaos.simulator.options import SimulatorSpec

HANG = ExpectedFailure("alive_but_hung", severity="hang")
PLACES = 20


def leaving_clients(folder: Path, n: int) -> RequestTrace:
    body = {"model": "other", "messages": [{"role": "user", "content": "time"}], "max_tokens": 2, "stream": True}
    name = store_body(folder / "bodies", orjson.dumps(body))
    sends = [
        TraceSend(id=f"r{i}", at_s=i / 50, body=name, behaviour={"abort": {"before": "body"}}, expect=("ok", "aborted"))
        for i in range(n)
    ]
    return RequestTrace(TraceHeader(event="trace", version=1, model="other"), tuple(sends), folder=folder)


@pytest.mark.parametrize(("clients", "hangs"), [(PLACES, True), (PLACES // 2, False)])
def test_server_that_answers_nothing_after_the_load_hangs(clients: int, hangs: bool, tmp_path: Path) -> None:
    port = free_port()
    argv = command(SimulatorSpec("vllm", "0.18", ("connection_slot_leak",), {}), port)
    server = ServerChoice(CommandLine(tuple(argv), {}, f"http://127.0.0.1:{port}"), ready_within_s=60.0)
    result = asyncio.run(
        run_try(leaving_clients(tmp_path, clients), TryPlan(server, HANG, Options(), {}), tmp_path / "t")
    )
    rows = [row for row in Reader(RunFolder(Path(result.folder))).new(final=True) if row["row"] == "last_question"]
    assert [row.get("status") for row in rows] == ([None] if hangs else [None, 200])
    assert result.reproduced is hangs
    verdict = json.loads((Path(result.folder) / "verdict.json").read_text())
    assert [f["id"] for f in verdict["failures"]] == (["alive_but_hung"] if hangs else [])
