from typing import Any

from tests.run.raw_server import RawServer, answer, chunk

EXACT = [{"name": "exact", "payload": {"text": {"tokens": "16..32"}}, "output": {"exact": 32}}]
LOAD = [{"rate": "20/s", "law": "constant", "for": "2s", "max_in_flight": 32}]
ALIVE = ["engine_deaths == 0", "hangs == 0"]


def ended(start: Any, server: RawServer, **parts: Any) -> Any:
    run = start("--target", server.url, **{"load": LOAD, "target": {"dialect": "openai"}, **parts})
    run.ends(90)
    return run


def test_exact_output_with_136_tokens_in_every_answer_fails(start: Any, serve: Any) -> None:
    run = ended(start, serve(lambda _n, _body: (200, answer(136))), traffic=EXACT, expect=ALIVE)
    check = run.check("exact_outputs")
    assert (run.verdict()["verdict"], check["verdict"]) == ("fail", "fail")
    assert check["actual"] == "0 of 40 outputs (exact: +104 in 40)"


def test_exact_output_without_usage_is_unknown(start: Any, serve: Any) -> None:
    run = ended(start, serve(lambda _n, _body: (200, answer(32, prompt=None))), traffic=EXACT, expect=ALIVE)
    assert (run.verdict()["verdict"], run.check("exact_outputs")["verdict"]) == ("unknown", "unknown")
    assert "40 answers carry no usage" in run.output


def test_requests_answered_with_429_are_not_ok(start: Any, serve: Any) -> None:
    def reply(_n: int, body: Any) -> Any:
        busy = body.get("stream") and int(body["max_tokens"]) == 8
        return (429, [{"error": {"message": "too many requests", "code": 429}}]) if busy else (200, answer(2))

    run = ended(start, serve(reply), expect=["ok_share >= 80%"])
    (share,) = run.verdict()["expectations"]
    assert (run.verdict()["verdict"], share["verdict"]) == ("fail", "fail")
    assert "0 of 40 requests that had to succeed" in run.output


def test_finish_error_with_text_of_a_death_is_one_request_failure(start: Any, serve: Any) -> None:
    def reply(n: int, body: Any) -> Any:
        if int(body["max_tokens"]) != 8 or n % 2:
            return 200, answer(4)
        words = f" EngineDeadError: EngineCore encountered an issue {'abcdefgh'[n % 8] * (n % 7 + 1)}"
        return 200, [chunk(words), chunk(finish="error")]

    run = ended(start, serve(reply), expect=[*ALIVE, "error_rate <= 60%"])
    verdict = run.verdict()
    assert [(f["id"], f["severity"]) for f in verdict["failures"]] == [("unexplained_finish_error", "request")]
    assert verdict["failures"][0]["accepted"], "within the error budget"
    assert len(verdict["incidents"]) == 1
    assert {r["verdict"] for r in verdict["expectations"]} == {"pass"}
