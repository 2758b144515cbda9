"""Workloads of a hunt on one real server process: what the idle server answered is not asked again."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from loadchaos.campaigns.hunt.genes import GenePool
from loadchaos.campaigns.hunt.slot import QUESTIONS, ServerSlot, SlotSettings
from loadchaos.campaigns.hunt.workload import Workload
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.core.typed_json import to_json
from loadchaos.run.interrupts import Interrupts
from loadchaos.run.ports import free_port
from tests.campaigns.traces import embedded_command

_ANSWERED = re.compile(r'"POST /v1/chat/completions HTTP')
_LEARNED = 3 * 3 + 3 * 4 + 4 * 6 + 2 * 2
"""Three prompts alone, again twice, four times at once; four kinds six times; two pairs of a stream and a whole answer."""
WORKLOAD = Workload(
    {"users": 16, "requests": 24, "form": "steady", "questions": True},
    ({"tokens": 64, "output": 64, "weight": 1, "exact": True},),
)


async def workloads(folder: Path, pool: GenePool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Probe a server and run three workloads; the server is started again before the third."""
    port = free_port()
    argv = tuple(embedded_command(port=port))
    slot = ServerSlot(SlotSettings(argv, f"http://127.0.0.1:{port}", str(folder / "servers")), Interrupts())
    results = []
    try:
        probed = to_json(await slot.answer({"do": "probe"}))
        for n in (1, 2, 3):
            if n == 3:
                await slot.stop()
            order = {"do": "run", "profile": WORKLOAD.profile(pool), "seed": n, "folder": str(folder / "runs" / str(n))}
            results.append(to_json(await slot.answer(order)))
    finally:
        await slot.stop()
    return probed, results


def rows(run: Path) -> list[dict[str, Any]]:
    """Rows of a run."""
    return [{**row} for row in Reader(RunFolder(run)).new(final=True)]


@pytest.mark.slow  # a whole hunt
def test_idle_answers_are_learned_once_and_every_request_is_counted(tmp_path: Path, pool: GenePool) -> None:
    probed, (first, second, third) = asyncio.run(workloads(tmp_path, pool))
    assert probed["endpoints"] == ["completions", "responses", "messages"]
    assert all(r["proved"] and not r["failures"] for r in (first, second, third)), (first, second, third)
    assert [r["asked"].get("before", 0) for r in (first, second, third)] == [_LEARNED, 0, 1]
    assert all(r["asked"]["beside"] for r in (first, second, third)), "questions beside the load are asked each time"
    assert second["asked"]["discovery"] == 0
    assert third["asked"]["discovery"] == 1, "a new process has to answer its first request"
    sums = [r["requests"] + r["questions"] + r["asked"]["discovery"] for r in (first, second, third)]
    assert [r["questions"] for r in (first, second, third)] == [
        sum(r["asked"].get(name, 0) for name in QUESTIONS) for r in (first, second, third)
    ]
    logs = [log.read_text() for log in sorted((tmp_path / "servers").glob("*/server.log"))]
    answered = [len(_ANSWERED.findall(log)) for log in logs]
    left = [sum(row.get("error") == "not waited for" for row in rows(Path(r["run"]))) for r in (first, second, third)]
    sent = [probed["asked"]["generations"] + sum(sums[:2]), sums[2]]
    # A server process logs a request whose client has left only if it had answered by then.
    least = [sent[0] - sum(left[:2]), sent[1] - left[2]]
    assert all(low <= n <= high for low, n, high in zip(least, answered, sent, strict=True)), (least, answered, sent)
