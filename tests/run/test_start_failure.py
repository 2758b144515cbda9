from pathlib import Path

import pytest

from loadchaos.run.start_failure import SILENT_S, StuckStart, explained
from loadchaos.server.discovery.preflight import READ_THE_LOG
from tests.crash_logs import CRASHES, log_text

EXITED = f"the server did not become healthy: it exited with code 1{READ_THE_LOG}"


def line(log: Path) -> str:
    return explained(EXITED, log)


def test_failed_start_names_cause_id_and_remedy_in_one_line() -> None:
    said = line(CRASHES / "vllm/start-tensor-parallel-does-not-divide-0.32.log")
    assert said.startswith("the server did not become healthy: it exited with code 1. Cause: The model cannot be split")
    assert "(tp_heads_mismatch)" in said
    assert "must be divisible by tensor parallel size (8)" in said
    assert said.endswith("To do: Use another --tensor-parallel-size.")
    assert "\n" not in said


def test_failed_start_without_a_log_line_says_so(tmp_path: Path) -> None:
    (tmp_path / "server.log").touch()
    said = "the server did not become healthy: it exited with code 1 without a log line"
    assert line(tmp_path / "server.log") == said
    assert line(tmp_path / "none.log") == said


def test_program_that_is_missing_needs_no_log(tmp_path: Path) -> None:
    said = "the server did not become healthy: it could not be started: nosuch: No such file or directory"
    assert explained(said, tmp_path / "none.log") == said


def test_failed_start_without_a_cause_shows_the_last_line(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("loading\nbye\n")
    assert line(log) == "the server did not become healthy: it exited with code 1; its last log line is 'bye'"


@pytest.mark.parametrize("path", sorted(CRASHES.glob("*/start-*.log")), ids=lambda p: p.stem)
def test_failed_start_of_a_real_server_is_named_with_a_remedy(path: Path, tmp_path: Path) -> None:
    head, _, body = path.read_text().partition("\n\n")
    log = tmp_path / "server.log"
    log.write_text(body)
    expected = next(row for row in head.splitlines() if row.startswith("FAILURE: ")).split(" ")[1]
    said = line(log)
    assert f"({expected})" in said
    assert "To do: " in said
    assert "report it upstream" not in said
    assert len(said) < 900
    assert "\n" not in said


def stuck(log: Path, text: str) -> tuple[StuckStart, list[float]]:
    log.write_text(text)
    now = [0.0]
    return StuckStart(log, lambda: now[0]), now


FATAL = "AssertionError: Torch not compiled with CUDA enabled\n"


def test_stuck_start_is_told_after_a_fatal_error_and_silence(tmp_path: Path) -> None:
    watch, now = stuck(tmp_path / "server.log", FATAL)
    assert watch.reason() is None
    now[0] = SILENT_S - 1
    assert watch.reason() is None
    now[0] = SILENT_S + 1
    assert "did not exit" in str(watch.reason())


def test_stuck_start_waits_while_the_log_grows(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    watch, now = stuck(log, FATAL)
    for at_s in range(0, 200, 20):
        now[0] = at_s
        with log.open("a") as f:
            f.write("loading shard\n")
        assert watch.reason() is None


GOOD_STARTS = {p.stem: log_text(p) for p in sorted((CRASHES / "benign").glob("*start*.log"))}
SLOW_STARTS = {
    "no line": "",
    "loading": "loading weights\n",
    "own plugin": "Traceback (most recent call last):\nKeyError: 'own plugin'\n",
    **GOOD_STARTS,
}


@pytest.mark.parametrize("text", SLOW_STARTS.values(), ids=SLOW_STARTS)
def test_stuck_start_says_nothing_of_a_slow_or_good_start(text: str, tmp_path: Path) -> None:
    watch, now = stuck(tmp_path / "server.log", text)
    for at_s in range(0, 1200, 100):
        now[0] = at_s
        assert watch.reason() is None
