import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.run.conftest import Start, StartSim
from tests.run.foreign_server import ForeignServer, serving
from tests.run.test_launch_only import NO_MEMORY
from tests.waiting import until

OUT_OF_BOUNDS = ["--defect", "near_max_oob", "--flag", "num_speculative_tokens=0"]


def python(code: str) -> list[str]:
    return [sys.executable, "-u", "-c", code]


def launching(command: list[str], port: int, **more: Any) -> dict[str, Any]:
    return {"launch": {"command": command, "url": f"http://127.0.0.1:{port}", "ready_within": "30s", **more}}


def served(port: int, *flags: str) -> list[str]:
    return [sys.executable, "-m", "loadchaos.simulator.server", "--port", str(port), *flags]


@pytest.mark.slow
def test_launched_server_is_started_tested_and_stopped(start: Start, unused_port: int) -> None:
    run = start(target=launching(served(unused_port), unused_port, env={"VLLM_LOGGING_LEVEL": "INFO"}))
    run.loaded()
    assert run.ends() == 0
    verdict = run.verdict()
    assert (verdict["verdict"], verdict["target"]["kind"]) == ("pass", "launched")
    assert verdict["outcomes"] == {"ok": 20}
    assert verdict["failures"] == []
    run.all_gone()


def test_launched_server_that_fails_to_start_is_named_from_its_log(start: Start, unused_port: int) -> None:
    command = python(f"import time; print({NO_MEMORY!r}); time.sleep(0.5); raise SystemExit(1)")
    run = start(target=launching(command, unused_port))
    assert run.ends() == 4
    verdict = run.verdict()
    assert [(f["id"], f["severity"]) for f in verdict["failures"]] == [("gpu_budget_startup", "startup")]
    assert "exited with code 1" in run.output
    assert "server.log" in run.output
    assert "gpu_budget_startup" in run.output


def test_launched_server_that_loses_its_port_to_another_is_not_mixed_up_with_it(
    start: Start, unused_port: int, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    code = f"open({str(started)!r}, 'w'); import time; time.sleep(3); raise SystemExit('[Errno 98] in use')"
    run = start(target=launching(python(code), unused_port))
    until(started.exists, "the launched command")
    with serving(ForeignServer(pages={"/health": (200, ""), "/v1/models": (200, '{"data": []}')}), unused_port):
        assert run.ends() == 4
    assert f"process {os.getpid()} (" in run.output
    assert "which the launch command did not start, answers at" in run.output
    assert "the launched server has ended: it exited with code 1" in run.output
    assert run.verdict()["verdict"] != "pass"


@pytest.mark.slow
def test_server_outside_the_launched_process_is_tested_with_a_note(start: Start, unused_port: int) -> None:
    code = f"import subprocess, time; subprocess.Popen({served(unused_port)!r}, start_new_session=True)"
    intermediate = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {code!r}]); time.sleep(600)"
    run = start(target=launching(python(intermediate), unused_port))
    assert run.ends() == 0, run.output
    assert "it is the server under test" in run.output


@pytest.mark.slow
def test_external_server_that_dies_of_the_first_request_is_named(start: Start, sim: StartSim) -> None:
    server = sim(*OUT_OF_BOUNDS, "--flag", "max_model_len=900")
    run = start("--target", server.url, "--server-log", str(server.log))
    assert run.ends() == 4
    assert "died before the load, during the first requests" in run.output
    assert [f["id"] for f in run.verdict()["failures"]] == ["index_oob_indexkernel"]


@pytest.mark.slow  # the rule itself: analysis/incidents/test_queue_order.py
def test_requests_that_an_overloaded_server_makes_wait_are_no_bug_of_it(start: Start) -> None:
    flags = {"num_gpu_blocks": 200, "num_speculative_tokens": 0, "enable_prefix_caching": False}
    run = start(
        target={"embedded": {"dialect": "vllm", "era": "0.18", "flags": flags}},
        traffic=[{"name": "text", "payload": {"text": {"tokens": "2500"}}, "output": {"exact": 60}}],
        load=[{"burst": 30}],
        limits={"first_byte": "5s", "between_bytes": "5s", "total": "60s"},
    )
    assert run.ends() == 1
    assert [(f["id"], f["attribution"]) for f in run.verdict()["failures"]] == [("queue_wait", "load")]
    assert "raise limits.first_byte" in " ".join(run.output.split())
