from typing import Any

import pytest

from tests.run.conftest import Row, Run, Serve, Start
from tests.run.raw_server import answer, chunk

TEXT = [{"name": "text", "payload": {"text": {"tokens": 64}}, "output": {"max": 8}}]
USAGE = {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10}}
EXACT = [{"name": "exact", "payload": {"text": {"tokens": "16..32"}}, "output": {"exact": 32}}]
LOAD = [{"rate": "20/s", "law": "constant", "for": "2s", "max_in_flight": 32}]
ALIVE = ["engine_deaths == 0", "hangs == 0"]


def ended(start: Start, url: str, *args: str, **parts: Any) -> Run:
    run = start("--target", url, *args, **{"load": LOAD, "target": {"dialect": "openai"}, **parts})
    run.ends(90)
    return run


def test_exact_output_with_136_tokens_in_every_answer_fails(start: Start, serve: Serve) -> None:
    run = ended(start, serve(lambda _n, _body: (200, answer(136))), traffic=EXACT, expect=ALIVE)
    check = run.check("exact_outputs")
    assert (run.verdict()["verdict"], check["verdict"]) == ("fail", "fail")
    assert check["actual"] == "0 of 40 outputs (exact: +104 in 40)"


def test_finish_error_with_text_of_a_death_is_one_request_failure(start: Start, serve: Serve) -> None:
    def reply(n: int, body: Row) -> tuple[int, list[Row]]:
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


@pytest.mark.slow
def test_answer_with_the_prompt_of_another_workers_request_names_both(start: Start, serve: Serve) -> None:
    prompts: list[str] = []

    def reply(n: int, body: Row) -> tuple[int, list[Row]]:
        prompts.append(body["messages"][-1]["content"])
        quoted = prompts[-2] if body.get("max_tokens") == 8 and n % 5 == 0 else prompts[-1]
        return 200, [chunk(f"You said {quoted}"), chunk(finish="stop"), USAGE]

    run = ended(start, serve(reply), "--processes", "2", traffic=TEXT)
    verdict = run.verdict()
    (failure,) = [f for f in verdict["failures"] if f["id"] == "answer_of_another_request"]
    assert failure["count"] == 8
    rows = [(n, r) for n in (0, 1) for r in run.rows(f"requests-{n}.jsonl") if r["row"] == "end"]
    worker, ends = {r["id"]: n for n, r in rows}, {r["id"]: r for _, r in rows}
    mixed = {i: r["wrong"][0]["other"] for i, r in ends.items() if r["outcome"] == "wrong_output"}
    assert all(other in ends and other != i for i, other in mixed.items())
    assert any(worker[i] != worker[other] for i, other in mixed.items())
    assert [e["verdict"] for e in verdict["expectations"] if e["name"] == "wrong_answers"] == ["fail"]
    assert "Wrong answers" in next(run.folder.glob("incidents/*another_request/incident.md")).read_text()


def test_control_character_under_a_schema_names_the_known_issue(start: Start, serve: Serve) -> None:
    """As vLLM 0.32.0 answers with xgrammar 0.2.8."""
    traffic = [{**TEXT[0], "payload": {"structured": {"json_schema": "small"}}}]

    def reply(_: int, body: Row) -> tuple[int, list[Row]]:
        if "response_format" not in body:
            return 200, answer(2)
        return 200, [chunk('{"name_0": "x\x11", '), chunk('"count": 3}'), chunk(finish="stop"), USAGE]

    (failure,) = ended(start, serve(reply), traffic=traffic).verdict()["failures"]
    assert failure["id"] == "schema_control_character"
    assert [k["issue"] for k in failure["known"]] == ["mlc-ai/xgrammar#800"]
    assert "U+0011" in failure["wrong_answers"][0]["summary"]
