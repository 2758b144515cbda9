import subprocess
import sys

CODE = """
from locust.env import Environment
from loadchaos.load.worker import locust_stats

S = 1_000_000_000
environment = Environment()
environment.events.request.add_listener(lambda response_time, **_: print(response_time))
row = {
    "traffic": "text", "outcome": "ok", "due_ns": 10 * S, "sent_ns": 13 * S, "first_byte_ns": 14 * S,
    "first_token_ns": 16 * S, "last_byte_ns": 20 * S, "at_ns": 21 * S, "bytes_in": 0, "itl_hist": {},
}
locust_stats.report(environment, row, tokens=True)
print(environment.stats.get("text", "TTFT").total_response_time)

MS = 1_000_000
ROWS = [
    {
        "traffic": "ab"[(n - 1) % 2], "outcome": "ok" if n % 9 else "reset", "due_ns": 0, "first_token_ns": None,
        "last_byte_ns": n * n * MS, "at_ns": (n * n + 1) * MS, "bytes_in": n,
    }
    for n in range(1, 40)
]
KEYS = (
    "num_requests", "num_failures", "total_response_time", "min_response_time", "max_response_time", "response_times",
    "total_content_length",
)


def entries(counted: bool, listener: bool) -> list:
    environment = Environment()
    environment.create_local_runner()
    seen = []
    if listener:
        environment.events.request.add_listener(lambda response_time, **_: seen.append(response_time))

    def at_once(row):
        locust_stats.report(environment, row, tokens=False)

    batch = locust_stats.CountedRequests(environment, at_once)
    for n, row in enumerate(ROWS):
        (batch.report if counted else at_once)(row)
        if n == 20:
            batch.flush()
    early = len(seen)
    batch.flush()
    batch.flush()
    stats = environment.stats
    found = [[getattr(e, k) for k in KEYS] for e in (stats.total, stats.get("a", "POST"), stats.get("b", "POST"))]
    per_s = [sum(e.num_reqs_per_sec.values()) for e in (stats.total, stats.get("a", "POST"))]
    return [found, per_s, sorted(e.to_dict()["occurrences"] for e in stats.errors.values()), early]


print(entries(True, False)[:3] == entries(False, False)[:3], entries(True, True) == entries(False, True))
print(entries(True, False)[0][0][0], entries(True, True)[3])
"""


def test_locust_stats_count_from_due_and_those_of_counted_requests_are_those_of_single_ones() -> None:
    """Due at 10 s, sent at 13 s, first byte at 14 s, first token at 16 s, done at 20 s.

    With another listener of Locust's event, each request is reported at once. Importing Locust patches the process, so it
    has one of its own.
    """
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["10000.0", "6000.0", "True", "True", "39", "39"]
