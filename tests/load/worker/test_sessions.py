"""Sessions in a real Locust child: live answers, tool loops, branches, and what a failed turn costs."""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from loadchaos.core import typed_json
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.model import Facts
from loadchaos.core.session_ids import place_of
from loadchaos.core.typed_json import from_json
from loadchaos.load import request_builder
from loadchaos.load.registry import traffic_registry
from loadchaos.load.wire.answer_reader import AnswerReader, AnswerRules
from loadchaos.load.wire.contract import AnswerContract
from loadchaos.load.wire.request import Request
from loadchaos.load.wire.sockets import Slot
from loadchaos.load.worker.dispatcher import Control
from loadchaos.load.worker.sessions import Hands, SessionRun
from loadchaos.load.worker.worker_plan import WorkerPlan
from loadchaos.profile.profile import from_mapping
from loadchaos.profile.run_plan import RunPlan
from loadchaos.profile.steps import of_phase
from loadchaos.run import rebuild
from tests.http_server import Asked, Handler, serving
from tests.load.wire.requests import end_row
from tests.load.worker.conftest import Child

CALL = {
    "index": 0,
    "id": "call_a",
    "type": "function",
    "function": {"name": "get_weather_0", "arguments": '{"place":"x"}'},
}
BAD_CALL = {**CALL, "function": {"name": "get_weather_0", "arguments": "not JSON"}}


@dataclass
class Scripted:
    """A server whose answer to a request is chosen by the request."""

    choose: Callable[[str, dict[str, Any]], object]
    url: str = ""
    bodies: dict[str, dict[str, Any]] = field(default_factory=dict)


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    with contextlib.ExitStack() as servers:

        def start(answer: Callable[[str, dict[str, Any]], object]) -> Scripted:
            made = Scripted(answer)
            made.url = servers.enter_context(serving(_handler(made)))
            return made

        yield start


