"""A log that was named and never spoke proves nothing: it is likely another server's."""

from loadchaos.judge.incidents import Incident
from loadchaos.judge.runlog import RunLog
from loadchaos.judge.tally import Tally
from loadchaos.model import Terms


def verdict_of_the_log(*, lines: int) -> str:
    log = RunLog()
    log.feed({"row": "run", "what": "begin", "at_ns": 1, "server_logs": ["/var/log/vllm.log"]})
    for n in range(lines):
        log.feed({"row": "log", "at_ns": 2 + n, "file": "watch/logs/server.log", "line": n + 1, "text": "INFO"})
    episodes: list[Incident] = []
    checks = log.checks(Terms(profile="x"), Tally(), 0, episodes, 0)
    (found,) = [c for c in checks if c.name == "server_log"]
    return found.verdict


def test_a_log_that_speaks_is_heard() -> None:
    assert verdict_of_the_log(lines=3) == "pass"


def test_a_log_without_a_line_leaves_the_run_unknown() -> None:
    assert verdict_of_the_log(lines=0) == "unknown"


def test_without_a_log_nothing_is_said_of_it() -> None:
    log = RunLog()
    log.feed({"row": "run", "what": "begin", "at_ns": 1, "server_logs": []})
    assert not [c for c in log.checks(Terms(profile="x"), Tally(), 0, [], 0) if c.name == "server_log"]
