"""The dispatcher in a real Locust child: rows, phases, stops, failures."""

import os
import signal
import socket
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.load.worker.conftest import Child, Server
from tests.waiting import until

BEGIN_KEYS = {
    "row", "id", "step", "phase", "round", "traffic", "at_ns", "due_ns", "conn", "reused", "len", "hash", "tokens",
    "images", "image_tokens", "max_tokens", "behaviour", "expect", "edge", "seed",
}  # fmt: skip
END_KEYS = {
    "row", "id", "step", "phase", "traffic", "at_ns", "due_ns", "sent_ns", "outcome", "status", "first_byte_ns",
    "first_token_ns", "first_answer_ns", "last_byte_ns", "chunks", "itl_hist", "largest_gap_ns", "finish_reason",
    "prompt_tokens", "completion_tokens", "cached_tokens", "request_id", "error", "error_code", "detail", "evidence",
    "bytes_in", "bytes_out", "expect", "planned_tokens", "length_mismatch", "images", "image_tokens", "edge", "exact_tokens",
    "most_tokens",
}  # fmt: skip
BEAT_KEYS = {
    "row", "at_ns", "in_flight", "tokens", "bytes", "oldest_silence_ns", "lag_ns", "users", "begun", "ended", "cpu_share",
    "aborted", "backed_off", "images_in_prefill", "waiting_tokens", "stream_silences_ns",
}  # fmt: skip
ABORTS = {
    "name": "aborts", "weight": 1, "payload": {"text": {"tokens": 64}},
    "behaviour": {"abort": {"share": "100%", "at_token": "2..3"}},
}  # fmt: skip
TEXT = {"name": "text", "weight": 3, "payload": {"text": {"tokens": 64}}}