def _handler(scripted: Scripted) -> type[Handler]:
    class Choosing(Handler):
        def reply(self, asked: Asked) -> None:
            body, name = asked.json(), self.headers["X-Request-Id"]
            scripted.bodies[name] = body
            answer, n = scripted.choose(name, body), len(scripted.bodies)
            if isinstance(answer, int):
                self.answer(answer, {"error": {"message": "boom", "code": answer}})
                return
            self.begin_stream()
            delta = {"content": answer} if isinstance(answer, str) else {"tool_calls": [answer]}
            self.event({"id": f"x{n}", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            if answer == "cut":
                self.close_connection = True
                return
            self.event({"id": f"x{n}", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            self.event({"choices": [], "usage": {"prompt_tokens": 50, "completion_tokens": 1}})
            self.end_stream()

    return Choosing


def traffic(name: str, more: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    payload = {"conversation": {"answers": "live", "question": 8, **options}, **(more or {})}
    return {"name": name, "payload": payload, "output": {"max": 8}}


def ends(child: Child) -> list[dict[str, Any]]:
    return sorted((r for r in child.rows("conversation") if r["what"] == "end"), key=lambda r: r["step"])


def last_of(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["role"])


def test_session_sends_answers_back_loops_over_tools_and_branches(
    child: Child, scripted: Callable[..., Scripted]
) -> None:
    """One run; its bodies are built again from plan and ledger, as replay and incidents do."""

    def answer(name: str, body: dict[str, Any]) -> object:
        asked = sum(m["role"] == "tool" for m in body["messages"])
        return CALL if "tools" in body and asked < 2 and last_of(body) != "assistant" else f"answer to {name}"

    server = scripted(answer)
    kinds = [
        traffic("agent", {"tools": {"count": 2}}, turns=2, tool_result=5, think="1ms"),
        traffic("tree", turns=3, branches={"count": 3, "after": 1}),
    ]
    child.plan(server, [{"users": 3, "requests": 8}], traffic=kinds)
    assert child.run() == 0, child.log()
    rows = ends(child)
    assert len(rows) == 8
    assert {r["traffic"] for r in rows} == {"agent", "tree"}
    for row in rows:
        expected = (2, 4, 2) if row["traffic"] == "agent" else (7, 7, 0)
        assert (row["planned_turns"], row["requests"], row["tool_calls"]) == expected
        assert (row["end"], row["turns"], row["turns_lost"]) == ("finished", row["planned_turns"], 0)
    sent = {r["id"]: r for r in child.rows("begin")}
    assert len(sent) == len(server.bodies) == sum(r["requests"] for r in rows)
    for name, body in server.bodies.items():
        for said in (m["content"] for m in body["messages"] if m["role"] == "assistant" and m["content"]):
            earlier = said.removeprefix("answer to ")
            assert place_of(earlier).first == place_of(name).first
            assert place_of(earlier).branch in (0, place_of(name).branch)
    assert max(Counter(place_of(n).branch for n in sent).items()) == (3, sum(r["traffic"] == "tree" for r in rows) * 2)

    plan = json.loads((child.folder / "plan.json").read_text())
    profile = from_mapping(plan["profile"], traffic_registry())
    steps = {s.index: s for s in of_phase(profile, plan["seed"], 0)}
    facts = typed_json.from_json(Facts, json.loads((child.folder / "facts.json").read_text()))
    answers = rebuild.answers_of(RunFolder(child.folder), sent)
    for name, row in sent.items():
        step = rebuild.sent_step(steps[row["step"]], facts, name, answers)
        assert step is not None
        assert json.loads(request_builder.build(step, facts).body) == server.bodies[name]


def test_session_loses_all_turns_after_a_bad_answer_and_the_others_go_on(
    child: Child, scripted: Callable[..., Scripted]
) -> None:
    """The server counts 50 prompt tokens always: of a longer history it has dropped some."""

    def answer(name: str, body: dict[str, Any]) -> object:
        place = place_of(name)
        if "tools" in body:
            return BAD_CALL
        if len(body["messages"]) == 3 and place.branch != 1:
            return {0: 500, 1: "cut"}.get(int(place.first.rsplit("-", 1)[1]) % 3, "fine")
        return "fine"

    server = scripted(answer)
    kinds = [
        traffic("talk", turns=4, question=40),
        traffic("tree", turns=3, branches={"count": 2, "after": 1}),
        traffic("bad", {"tools": {"count": 1}}, turns=2),
    ]
    child.plan(server, [{"users": 3, "requests": 24}], traffic=kinds)
    facts = json.loads((child.folder / "facts.json").read_text())
    text = {"overhead": 10, "words": [[" a", 1], [" b", 1], [" c", 1]], "unit": " a", "source": "tokenize"}
    (child.folder / "facts.json").write_text(json.dumps({**facts, "text": text}))
    assert child.run() == 0, child.log()
    found: dict[Any, set[Any]] = {}
    for r in ends(child):
        key = r["traffic"] if r["traffic"] == "bad" else (r["traffic"], r["step"] % 3)
        found.setdefault(key, set()).add(
            (r["end"], r["why"], r["turns"], r["turns_lost"], r["requests"], r["bad_calls"])
        )
    assert found == {
        ("talk", 0): {("lost", "http_error", 1, 3, 2, 0)},
        ("talk", 1): {("lost", "reset", 1, 3, 2, 0)},
        ("talk", 2): {("finished", "", 4, 0, 4, 0)},
        ("tree", 0): {("lost", "http_error", 3, 2, 4, 0)},
        ("tree", 1): {("lost", "reset", 3, 2, 4, 0)},
        ("tree", 2): {("finished", "", 5, 0, 5, 0)},
        "bad": {("finished", "", 2, 0, 2, 2)},
    }
    counted = {
        (place_of(r["id"]).number, r["planned_tokens"], r["length_mismatch"])
        for r in child.rows("end") if r["traffic"] == "talk" and r["outcome"] == "ok"
    }  # fmt: skip
    assert counted == {(0, 50, False), (1, 74, True), (2, 110, True), (3, 146, True)}


FACTS = Facts(base_url="http://h", admin_url="http://h", dialect="vllm", model="m")


def runner(
    folder: Path,
    send: Callable[[Request, Control], EndRow],
    more: dict[str, Any] | None = None,
    call: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Any, list[Any]]:
    """Run one session with replies that `send` gives: (last reply, rows)."""
    profile = {"name": "t", "traffic": [traffic("talk", more, **options)], "load": [{"users": 1, "requests": 1}]}
    data = {"profile": profile, "seed": 1, "base_url": "http://h", "folder": str(folder), "api_key_env": "KEY"}
    plan = WorkerPlan(from_json(RunPlan, data), FACTS, 0, {"KEY": "sk-of-ours-1234"})
    control, rows = Control(Tail(folder / "control.jsonl")), list[Any]()
    answer = AnswerReader(AnswerRules(contract=AnswerContract(), answers=1), asked_stream=False, declared_stream=False)
    message = {"content": "fine, sk-of-ours-1234", **({"tool_calls": [call]} if call else {})}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    answer.feed(1, json.dumps(body).encode())
    answer.close(2, complete=True)

    def sent(request: Request, _due_ns: int, _slot: Any, _least: int | None) -> tuple[EndRow, AnswerReader]:
        return send(request, control), answer

    first = plan.build_request(next(of_phase(plan.profile, 1, 0)))
    hands = Hands(sent, rows.append, lambda: Slot(plan.target))
    return SessionRun(plan, control, hands, first).run(5, cast("Any", None)), rows


def test_session_that_is_stopped_was_left_and_not_lost(tmp_path: Path) -> None:
    def send(_request: Request, control: Control) -> EndRow:
        control.apply("stop")
        return end_row("ok")

    _, rows = runner(tmp_path, send, turns=3, think="10m")
    assert [r["row"] for r in rows] == ["conversation", "answer", "conversation"]
    assert (rows[-1]["end"], rows[-1]["why"], rows[-1]["turns"], rows[-1]["turns_left"], rows[-1]["turns_lost"]) == (
        "left", "stopped", 1, 2, 0,
    )  # fmt: skip


def test_session_whose_next_turn_is_due_while_the_server_is_down_is_lost(tmp_path: Path) -> None:
    def send(_request: Request, control: Control) -> EndRow:
        control.apply("pause")
        return end_row("ok")

    _, rows = runner(tmp_path, send, turns=3)
    assert (rows[-1]["end"], rows[-1]["why"], rows[-1]["turns"], rows[-1]["turns_lost"]) == (
        "lost",
        "server_down",
        1,
        2,
    )


def test_session_that_the_client_aborts_was_left(tmp_path: Path) -> None:
    _, rows = runner(tmp_path, lambda _wire, _control: end_row("aborted"), turns=3)
    assert (rows[-1]["end"], rows[-1]["why"], rows[-1]["turns_left"]) == ("left", "aborted", 3)


def test_session_without_room_for_its_next_turn_is_cut(tmp_path: Path) -> None:
    replies = iter(
        [end_row("ok", prompt_tokens=20, completion_tokens=8), end_row("ok", prompt_tokens=90, completion_tokens=8)]
    )
    _, rows = runner(tmp_path, lambda _wire, _control: next(replies), turns=9, tokens=128)
    end = rows[-1]
    assert (end["end"], end["turns"], end["turns_cut"], end["planned_turns"], end["requests"]) == (
        "cut",
        2,
        7,
        9,
        2,
    )


def test_session_cut_in_a_loop_of_tools_has_an_unanswered_question(tmp_path: Path) -> None:
    reply = end_row("ok", prompt_tokens=400, completion_tokens=8)
    tools = {"tools": {"count": 1}}
    _, rows = runner(tmp_path, lambda _wire, _control: reply, tools, CALL, turns=2, tool_result=200, tokens=600)
    end = rows[-1]
    assert (end["end"], end["turns"], end["turns_cut"], end["requests"], end["tool_calls"]) == ("cut", 0, 2, 1, 1)


def branched(folder: Path, *replies: EndRow, tokens: int) -> tuple[Any, ...]:
    """End of a session of 2 turns and 3 continuations with 2 turns each, by ids of its requests."""
    sent: list[str] = []

    def send(request: Request, _control: Control) -> EndRow:
        sent.append(request.id.removeprefix(place_of(request.id).first))
        return replies[min(len(sent), len(replies)) - 1]

    _, rows = runner(folder, send, turns=4, branches={"count": 3, "after": 2}, tokens=tokens)
    end = rows[-1]
    return sent, end["end"], end["turns"], end["turns_cut"], end["turns_lost"], end["planned_turns"]


def test_session_without_room_for_its_continuations_sends_none(tmp_path: Path) -> None:
    full = end_row("ok", prompt_tokens=90, completion_tokens=30)
    small = end_row("ok", prompt_tokens=20, completion_tokens=8)
    assert branched(tmp_path, small, full, tokens=128) == (["", "-r1"], "cut", 2, 6, 0, 8)


def test_session_counts_the_cut_turns_of_all_continuations(tmp_path: Path) -> None:
    replies = [end_row("ok", prompt_tokens=20, completion_tokens=8)] * 2
    found = branched(tmp_path, *replies, end_row("ok", prompt_tokens=90, completion_tokens=30), tokens=128)
    assert found == (["", "-r1", "-b1r1", "-b2r1", "-b3r1"], "cut", 5, 3, 0, 8)


def test_session_estimates_its_prompts_where_the_server_reports_no_usage(tmp_path: Path) -> None:
    sent: list[int] = []

    def send(_request: Request, _control: Control) -> EndRow:
        sent.append(100)
        return end_row("ok", chunks=100)

    _, rows = runner(tmp_path, send, turns=9, tokens=512)
    end = rows[-1]
    assert (end["end"], end["turns_lost"], end["turns_cut"] + end["turns"]) == ("cut", 0, 9)
    assert 300 <= sum(sent) <= 512


def test_session_records_the_answer_it_sends_back_without_our_key(tmp_path: Path) -> None:
    bodies: list[Any] = []

    def send(request: Request, _control: Control) -> EndRow:
        bodies.append(json.loads(request.body))
        return end_row("ok")

    _, rows = runner(tmp_path, send, turns=2)
    (text,) = {r["text"] for r in rows if r["row"] == "answer"}
    assert text.startswith("fine, ")
    assert "sk-of-ours" not in text
    assert bodies[1]["messages"][1] == {"role": "assistant", "content": text}
