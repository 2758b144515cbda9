import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadchaos.server.monitor.log_alarms import LogAlarms
from tests.rows import EmittedRows
from tests.server.monitor.conftest import append


def alarms_of(rows: EmittedRows) -> list[tuple[str, str]]:
    return [(r["what"], r["text"]) for r in rows.of("heard")]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


@pytest.fixture
def alarms(log: Path, rows: EmittedRows) -> Iterator[LogAlarms]:
    """Alarms that have looked at the log once."""
    log.write_text("(APIServer pid=1) ERROR old: of another life\n")
    found = LogAlarms(log, "server", rows.append)
    found.poll()
    yield found
    found.close()


def test_log_alarms_keep_the_order_of_the_log(log: Path, alarms: LogAlarms, rows: EmittedRows) -> None:
    append(log, "INFO:     127.0.0.1 - GET /health\n(EngineCore pid=2) ERROR 11-20 [core.py:1] boom\nINFO:     Shut")
    alarms.poll()
    append(log, "ting down\n")
    alarms.poll()
    assert alarms_of(rows) == [
        ("listening", ""),
        ("failing", "(EngineCore pid=2) ERROR 11-20 [core.py:1] boom"),
        ("ending", "INFO:     Shutting down"),
    ]


def test_log_alarms_wait_for_a_missing_log(log: Path, rows: EmittedRows) -> None:
    alarms = LogAlarms(log, "server", rows.append)
    alarms.poll()
    assert rows == []
    append(log, "")
    alarms.poll()
    append(log, "(APIServer pid=1) INFO [launcher.py:110] Shutting down FastAPI HTTP server.\n")
    alarms.poll()
    assert [what for what, _ in alarms_of(rows)] == ["listening", "ending"]
    alarms.close()


DEAD_ENGINE = "lmdeploy.pytorch.engine.mp_engine.zmq_rpc.RPCServerDeadError: PyTorch ZMQ engine process is not alive."
SHUTDOWN_0_32 = "(APIServer pid=1) INFO 11-21 [launcher.py:254] [shutdown] API server: shutdown triggered\n"
FAILED_OUTPUT = "(APIServer pid=1) ERROR 11-21 [async_llm.py:906] AsyncLLM output_handler failed.\n"
QUOTED = "DEBUG 11-21 [logger.py:39] Request r-1 details: prompt: 'EngineDeadError: CRITICAL', token_ids: None\n"


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        (SHUTDOWN_0_32 + FAILED_OUTPUT + "INFO:     Shutting down\n", ["ending", "failing"]),
        (
            "Traceback (most recent call last)\n" + "INFO nothing of note\n" * 50_000 + "INFO:     Shutting down\n",
            ["ending"],
        ),
        (f"2026-11-20 15:53:40,123 - lmdeploy - ERROR - boom\n{DEAD_ENGINE}\n", ["failing", "dead"]),
        (QUOTED + "(EngineCore pid=2) ERROR 11-20 [core.py:1] boom\n", ["failing"]),
    ],
    ids=["shutdown before its errors", "end of a burst", "death behind an error", "quoted prompt"],
)
def test_log_alarms_of_a_burst(log: Path, alarms: LogAlarms, rows: EmittedRows, text: str, heard: list[str]) -> None:
    append(log, text)
    alarms.poll()
    assert [what for what, _ in alarms_of(rows)] == ["listening", *heard]


STAMP = "2026-04-02T11:15:40.123456789Z"
DEATH = "(APIServer pid=1) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."


def docker(text: str) -> str:
    return json.dumps({"log": text, "stream": "stderr", "time": STAMP}, separators=(",", ":"))


CUT = DEATH.index("DeadError")
FORMS = {
    "cri": [f"{STAMP} stderr P {DEATH[:CUT]}", f"{STAMP} stderr F {DEATH[CUT:]}"],
    "cri, the end is not there yet": [f"{STAMP} stderr P {DEATH[:CUT]}", f"{STAMP} stderr P {DEATH[CUT:]}"],
    "docker": [docker("start\n"), docker(DEATH[:CUT]), docker(DEATH[CUT:] + "\n")],
    "journald": [json.dumps({"MESSAGE": list(f"\x1b[31m{DEATH}".encode()), "_PID": "1"})],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("at_once", [True, False])
def test_log_alarms_find_engine_death_in_a_cut_line(
    log: Path, alarms: LogAlarms, rows: EmittedRows, form: str, at_once: bool
) -> None:
    for line in FORMS[form]:
        append(log, line + "\n")
        if not at_once:
            alarms.poll()
    alarms.poll()
    assert [what for what, _ in alarms_of(rows)] == ["listening", "dead"]


def test_log_alarms_leave_out_the_cut_end_of_a_line_that_quotes_a_prompt(
    log: Path, alarms: LogAlarms, rows: EmittedRows
) -> None:
    for part in ("P DEBUG 11-21 [logger.py:39] Request r-1 details: prompt: 'a", "P EngineDeadError", "F ', ids: None"):
        append(log, f"{STAMP} stderr {part}\n")
        alarms.poll()
    assert [what for what, _ in alarms_of(rows)] == ["listening"]