def outcomes(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(row["outcome"] for row in rows if row["row"] == "end")


def test_dispatcher_rounds_write_a_begin_and_an_end_for_every_request(server: Server, child: Child) -> None:
    server.tokens, server.gap_s = 20, 0.005
    child.plan(server, [{"users": 6, "requests": 20, "rounds": 2}], traffic=[TEXT, ABORTS])
    assert child.run() == 0, child.log()
    rows = child.rows()
    begins, ends = child.rows("begin"), child.rows("end")
    assert [rows[0]["row"], rows[1]["what"], rows[-1]["row"], rows[-1]["why"]] == ["header", "begin", "load", "done"]
    assert sorted(r["id"] for r in begins) == sorted(r["id"] for r in ends)
    assert len({r["id"] for r in begins}) == 40
    assert {r["step"] for r in begins} == set(range(40))
    assert all(set(r) >= BEGIN_KEYS for r in begins)
    assert all(set(r) - {"asked_tokens", "content", "signs"} == END_KEYS for r in ends)
    by_traffic = {(r["traffic"], r["outcome"]) for r in ends}
    assert by_traffic == {("text", "ok"), ("aborts", "aborted")}
    first_of_second = min(r["at_ns"] for r in begins if r["round"] == 1)
    assert first_of_second > max(r["at_ns"] for r in ends if r["step"] < 20), "the rounds are drained in between"
    assert max(in_flight(rows)) == 6
    assert len({r["conn"] for r in begins if r["reused"]}) >= 1
    assert [(r["round"], r["what"]) for r in child.rows("phase")] == [
        (0, "begin"),
        (0, "end"),
        (1, "begin"),
        (1, "end"),
    ]
    assert all(set(r) == BEAT_KEYS for r in child.rows("heartbeat"))
    assert child.rows("heartbeat")[-1]["ended"] == 40
    usage = [r for r in ends if r["outcome"] == "ok"]
    assert all((r["prompt_tokens"], r["completion_tokens"], r["chunks"]) == (64, 20, 20) for r in usage)


def test_dispatcher_writes_a_row_before_its_request_is_sent(server: Server, child: Child) -> None:
    """Also when many begin in one slice of arrivals and share a write."""
    server.tokens, server.ledger = 2, child.folder / "requests-0.jsonl"
    child.plan(server, [{"users": 24, "requests": 300}])
    assert child.run() == 0, child.log()
    assert outcomes(child.rows("end")) == {"ok": 300}
    assert server.unwritten == []


@pytest.mark.slow
def test_dispatcher_records_each_pipelined_request(server: Server, child: Child) -> None:
    pipelined = {"name": "pipelined", "payload": {"text": {"tokens": 64}}, "behaviour": {"pipeline": {"depth": 3}}}
    child.plan(server, [{"users": 2, "requests": 4}], traffic=[pipelined])
    assert child.run() == 0, child.log()
    begins, ends = child.rows("begin"), child.rows("end")
    assert outcomes(ends) == {"ok": 12}
    assert sorted(r["id"] for r in begins) == sorted(r["id"] for r in ends)
    assert Counter(r["step"] for r in begins) == {0: 3, 1: 3, 2: 3, 3: 3}
    assert {r["id"].partition(".")[2] for r in begins} == {"", "1", "2"}
    assert max(in_flight(child.rows())) == 6


def in_flight(rows: list[dict[str, Any]]) -> list[int]:
    counts, now = [], 0
    for row in rows:
        now += {"begin": 1, "end": -1}.get(row["row"], 0)
        counts.append(now)
    return counts


def test_dispatcher_open_phase_never_waits_and_counts_from_due(server: Server, child: Child) -> None:
    server.tokens, server.gap_s = 2, 0.15
    child.plan(server, [{"rate": "40/s", "for": "1s", "max_in_flight": 4}])
    assert child.run() == 0, child.log()
    sent, missed = child.rows("begin"), child.rows("missed")
    assert {r["why"] for r in missed} == {"no_slot"}
    assert len(sent) + sum(r["count"] for r in missed) == 40
    assert len(sent) < 40
    assert max(in_flight(child.rows())) == 4
    dues = [r["due_ns"] for r in sent]
    assert dues == sorted(dues)
    # The plan's grid of 25 ms: neither the moment of sending nor that of building.
    assert {(due - dues[0]) % 25_000_000 for due in dues} == {0}
    assert {r["id"]: r["due_ns"] for r in child.rows("end")} == {r["id"]: r["due_ns"] for r in sent}
    assert all(r["at_ns"] >= r["due_ns"] for r in sent)


def test_dispatcher_pause_holds_the_load_and_due_steps_are_missed(server: Server, child: Child) -> None:
    child.plan(server, [{"rate": "50/s", "for": "2s", "max_in_flight": 8}])
    child.start()
    until(lambda: len(child.rows("end")) > 5)
    child.control("pause")
    until(lambda: any(r["why"] == "server_down" and r["count"] > 5 for r in child.rows("missed")))
    child.control("resume")
    assert child.wait() == 0, child.log()
    missed = sum(r["count"] for r in child.rows("missed"))
    assert len(child.rows("begin")) + missed == 100
    assert child.rows("begin")[-1]["step"] > 50, "it went on after the pause"


def test_dispatcher_closed_phase_does_not_count_paused_time(server: Server, child: Child) -> None:
    server.gap_s = 0.01
    child.plan(server, [{"users": 2, "for": "1s"}])
    child.start()
    until(lambda: len(child.rows("end")) > 3)
    child.control("pause")
    until(lambda: in_flight(child.rows())[-1] == 0)
    until(lambda: [r["in_flight"] for r in child.rows("heartbeat")][-2:] == [0, 0])
    quiet = len(child.rows("begin"))
    beats = len(child.rows("heartbeat"))
    until(lambda: len(child.rows("heartbeat")) > beats + 5)  # longer than the phase lasts
    assert len(child.rows("begin")) == quiet
    child.control("resume")
    assert child.wait() == 0, child.log()
    assert len(child.rows("begin")) > quiet
    assert outcomes(child.rows()) == {"ok": len(child.rows("begin"))}


CLOSED, OPEN = {"users": 8, "for": "1s"}, {"rate": "50/s", "for": "6s", "max_in_flight": 8}


@pytest.mark.parametrize(
    ("load", "before"),
    [
        (CLOSED, None), (OPEN, "pause"),
        pytest.param(CLOSED, "pause", marks=pytest.mark.slow), pytest.param(OPEN, None, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_dispatcher_sends_few_requests_until_it_resumes(
    server: Server, child: Child, load: dict[str, Any], before: str | None
) -> None:
    server.gap_s = 0.01
    child.plan(server, [load])
    child.start()
    until(lambda: len(child.rows("end")) > 3)
    if before is not None:
        child.control(before)
        until(lambda: [r["in_flight"] for r in child.rows("heartbeat")][-2:] == [0, 0])
    child.control("few")
    begun_ns = time.monotonic_ns()
    until(lambda: time.monotonic_ns() - begun_ns > 2.2e9)
    few = [r["at_ns"] for r in child.rows("begin") if r["at_ns"] - begun_ns > 0.1e9]
    assert 3 <= len(few) <= 5
    assert min(b - a for a, b in pairwise(few)) > 0.45e9
    child.control("resume")
    assert child.wait() == 0, child.log()
    assert len([r for r in child.rows("begin") if r["at_ns"] > few[-1]]) > 20, "the whole load goes on"


def test_dispatcher_stop_ends_in_order_and_records_what_is_in_flight(server: Server, child: Child) -> None:
    server.hold.set()
    child.plan(server, [{"users": 3, "for": "10m"}])
    child.start()
    until(lambda: len(child.rows("begin")) == 3)
    child.control("stop", grace_s=0.3)
    assert child.wait() == 0, child.log()
    ends = child.rows("end")
    assert [r["outcome"] for r in ends] == ["aborted"] * 3
    assert {r["detail"]["why"] for r in ends} == {"stopped"}
    assert child.rows()[-1]["why"] == "stopped"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_dispatcher_signal_ends_in_order(server: Server, child: Child, how: signal.Signals) -> None:
    server.hold.set()
    child.plan(server, [{"users": 2, "for": "10m"}])
    process = child.start()
    until(lambda: len(child.rows("begin")) == 2)
    process.send_signal(how)
    assert child.wait(10) == 0, child.log()
    assert len(child.rows("end")) == 2
    assert child.rows()[-1] == {**child.rows()[-1], "row": "load", "what": "end", "why": "stopped"}


def test_worker_killed_in_the_middle_loses_no_complete_row(server: Server, child: Child) -> None:
    server.gap_s = 0.002
    child.plan(server, [{"users": 8, "for": "10m"}])
    process = child.start()
    until(lambda: len(child.rows("end")) > 50)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    begins, ends = child.rows("begin"), child.rows("end")
    assert {r["id"] for r in ends} <= {r["id"] for r in begins}
    assert 0 <= len(begins) - len(ends) <= 8
    assert child.rows("load") == child.rows("load")[:1]


def test_worker_ends_when_its_parent_was_killed(server: Server, child: Child, tmp_path: Path) -> None:
    server.gap_s = 0.01
    child.plan(server, [{"users": 2, "for": "10m"}])
    process = child.start(through_parent=True)
    until(lambda: len(child.rows("end")) > 3)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: child.rows()[-1].get("why") == "stopped")


def test_worker_with_an_unwritable_ledger_exits_with_code_3(server: Server, child: Child, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    child.plan(server, [{"users": 2, "requests": 10, "rounds": 1}])
    (tmp_path / "requests-0.jsonl").symlink_to("/dev/full")
    assert child.run() == 3
    assert server.paths == []


@pytest.mark.slow
def test_workers_all_end_when_one_ledger_fails(server: Server, child: Child, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    child.plan(server, [{"users": 2, "for": "10m"}], workers=2)
    (tmp_path / "requests-1.jsonl").symlink_to("/dev/full")
    assert child.run("--processes", "2") == 3, child.log()
    told = [row["what"] for row in child.rows("load")]  # none where the other had not begun
    assert told[-1:] in ([], ["end"])


def test_worker_with_an_unreadable_plan_exits_with_code_3(server: Server, child: Child, tmp_path: Path) -> None:
    child.plan(server, [{"users": 2, "requests": 10}])
    (tmp_path / "facts.json").unlink()
    assert child.run() == 3


def test_worker_sends_keys_and_headers_and_never_writes_them(server: Server, child: Child, tmp_path: Path) -> None:
    """The server repeats the key in an error."""
    server.refuse = "Incorrect API key provided: sk-very-secret"
    child.plan(
        server,
        [{"users": 1, "requests": 2}],
        api_key_env="THE_KEY",
        base_url=server.url + "/gateway/v1",
        headers={"X-Team": "blue", "X-Token": "env:THE_TOKEN"},
    )
    assert child.run(env={"THE_KEY": "sk-very-secret", "THE_TOKEN": "hush-hush-1"}) == 0, child.log()
    assert server.paths == ["/gateway/v1/chat/completions"] * 2
    sent = server.headers[0]
    assert (sent["Authorization"], sent["X-Team"], sent["X-Token"]) == ("Bearer sk-very-secret", "blue", "hush-hush-1")
    assert sent["X-Request-Id"] == child.rows("begin")[0]["id"]
    end = child.rows("end")[0]
    assert (end["outcome"], end["status"]) == ("http_error", 401)
    assert "Incorrect API key provided" in end["error"]
    for path in tmp_path.iterdir():
        assert b"sk-very-secret" not in path.read_bytes()
        assert b"hush-hush-1" not in path.read_bytes()


def test_exchange_silent_beyond_the_limit_is_stalled(server: Server, child: Child) -> None:
    server.hold.set()
    limits = {"limits": {"first_byte": "300ms", "between_bytes": "300ms", "total": "5s"}}
    child.plan(server, [{"users": 2, "requests": 4}], profile=limits)
    assert child.run() == 0, child.log()
    assert outcomes(child.rows()) == {"stalled": 4}


def test_exchange_without_a_server_is_a_connect_error_each_time(server: Server, child: Child) -> None:
    with socket.socket() as bound:  # nobody listens, and no other test gets the port
        bound.bind(("127.0.0.1", 0))
        child.plan(server, [{"users": 2, "requests": 6}], base_url=f"http://127.0.0.1:{bound.getsockname()[1]}")
        assert child.run() == 0, child.log()
    assert outcomes(child.rows()) == {"connect_error": 6}
    begins, ends = child.rows("begin"), child.rows("end")
    rested_ns = begins[2]["at_ns"] - ends[0]["at_ns"]
    assert rested_ns > 400_000_000, "nobody there: the users rest, or the plan would be used up at once"
    assert "connect_error" in child.log(), "Locust's own table tells of it"


def test_dispatcher_burst_is_sent_at_once_and_again_to_an_idle_server(server: Server, child: Child) -> None:
    server.gap_s = 0.05
    child.plan(server, [{"burst": 12, "repeat": 2, "every": "50ms"}])
    assert child.run() == 0, child.log()
    begins, ends = child.rows("begin"), child.rows("end")
    assert outcomes(child.rows()) == {"ok": 24}
    assert max(in_flight(child.rows())) == 12
    assert min(r["at_ns"] for r in begins if r["step"] >= 12) > max(r["at_ns"] for r in ends if r["step"] < 12)


def test_dispatcher_users_back_off_on_instant_errors(server: Server, child: Child) -> None:
    server.refuse = "no"
    child.plan(server, [{"users": 4, "for": "2s"}])
    assert child.run() == 0, child.log()
    ends = child.rows("end")
    # After 0.1, 0.2, 0.4 and 0.8 s: five for each user, and no more.
    assert 4 * 4 <= len(ends) <= 4 * 6
    assert outcomes(ends) == {"http_error": len(ends)}
    assert child.rows("heartbeat")[-1]["backed_off"] >= 4 * 3
    assert child.rows("load")[-1]["at_ns"] - child.rows("load")[0]["at_ns"] < 3_000_000_000


def test_dispatcher_backoff_lasts_over_rounds_and_is_bounded(server: Server, child: Child) -> None:
    server.refuse = "no"
    limits = {"limits": {"backoff": "50ms", "backoff_max": "100ms"}}
    child.plan(server, [{"users": 2, "requests": 2, "rounds": 10}], profile=limits)
    assert child.run() == 0, child.log()
    begins = child.rows("begin")
    took_s = (begins[-1]["at_ns"] - begins[0]["at_ns"]) / 1e9
    assert len(begins) == 20
    assert 0.6 < took_s < 2
