"""The two words of a log that decide between an end in order and a death, heard while the log is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadchaos.server.monitor.log_alarms import LogAlarms


def heard(rows: Any) -> list[tuple[str, str]]:
    return [(r["what"], r["text"]) for r in rows.of("heard")]


def append(path: Path, text: str) -> None:
    with path.open("a") as f:
        f.write(text)


def test_the_end_in_order_and_the_failure_are_heard_in_the_order_of_the_log(tmp_path: Path, rows: Any) -> None:
    log = tmp_path / "server.log"
    log.write_text("(APIServer pid=1) ERROR old: of another life\n")
    alarms = LogAlarms(log, "server", rows.append)
    alarms.poll()
    append(log, "INFO:     127.0.0.1 - GET /health\n(EngineCore pid=2) ERROR 11-20 [core.py:1] boom\nINFO:     Shut")
    alarms.poll()
    append(log, "ting down\n")
    alarms.poll()
    assert heard(rows) == [
        ("listening", ""),
        ("failing", "(EngineCore pid=2) ERROR 11-20 [core.py:1] boom"),
        ("ending", "INFO:     Shutting down"),
    ]
    alarms.close()


def test_a_log_that_is_not_there_yet_says_nothing_until_it_comes(tmp_path: Path, rows: Any) -> None:
    alarms = LogAlarms(tmp_path / "server.log", "server", rows.append)
    alarms.poll()
    assert rows == []
    append(tmp_path / "server.log", "")
    alarms.poll()
    append(tmp_path / "server.log", "(APIServer pid=1) INFO [launcher.py:110] Shutting down FastAPI HTTP server.\n")
    alarms.poll()
    assert [what for what, _ in heard(rows)] == ["listening", "ending"]
    alarms.close()


def test_an_end_in_order_that_complains_of_itself_afterwards_was_told_first(tmp_path: Path, rows: Any) -> None:
    log = tmp_path / "server.log"
    append(log, "")
    alarms = LogAlarms(log, "server", rows.append)
    alarms.poll()
    append(log, "(APIServer pid=1) INFO 11-21 [launcher.py:254] [shutdown] API server: shutdown triggered\n")  # 0.32
    append(
        log,
        "(APIServer pid=1) ERROR 11-21 [async_llm.py:906] AsyncLLM output_handler failed.\nINFO:     Shutting down\n",
    )
    alarms.poll()
    assert [what for what, _ in heard(rows)] == ["listening", "ending", "failing"]
    alarms.close()


def test_of_a_burst_only_the_end_is_looked_at(tmp_path: Path, rows: Any) -> None:
    log = tmp_path / "server.log"
    append(log, "")
    alarms = LogAlarms(log, "server", rows.append)
    alarms.poll()
    append(log, "Traceback (most recent call last)\n" + "INFO nothing of note\n" * 50_000 + "INFO:     Shutting down\n")
    alarms.poll()
    assert [what for what, _ in heard(rows)] == ["listening", "ending"]
    alarms.close()


def test_the_words_of_an_engine_that_is_gone_are_heard_behind_the_error_they_come_with(
    tmp_path: Path, rows: Any
) -> None:
    log = tmp_path / "server.log"
    append(log, "")
    alarms = LogAlarms(log, "server", rows.append)
    alarms.poll()
    said = "lmdeploy.pytorch.engine.mp_engine.zmq_rpc.RPCServerDeadError: PyTorch ZMQ engine process is not alive."
    append(log, f"2026-11-20 15:53:40,123 - lmdeploy - ERROR - boom\n{said}\n")
    alarms.poll()
    assert [what for what, _ in heard(rows)] == ["listening", "failing", "dead"]
    alarms.close()
