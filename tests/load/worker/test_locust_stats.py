"""Locust's statistics: times count from due."""

from __future__ import annotations

import subprocess
import sys

CODE = """
from locust.env import Environment
from loadchaos.core.model import Reply
from loadchaos.load.worker import locust_stats

S = 1_000_000_000
environment = Environment()
environment.events.request.add_listener(lambda response_time, **_: print(response_time))
reply = Reply("ok", sent_ns=13 * S, first_byte_ns=14 * S, first_token_ns=16 * S, last_byte_ns=20 * S, end_ns=21 * S)
locust_stats.report(environment, "text", reply, 10 * S, tokens=True)
print(environment.stats.get("text", "TTFT").total_response_time)
"""


def test_locust_stats_count_from_due() -> None:
    """Due at 10 s, sent at 13 s, first byte at 14 s, first token at 16 s, done at 20 s.

    Importing Locust patches the process, so it has one of its own.
    """
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["10000.0", "6000.0"]
