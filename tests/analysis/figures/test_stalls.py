"""The longest time in which requests wait and nothing arrives."""

import itertools
import random
from collections.abc import Callable

import pytest

from loadchaos.analysis.figures.stalls import StallFigures
from tests.analysis.conftest import History
from tests.rows import MS, Row, S, answered, folded


def beat(at_s: float, tokens: int = 0, *, in_flight: int = 1, **more: object) -> Row:
    return {"row": "heartbeat", "at_ns": round(at_s * S), "file": "0", "tokens": tokens, "in_flight": in_flight, **more}


def begin(at_s: float, id_: str = "a", **more: object) -> Row:
    return {"row": "begin", "id": id_, "at_ns": round(at_s * S), "file": "0", "tokens": 10, **more}


def end(at_s: float, outcome: str, id_: str = "a") -> Row:
    return {"row": "end", "id": id_, "at_ns": round(at_s * S), "outcome": outcome}


def beats(until_s: float, since_s: float, tokens: int = 0) -> list[Row]:
    return [beat(since_s + i / 4, tokens) for i in range(round((until_s - since_s) * 4))]


def seconds(rows: list[Row]) -> float:
    found = folded(StallFigures(), rows).longest
    return 0.0 if found is None else found.seconds


def test_a_run_without_requests_has_no_stall() -> None:
    assert folded(StallFigures(), [beat(1, in_flight=0), beat(1.25, in_flight=0)]).longest is None


def test_silence_between_two_tokens_is_a_stall() -> None:
    rows = [begin(1), *beats(3, 1.25, 5), *beats(8, 3), beat(8, 5), *beats(9, 8.25, 5)]
    assert seconds(rows) == pytest.approx(5.25, abs=0.3)


def test_time_without_requests_is_none() -> None:
    rows = [begin(1), beat(1.25, 5), end(1.3, "ok"), *beats(20, 1.5), begin(20, "b"), beat(20.25, 5)]
    assert seconds(rows) < 0.4


def test_a_first_token_ends_the_wait_of_its_request() -> None:
    assert seconds(answered(10 * S, 1, took_ns=2 * S)) == pytest.approx(1.0)


def test_tokens_of_one_request_are_progress_for_all() -> None:
    assert seconds([begin(1, "silent"), begin(1), *beats(20, 1.25, 1)]) < 0.4


def test_a_request_that_is_refused_at_once_waits_no_more() -> None:
    rows = [
        row
        for i in range(40)
        for row in (begin(1 + i / 4, f"r{i}"), end(1.01 + i / 4, "shed", f"r{i}"), beat(1.2 + i / 4))
    ]
    assert seconds(rows) < 0.4


def test_requests_that_are_given_up_and_sent_again_are_one_stall() -> None:
    rows = []
    for i in range(3):
        at_s = 1 + 5.1 * i
        rows += [begin(at_s, f"r{i}"), *beats(at_s + 5, at_s), end(at_s + 5, "timeout", f"r{i}")]
    assert seconds(rows) == pytest.approx(15.2, abs=0.3)


def test_requests_that_are_given_up_with_a_pause_between_are_two_stalls() -> None:
    rows = [begin(1), *beats(6, 1.25), end(6, "timeout"), *beats(20, 6.25), begin(20, "b"), *beats(22, 20.25)]
    assert seconds(rows) == pytest.approx(5)


def test_a_request_that_is_given_up_waited_until_its_end() -> None:
    assert seconds([begin(1), end(4.1, "timeout")]) == pytest.approx(3.1)


def test_a_client_that_reads_slowly_on_purpose_does_not_wait() -> None:
    assert seconds([begin(1, behaviour="slow_reader"), *beats(20, 1.25)]) == 0


def test_time_in_which_we_did_not_run_is_not_the_servers() -> None:
    assert seconds([begin(1), *beats(3, 1.25, 5), beat(11, 0), *beats(12, 11.25, 5)]) < 0.6


def test_a_lost_worker_does_not_wait_for_ever() -> None:
    others: list[Row] = [{**row, "file": "1"} for row in beats(20, 1.5)]
    assert seconds([begin(1), beat(1.25, 5), *others]) < 2.5


def stall_of(history: History, requests: int = 41, length_s: float = 8, served_s: float = 20) -> History:
    history.begin().serve(1, requests)
    ids = history.send(requests)
    history.serve(served_s, requests).stall(length_s).serve(3, requests)
    history.in_flight = 0
    history.answer(ids, took_s=length_s + served_s + 3)
    return history.end()


def test_a_stall_for_everybody_is_no_pass(history: History) -> None:
    verdict = stall_of(history).verdict()
    assert verdict["longest_stall"]["seconds"] == pytest.approx(8.0, abs=0.4)
    assert verdict["longest_stall"]["requests"] == 41
    assert verdict["longest_stall"]["replica"] == "server"
    (check,) = [c for c in verdict["checks"] if c["name"] == "longest_stall"]
    assert check["verdict"] == "unknown"
    assert "for 41 requests at server, from" in check["actual"]


@pytest.mark.parametrize(("limit", "decision"), [("2s", "fail"), ("10s", "pass")])
def test_an_expectation_judges_the_stall(history: History, limit: str, decision: str) -> None:
    verdict = stall_of(history).verdict(expect=[f"longest_stall <= {limit}"])
    (judged,) = verdict["expectations"]
    assert (judged["name"], judged["verdict"]) == ("longest_stall", decision)
    assert not [c for c in verdict["checks"] if c["name"] == "longest_stall"]


def test_an_expectation_without_requests_is_unknown(history: History) -> None:
    (judged,) = history.begin().end().verdict(expect=["longest_stall <= 2s"])["expectations"]
    assert judged["verdict"] == "unknown"


