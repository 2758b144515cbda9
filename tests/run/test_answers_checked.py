from typing import Any

import pytest

from tests.run.raw_server import RawServer, answer, chunk

TEXT = [{"name": "text", "payload": {"text": {"tokens": 64}}, "output": {"max": 8}}]
LOAD = [{"rate": "20/s", "law": "constant", "for": "2s", "max_in_flight": 32}]
USAGE = {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10}}


def ended(start: Any, server: RawServer, *args: str, **parts: Any) -> Any:
    run = start("--target", server.url, *args, **{"load": LOAD, "target": {"dialect": "openai"}, **parts})
    run.ends(90)
    return run


@pytest.mark.slow
def test_answer_with_the_prompt_of_another_workers_request_names_both(start: Any, serve: Any) -> None:
    prompts: list[str] = []

    def reply(n: int, body: Any) -> Any:
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


def test_control_character_under_a_schema_names_the_known_issue(start: Any, serve: Any) -> None:
    """As vLLM 0.32.0 answers with xgrammar 0.2.8."""
    traffic = [{**TEXT[0], "payload": {"structured": {"json_schema": "small"}}}]

    def reply(_: int, body: Any) -> Any:
        if "response_format" not in body:
            return 200, answer(2)
        return 200, [chunk('{"name_0": "x\x11", '), chunk('"count": 3}'), chunk(finish="stop"), USAGE]

    (failure,) = ended(start, serve(reply), traffic=traffic).verdict()["failures"]
    assert failure["id"] == "schema_control_character"
    assert [k["issue"] for k in failure["known"]] == ["mlc-ai/xgrammar#800"]
    assert "U+0011" in failure["wrong_answers"][0]["summary"]
