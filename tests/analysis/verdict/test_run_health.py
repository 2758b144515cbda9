"""RunHealth: server logs without lines, requests adjusted to the server."""

from loadchaos.analysis.incidents.incident import Incident
from loadchaos.analysis.request_stats import RequestStats
from loadchaos.analysis.verdict.run_health import RunHealth
from loadchaos.core.model import Terms


def verdict_of_the_log(*, lines: int) -> str:
    log = RunHealth()
    log.feed({"row": "run", "what": "begin", "at_ns": 1, "server_logs": ["/var/log/vllm.log"]})
    for n in range(lines):
        log.feed({"row": "log", "at_ns": 2 + n, "file": "watch/logs/server.log", "line": n + 1, "text": "INFO"})
    episodes: list[Incident] = []
    checks = log.checks(Terms(profile="x"), RequestStats(), 0, episodes, 0)
    (found,) = [c for c in checks if c.name == "server_log"]
    return found.verdict


def test_server_log_check_passes_with_lines() -> None:
    assert verdict_of_the_log(lines=3) == "pass"


def test_server_log_check_without_lines_is_unknown() -> None:
    assert verdict_of_the_log(lines=0) == "unknown"


def test_server_log_check_is_left_out_without_a_log() -> None:
    log = RunHealth()
    log.feed({"row": "run", "what": "begin", "at_ns": 1, "server_logs": []})
    assert not [c for c in log.checks(Terms(profile="x"), RequestStats(), 0, [], 0) if c.name == "server_log"]


def test_fitted_check_has_its_count() -> None:
    log = RunHealth()
    for n in range(3):
        fitted = f"{n + 1} images instead of {n + 4}: the server accepts no more in one prompt" if n else ""
        log.feed({"row": "begin", "at_ns": n, "traffic": "images", "fitted": fitted})
    (check,) = [c for c in log.checks(Terms(profile="x"), RequestStats(), 0, [], 0) if c.name.startswith("fitted")]
    assert check.name == "fitted images"
    assert check.actual == "2 of 3: N images instead of N: the server accepts no more in one prompt"


def test_fitted_check_has_the_numbers_when_they_are_equal() -> None:
    log = RunHealth()
    for n in range(3):
        fitted = "9 prompt tokens instead of 5: the chat template needs that many"
        log.feed({"row": "begin", "at_ns": n, "traffic": "short", "fitted": fitted})
    (check,) = [c for c in log.checks(Terms(profile="x"), RequestStats(), 0, [], 0) if c.name.startswith("fitted")]
    assert check.actual == "3 of 3: 9 prompt tokens instead of 5: the chat template needs that many"