@pytest.mark.parametrize(
    ("requests", "length_s", "served_s", "told"),
    [(41, 4, 20, ""), (2, 8, 20, "note"), (41, 8, 2, "note"), (41, 8, 20, "check")],
    ids=["short", "few requests", "first steps", "everybody"],
)
def test_few_requests_and_first_steps_get_a_note(
    make_history: Callable[[], History], requests: int, length_s: float, served_s: float, told: str
) -> None:
    verdict = stall_of(make_history(), requests, length_s, served_s).verdict()
    assert any(c["name"] == "longest_stall" for c in verdict["checks"]) == (told == "check")
    assert any("longest stall" in note for note in verdict["notes"]) == (told == "note")


def test_a_slow_prefill_is_no_stall_to_tell(history: History) -> None:
    history.begin().serve(20)
    ids = history.send(8, tokens=4000)
    history.in_flight, history.waiting_tokens = 8, 32_000
    history.stall(12)
    history.waiting_tokens = 0
    history.serve(3).answer(ids, took_s=15)
    verdict = history.end().verdict()
    assert verdict["longest_stall"]["seconds"] > 10
    assert "longest_stall" not in history.unknowns(verdict)
    assert not [n for n in verdict["notes"] if "stall" in n]


def test_prompts_that_come_during_a_stall_do_not_explain_it(history: History) -> None:
    history.begin().serve(20)
    ids = history.send(8)
    history.serve(1)
    for _ in range(8):
        ids += history.send(5, tokens=200)
        history.in_flight, history.waiting_tokens = len(ids), history.waiting_tokens + 1000
        history.stall(1)
    history.waiting_tokens = 0
    history.serve(3).answer(ids, took_s=12)
    verdict = history.end().verdict()
    (check,) = [c for c in verdict["checks"] if c["name"] == "longest_stall"]
    assert check["verdict"] == "unknown"
    assert f"for {verdict['longest_stall']['requests']} requests" in check["actual"]


def test_a_pause_of_ours_is_no_stall_to_tell(history: History) -> None:
    history.begin().serve(20)
    ids = history.send(8)
    history.serve(1)
    attack = {"attack": "pause", "n": 1, "replica": "server", "effects": ["paused"], "status": None, "text": ""}
    history.add("attack", what="begin", ok=None, **attack)
    history.stall(8)
    history.add("attack", what="end", ok=True, **attack)
    history.serve(3).answer(ids, took_s=12)
    assert "longest_stall" not in history.unknowns(history.end().verdict())


def test_one_replica_of_several_is_named() -> None:
    state: Row = {"row": "state", "from": "healthy", "signs": [], "engine": None}
    rows = [{**state, "at_ns": 0, "replica": name, "to": "healthy"} for name in ("a", "b")]
    rows += [begin(1), *beats(3, 1.25, 5), *beats(7, 3)]
    rows += [{**state, "at_ns": 7 * S + MS, "replica": "b", "to": "degraded"}, *beats(9, 7.25), beat(9, 5)]
    found = folded(StallFigures(), rows).longest
    assert found is not None
    assert found.replica == "b"


def served(rng: random.Random) -> list[Row]:
    """Two minutes of an open load on a healthy server that computes waiting prompts before it decodes, in one step for as
    many tokens as it takes at once.
    """
    token_s, step_s, batch = 10 ** rng.uniform(-4, -2.3), 10 ** rng.uniform(-2, -0.5), rng.choice([1, 2048, 8192])
    prompt, answer = round(10 ** rng.uniform(1.5, 3.6)), rng.randint(5, 60)
    per_s = rng.uniform(0.2, 0.8) / (prompt * token_s + answer * step_s / 4)
    due = [1 + s for s in itertools.accumulate(rng.expovariate(per_s) for _ in range(600)) if s < 120]
    waiting: list[float] = []  # by the time they were sent
    running: dict[float, list[float]] = {}  # times of tokens
    rows, now_s, beat_s, tokens = [], 0.0, 0.25, 0
    while due or waiting or running:
        while due and due[0] <= now_s:
            waiting.append(due.pop(0))
        computed = waiting[: max(1, batch // prompt)]
        cost_s = prompt * token_s * len(computed) if computed else step_s if running else 0.25
        while beat_s < now_s + cost_s:
            unanswered = [*waiting, *(at_s for at_s in due if at_s <= beat_s)]
            silences = sorted(round((beat_s - s) * S) for s in (*unanswered, *(t[-1] for t in running.values())))
            more = {"waiting_tokens": prompt * len(unanswered), "stream_silences_ns": silences[-3:]}
            rows.append(beat(beat_s, tokens, in_flight=len(running) + len(unanswered), **more))
            beat_s, tokens = beat_s + 0.25, 0
        now_s += cost_s
        del waiting[: len(computed)]
        rows += [begin(at_s, f"r{at_s}", tokens=prompt) for at_s in computed]
        stepped = computed or list(running)
        tokens += len(stepped)
        for at_s in stepped:
            times = running.setdefault(at_s, [])
            times.append(now_s)
            if len(times) == answer:
                ended = {"first_token_ns": round(times[0] * S), "chunks": answer}
                rows.append({**end(now_s, "ok", f"r{at_s}"), **ended})
                del running[at_s]
    return sorted(rows, key=lambda row: int(row["at_ns"]))


@pytest.mark.parametrize("seed", range(40))
def test_a_healthy_server_has_no_unexplained_stall(seed: int) -> None:
    found = folded(StallFigures(), served(random.Random(seed))).told
    assert found is None or not found.unexplained
