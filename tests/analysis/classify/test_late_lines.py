"""Lines of before a run that a log shipper appends late."""

import pytest

from loadchaos.analysis.classify.late_lines import LateLines
from tests.analysis.conftest import History

BEGIN_S = 1_795_810_000.0  # 2026-11-27 20:06:40 UTC
DEAD = "EngineCore encountered a fatal error."


@pytest.mark.parametrize(
    "line",
    [
        f"2026-11-25T20:12:57.466972Z {DEAD}",
        f"2026-11-25T21:12:57+02:00 {DEAD}",
        f"2026-11-25T20:12:57.466972123Z stderr F {DEAD}",
        f"[2026-11-25 20:12:57,466] {DEAD}",
        f"Nov 25 20:12:57 gpu-node-3 vllm[400]: {DEAD}",
        f"Dec 31 20:12:57 gpu-node-3 vllm[400]: {DEAD}",
        f"1795637577472 {DEAD}",
        f"1795637577.472 {DEAD}",
        f"(EngineCore_DP0 pid=411) ERROR 11-25 20:12:57 [core.py:710] {DEAD}",
        f'{{"log":"{DEAD}","stream":"stderr","time":"2026-11-25T20:12:57.4Z"}}',
        f"vllm-1  | 2026-11-25T20:12:57Z {DEAD}",
        f"INFO 2026-11-25 20:12:57,466 {DEAD}",
        f"time=2026-11-25T20:12:57Z level=ERROR msg={DEAD}",
        f'{{"ts":1795637577472,"log":"{DEAD}"}}',
        f'{{"timeUnixNano": "1795637577472000000", "body": "{DEAD}"}}',
    ],
)
def test_a_line_of_before_the_run_is_late(line: str) -> None:
    late = LateLines()
    assert late.is_late("a", line, BEGIN_S, BEGIN_S + 60)
    assert late.is_late("a", "  File one.py, line 1, in a traceback", BEGIN_S, BEGIN_S + 60)
    assert not late.is_late("b", "  File one.py, line 1, in a traceback", BEGIN_S, BEGIN_S + 60)


@pytest.mark.parametrize(
    "line",
    [
        f"2026-11-27T20:07:00Z {DEAD}",
        f"2026-11-27T22:07:00+02:00 {DEAD}",
        f"2026-11-27T15:06:40Z in another zone, though it says Z: {DEAD}",
        f"[2026-11-27 09:07:00,466] in another zone: {DEAD}",
        f"Nov 27 12:07:00 gpu-node-3 vllm[400]: {DEAD}",
        f"Nov 28 10:07:00 gpu-node-3 vllm[400]: {DEAD}",
        f"ERROR 11-27 20:07:00 [core.py:710] {DEAD}",
        f"1795810010 {DEAD}",
        f'{{"ts":1795810010472,"log":"{DEAD}"}}',
        '{"log":"created 2024-01-01T00:00:00Z","time":"2026-11-27T20:07:00Z"}',
        f"ERROR 13-45 20:07:00 [core.py:710] {DEAD}",
        f"ValueError: time data '2024-01-01 10:00:00' does not match: {DEAD}",
        f"    row 2024-01-01 10:00:00 of the file: {DEAD}",
        f"request 1795637577472 failed: {DEAD}",
        f"1073741824 bytes are not free: {DEAD}",
        f"0001-01-01T00:00:00+05:00 {DEAD}",
        f"2000-01-01T00:00:07Z a clock that was never set: {DEAD}",
    ],
)
def test_a_line_of_the_run_is_not_late(line: str) -> None:
    assert not LateLines().is_late("a", line, BEGIN_S, BEGIN_S + 60)


def crash(history: History, stamp: str) -> History:
    """Requests fail while a log shipper appends the lines of a crash."""
    history.begin().work(5)
    ids = history.send(4)
    for line, text in enumerate(
        ("EngineCore encountered a fatal error.", "torch.OutOfMemoryError: CUDA out of memory.")
    ):
        written = f"{stamp} ERROR {text}"
        history.add("log", source="server", file="watch/logs/server.log", line=line, text=written)
    history.answer(ids, "http_error", status=500, error="boom")
    return history.work(15).end()


@pytest.mark.parametrize(("stamp", "named"), [("2026-09-19T10:00:00Z", False), ("2026-09-21T14:13:30Z", True)])
def test_late_lines_name_no_failure(history: History, stamp: str, named: bool) -> None:
    verdict = crash(history, stamp).verdict()
    assert any(f["id"].startswith("cuda_oom") for f in verdict["failures"]) == named
    assert any("2 lines came late" in note for note in verdict["notes"]) != named
