"""Servers whose answers or logs name a dead engine: those that live, and those that died."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.run.conftest import Run, Start
from tests.run.foreign_server import PAGES, ForeignServer, serving

WORDS = "EngineCore encountered an issue. See stack trace (above) for the root cause."
OLD_CRASH = f"""(EngineCore_DP0 pid=321) ERROR 11-20 15:53:40 [core.py:1100] EngineCore encountered a fatal error.
(EngineCore_DP0 pid=321) ERROR 11-20 15:53:40 [core.py:1100] Traceback (most recent call last):
(EngineCore_DP0 pid=321) ERROR 11-20 15:53:40 [core.py:1100] AssertionError: Encoder cache miss for 9f8a1c22d3e4f5a6.
(APIServer pid=300) ERROR 11-20 15:53:40 [async_llm.py:525] vllm.v1.engine.exceptions.EngineDeadError: {WORDS}
"""
QUOTED = f"INFO 11-20 15:53:40 [logger.py:43] Received request chatcmpl-1: prompt: 'explain: {WORDS}', params: None.\n"
HTML = f"<html><body><h1>502 Bad Gateway</h1><p>upstream said: {WORDS}</p></body></html>"
TEXT = [{"name": "text", "payload": {"text": {"tokens": 40}}, "output": {"max": 16}}]
LIVES = ["engine_deaths == 0", "hangs == 0", "outages == 0"]


ERROR = {"error": {"message": WORDS, "type": "InternalServerError", "code": 500}}
PAGES_OF_FORMS = {"500": (500, ERROR), "400": (400, ERROR), "html": (502, HTML)}


def telling(
    form: str, fails: Callable[[int, float], bool], *, token_s: float = 0.01, tokens_before: int = 3
) -> AbstractContextManager[ForeignServer]:
    """A chat server. `fails(n, at_s)` says whether the n-th stream is answered with `form` of the words."""

    def token(n: int, at_s: float, i: int) -> str | dict[str, Any]:
        if form == "stream" and i == tokens_before and fails(n, at_s):
            return ERROR
        return f" {WORDS}" if form == "text" and fails(n, at_s) else " word"

    def instead(n: int, at_s: float) -> tuple[int, object] | None:
        return PAGES_OF_FORMS.get(form) if fails(n, at_s) else None

    return serving(ForeignServer(dict(PAGES), token_s=token_s, token=token, instead=instead))


def counts(verdict: Any) -> dict[str, str]:
    return {c["name"]: c["actual"] for c in verdict["expectations"]}


def lives(run: Run, sent: int, failed: int) -> Any:
    """The verdict of a run whose load went on to its end, and killed nobody."""
    run.ends(120)
    verdict = run.verdict()
    assert sum(verdict["outcomes"].values()) == sent, run.output
    assert sum(n for o, n in verdict["outcomes"].items() if o != "ok") == failed, verdict["outcomes"]
    assert {n: counts(verdict)[n] for n in ("engine_deaths", "hangs", "outages")} == dict.fromkeys(
        ("engine_deaths", "hangs", "outages"), "0"
    ), run.output
    assert {f["severity"] for f in verdict["failures"]} <= {"request"}, verdict["failures"]
    assert sum(f["count"] for f in verdict["failures"]) == failed, verdict["failures"]
    assert [i for i in verdict["incidents"] if i["kind"] != "failure"] == []
    assert "dead" not in {s["state"] for s in verdict["states"]}
    return verdict


@pytest.mark.parametrize(
    ("form", "failed"),
    [
        ("500", 8),
        ("stream", 8),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in [("400", 8), ("html", 8), ("text", 0)]),
    ],
)
def test_words_in_some_answers_are_failures_of_these_requests(start: Start, form: str, failed: int) -> None:
    with telling(form, lambda n, _: n % 3 == 0) as server:
        run = start("--target", server.url, traffic=TEXT, load=[{"users": 3, "requests": 24}], expect=LIVES)
        lives(run, 24, failed)


@pytest.mark.slow
def test_words_in_one_answer_of_an_open_load_hold_nothing_back(start: Start) -> None:
    with telling("500", lambda n, _: n == 10, token_s=0.03) as server:
        load = [{"rate": "10/s", "law": "constant", "for": "4s", "max_in_flight": 32}]
        run = start("--target", server.url, traffic=TEXT, load=load, expect=LIVES)
        lives(run, 40, 1)
        assert run.rows("requests-*.jsonl", row="missed") == []
        assert run.rows(row="gate") == []


@pytest.mark.parametrize("form", ["500", *(pytest.param(form, marks=pytest.mark.slow) for form in ("stream", "html"))])
def test_load_goes_on_when_all_requests_in_flight_told_a_death_once(start: Start, form: str) -> None:
    """One of several servers behind a gateway died; the others answer 2 s later."""
    with telling(form, lambda _, s: 1.0 < s < 3.0, tokens_before=0) as server:
        load = [{"users": 6, "for": "8s"}]
        run = start("--target", server.url, traffic=TEXT, load=load, expect=LIVES)
        run.ends(120)
        verdict = run.verdict()
        assert counts(verdict)["engine_deaths"] == "0", run.output
        assert "dead" not in {s["state"] for s in verdict["states"]}
        assert [i for i in verdict["incidents"] if i["kind"] != "failure"] == []
        gates = [(r["open"], r["at_ns"]) for r in run.rows(row="gate")]
        assert [opened for opened, _ in gates] == [False, True], gates
        few = [s for s in server.streams_s if 1.8 < s < 3.0]
        assert 1 <= len(few) <= 4, few  # one in half a second
        assert len([s for s in server.streams_s if s > 4.5]) > 60, "the full load is back"
        assert verdict["outcomes"]["ok"] > 100


@pytest.mark.parametrize(
    ("text", "failing"),
    [
        pytest.param(OLD_CRASH, False, id="old crash, all answered"),
        pytest.param(QUOTED, True, id="quoted prompt, some fail"),
        pytest.param(OLD_CRASH, True, id="old crash, some fail", marks=pytest.mark.slow),
        pytest.param(QUOTED, False, id="quoted prompt, all answered", marks=pytest.mark.slow),
        pytest.param(f"{WORDS}\n", True, id="bare words, some fail", marks=pytest.mark.slow),
        pytest.param(f"{WORDS}\n", False, id="bare words, all answered", marks=pytest.mark.slow),
    ],
)
def test_words_in_the_log_of_a_living_server_kill_nobody(
    start: Start, tmp_path: Path, text: str, *, failing: bool
) -> None:
    log = tmp_path / "engine.log"
    log.write_text("INFO 11-22 10:00:00 it serves\n")
    with telling("500", lambda n, _: failing and n % 3 == 0) as server:
        load = [{"users": 3, "requests": 90}]
        run = start("--target", server.url, "--server-log", str(log), traffic=TEXT, load=load, expect=LIVES)
        run.loaded(45)
        with log.open("a") as file:
            file.write(text)
        run.ends(120)
        verdict = run.verdict()
        assert sum(verdict["outcomes"].values()) == 90
        assert counts(verdict)["engine_deaths"] == "0", run.output
        assert "dead" not in {s["state"] for s in verdict["states"]}
        assert {f["severity"] for f in verdict["failures"]} <= {"request"}


@pytest.mark.slow
def test_server_that_fails_every_request_until_it_comes_back_died(start: Start) -> None:
    """/health stays 200: the answers alone show the death, and the return."""
    with telling("500", lambda _, s: 1.0 < s < 14.0) as server:
        run = start(
            "--target", server.url, target={"on_death": {"wait": {"at_most": "60s"}}}, traffic=TEXT,
            load=[{"users": 3, "for": "5s"}], expect=LIVES,
        )  # fmt: skip
        run.ends(120)
        verdict = run.verdict()
        assert counts(verdict)["engine_deaths"] == "1", run.output
        states = [s["state"] for s in verdict["states"] if s["state"] != s["from"]]
        assert states == ["healthy", "dying", "dead", "restarting", "healthy"], states
        dead = next(s for s in run.rows(row="state", to="dead"))
        assert 9.5 <= dead["noticed_after_s"] <= 11.5
        assert run.rows(row="gate")[-1]["open"]


def test_server_whose_health_says_dead_is_dead_at_once(start: Start) -> None:
    def fails(_: int, s: float) -> bool:
        if s > 1.0:
            server.pages["/health"] = (503, "EngineDeadError")
        return s > 1.0

    with telling("500", fails) as server:
        run = start("--target", server.url, traffic=TEXT, load=[{"users": 3, "for": "20s"}], expect=LIVES)
        dead = run.wait_for(row="state", to="dead")[0]
        assert dead["noticed_after_s"] <= 1.0
        held = run.wait_for(row="gate", open=False, n=1)
        assert held[-1]["at_ns"] - dead["since_ns"] < 1.5e9
        run.process.send_signal(2)
        run.ends()
        assert counts(run.verdict())["engine_deaths"] == "1"
