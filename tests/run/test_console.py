import os
import re
import signal
import time
import urllib.request

import pytest

from tests.run.conftest import Row, Start, StartSim


@pytest.mark.slow
@pytest.mark.parametrize("args", [(), ("--no-live",)], ids=["no terminal", "--no-live"])
def test_console_prints_a_plain_line_every_ten_seconds(start: Start, for_long: Row, args: tuple[str, ...]) -> None:
    run = start(*args, **for_long).loaded()
    run.wait(
        lambda: re.search(r"^\[load 1\d\.?\d* s\] .*healthy .* ok", run.output, re.MULTILINE), "a line after 10 s", 25
    )
    run.signal(signal.SIGINT)
    assert run.ends() == 130
    assert len(re.findall(r"^\[load ", run.output, re.MULTILINE)) >= 2


@pytest.mark.slow
def test_console_says_that_the_run_waits_for_the_server(start: Start, sim: StartSim, for_long: Row) -> None:
    server = sim()
    run = start("--target", server.url, **for_long, expect=["recovers_within <= 5m"]).loaded()
    server.process.kill()
    run.wait_for(row="gate", open=False)
    words = "waiting for the server, at most 5 min (Ctrl-C ends the run)"
    run.wait(lambda: words in run.output, "the words", 25)
    run.signal(signal.SIGINT)
    assert run.ends() == 130
    assert run.verdict()["verdict"] == "fail"


@pytest.mark.slow
def test_console_prints_the_metrics_url_and_duration_ends_the_load(start: Start, for_long: Row) -> None:
    run = start("--duration", "3s", **for_long).loaded(1)
    url = run.wait(lambda: re.search(r"^metrics: (http://127\.0\.0\.1:\d+/metrics)$", run.output, re.MULTILINE), "URL")[
        1
    ]
    with urllib.request.urlopen(url, timeout=5) as answer:
        assert b"loadchaos_" in answer.read()
    assert run.ends() == 3, "a load that was cut proves nothing"
    outcomes = run.verdict()["outcomes"]
    assert outcomes["ok"] > 0
    ends = run.rows("requests-*.jsonl", row="end")
    missed = sum(row["count"] for row in run.rows("requests-*.jsonl", row="missed"))
    assert sum(outcomes.values()) == len(ends) + missed


@pytest.mark.slow
def test_duration_counts_from_the_first_request_and_not_from_the_start_of_the_load_process(
    start: Start, for_long: Row
) -> None:
    """On a busy machine the process needs seconds to start, and a short load ended before it began."""
    run = start("--duration", "2s", **for_long)
    locust = run.wait_for(row="locust", what="start")[0]["pid"]
    os.kill(locust, signal.SIGSTOP)
    time.sleep(4)
    os.kill(locust, signal.SIGCONT)
    assert run.ends() == 3, run.output
    times = {row["what"]: row["at_ns"] / 1e9 for row in run.rows("requests-0.jsonl", row="load")}
    assert 1.5 < times["end"] - times["begin"] < 10
