"""`on_429: wait`: a request that is refused waits as it is told and is sent again; each try is in the record."""

import signal
import time
from email.utils import formatdate
from typing import Any

import pytest

from loadchaos.campaigns.replay.from_run import trace_of_run
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.outcome_rules import retry_after_s
from tests.run.conftest import Start
from tests.run.foreign_server import PAGES, ForeignServer, serving

LOAD = ("--rate", "20", "--num-prompts", "4", "--random-input-len", "40", "--random-output-len", "4")
WAIT = ("--on-429", "wait")
BUSY = {"error": {"message": "slow down", "code": 429}}


def limiting(first: int, **headers: str) -> ForeignServer:
    return ForeignServer(pages=PAGES, instead=lambda n, _s: (429, BUSY, headers) if n <= first else None)


def rows_of(run: Any, kind: str) -> list[dict[str, Any]]:
    return list(run.rows("requests-0.jsonl", row=kind))


@pytest.mark.parametrize(
    ("headers", "waits_s"),
    [({"Retry-After": "0.5"}, [0.5]), ({}, [1.0, 2.0]), ({"Retry-After": formatdate(time.time() - 9, usegmt=True)}, [0.1])],
    ids=["seconds", "none", "past"],
)  # fmt: skip
def test_a_refused_request_waits_and_is_sent_again(headers: dict[str, str], waits_s: list[float], start: Start) -> None:
    load = ("--users", "1", "--num-prompts", "3", *LOAD[4:])
    with serving(limiting(len(waits_s), **headers)) as server:
        run = start("--target", server.url, *load, *WAIT, profile=())
        assert run.ends() == 0, run.output
    begins, ends, n = rows_of(run, "begin"), rows_of(run, "end"), len(waits_s)
    first = ends[0]["id"]
    assert [r["id"] for r in begins[: n + 1]] == [first, *(f"{first}-t{i}" for i in range(1, n + 1))]
    assert [r["outcome"] for r in ends] == [*["shed"] * n, "ok", "ok", "ok"]
    assert [r.get("tries", 0) for r in ends] == [*range(n + 1), 0, 0]
    assert {r["due_ns"] for r in ends[: n + 1]} == {ends[0]["due_ns"]}, "latencies count from the first due time"
    for end, begin, wait_s in zip(ends, begins[1:], waits_s, strict=False):
        assert end["detail"]["sent_again_after_ns"] == wait_s * 1e9
        assert begin["at_ns"] - end["at_ns"] >= wait_s * 1e9
    verdict = run.verdict()
    waited = verdict["refusals"]["waited"]
    assert waited == {"waits": n, "mean_s": sum(waits_s) / n, "longest_s": max(waits_s), "requests": 1, "ok": 1}
    assert verdict["latency"]["random"]["ttft_s"]["max"] >= sum(waits_s)
    actual = {c["name"]: c["actual"] for c in (*verdict["checks"], *verdict["expectations"])}
    assert actual["load_delivered"] == "100.0% (3 of 3)"
    assert actual["ok_share"] == "100.00%, 3 of 3 requests that had to succeed"
    assert actual["shed"].startswith(f"0.0%, and {n} refusal")
    assert "sent again" in run.output
    sends = trace_of_run(RunFolder(run.folder)).sends
    assert [cause.request for send in sends[1 : n + 1] for cause in send.after] == [s.id for s in sends[:n]]


@pytest.mark.parametrize(
    ("options", "headers"),
    [
        ((), {"Retry-After": "0"}),
        ((*WAIT, "--set", "limits.total=5s"), {"Retry-After": "60"}),
        ((*WAIT, "-t", "4s"), {"Retry-After": "60"}),
    ],
    ids=["not asked for", "longer than the request may take", "longer than the load"],
)
def test_a_refused_request_is_not_sent_again(options: tuple[str, ...], headers: dict[str, str], start: Start) -> None:
    with serving(limiting(1, **headers)) as server:
        run = start("--target", server.url, *LOAD, *options, profile=())
        assert run.ends() == 1, run.output
    assert sorted(r["outcome"] for r in rows_of(run, "end")) == ["ok", "ok", "ok", "shed"]
    assert f"Retry-After: {headers['Retry-After']} s" in " ".join(run.output.split())


def test_a_stop_ends_a_wait_and_the_request_counts_as_aborted(start: Start) -> None:
    with serving(limiting(99, **{"Retry-After": "30"})) as server:
        run = start("--target", server.url, *LOAD, *WAIT, profile=())
        run.wait_for("requests-0.jsonl", 4, row="end")
        run.signal(signal.SIGINT)
        run.ends()
    ends = rows_of(run, "end")
    assert [r["outcome"] for r in ends] == [*["shed"] * 4, *["aborted"] * 4]
    assert {(r["sent_ns"], r["detail"]["why"]) for r in ends[4:]} == {(None, "stopped")}


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3.0), ("0.5", 0.5), ("Sat, 28 Nov 2026 10:00:07 GMT", 7.0), ("Sat, 28 Nov 2026 09:00:00 GMT", 0.0)]
    + [(bad, None) for bad in ("", "soon", "-1", "Sat, 99 Nov 2026 10:00:00 GMT", "1e9")],
)  # fmt: skip
def test_retry_after_has_seconds_or_a_date(value: str, seconds: float | None) -> None:
    assert retry_after_s(value, 1795860000.0) == seconds
