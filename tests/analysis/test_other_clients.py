"""Requests of other clients during the load, from the server's counter of finished requests."""

from typing import Any

import pytest

from loadchaos.core.model import Terms
from tests.rows import S, answered, decisions, judged, metrics_row

REQUESTS = 100
BEGIN = {"row": "run", "at_ns": 9 * S, "what": "load_begin"}
END = {"row": "run", "at_ns": 25 * S, "what": "load_end"}


def load(*finished: tuple[float, float, str]) -> list[dict[str, Any]]:
    """A load of 100 requests in 10 s, with TTFT 0.5 s, and scrapes (second, requests finished, replica)."""
    rows: list[dict[str, Any]] = [BEGIN, END]
    for n in range(REQUESTS):
        rows += answered(10 * S + n * S // 10, n)
    rows += [metrics_row(at_s, requests_finished_total=n, replica=replica) for at_s, n, replica in finished]
    return sorted(rows, key=lambda row: row["at_ns"])


def verdict(*finished: tuple[float, float, str], known: bool = True) -> dict[str, Any]:
    expect = ["ttft_p50 <= 100ms", "ttft_p50 <= 2s", "goodput >= 90%", "ok_share >= 99%"]
    return judged(Terms("p", expect=expect, slo={"ttft": 0.1}, new_prompts=["text"] if known else []), load(*finished))


def test_broken_limit_of_latency_is_unknown_while_others_load_the_server() -> None:
    found = verdict((9.5, 1000, "server"), (24.5, 1160, "server"))
    assert decisions(found) == ["unknown", "pass", "unknown", "pass"]
    why = "other clients sent at least 60 requests during the load: the server finished 160, and this run sent 100"
    assert found["expectations"][0]["actual"].endswith(f", but {why}")
    assert why in found["notes"]


@pytest.mark.parametrize(
    ("finished", "known"),
    [
        ([(9.5, 1000, "server"), (24.5, 1109, "server")], True),  # nine more are few
        ([(8.5, 1000, "server"), (9.5, 1060, "server"), (24.5, 1160, "server")], True),  # before the load
        ([(9.5, 1000, "server"), (24.5, 1100, "server"), (26.5, 1160, "server")], True),  # after it
        ([(9.5, 1000, "server"), (24.5, 1160, "server")], False),  # one request may be counted as several
        ([(9.5, 1000, "server"), (15.0, 0, "server"), (24.5, 1160, "server")], True),  # restarted
        ([(9.5, 0, "prefill"), (9.6, 0, "decode"), (24.5, 100, "prefill"), (24.6, 100, "decode")], True),
    ],
)
def test_others_are_not_told_where_few_or_not_known(finished: list[tuple[float, float, str]], known: bool) -> None:
    found = verdict(*finished, known=known)
    assert decisions(found) == ["fail", "pass", "fail", "pass"]
    assert not [note for note in found["notes"] if "other clients" in note]


def test_questions_of_the_load_are_not_others() -> None:
    asked = {"row": "question", "at_ns": 12 * S, "sent_ns": 12 * S, "when": "load", "part": "questions", "status": 200}
    asked |= {"n": 1, "group": 1, "kind": "copy", "role": "", "model": "m", "prompt": "", "hash": "", "expected": ""}
    asked |= {"text": "a", "error": ""}
    rows = load((9.5, 1000, "server"), (24.5, 1120, "server")) + [{**asked, "n": n, "group": n} for n in range(5)]
    expect = ["ttft_p50 <= 100ms"]
    rows.sort(key=lambda row: row["at_ns"])
    assert decisions(judged(Terms("p", expect=expect, new_prompts=["text"]), rows)) == ["fail"]
