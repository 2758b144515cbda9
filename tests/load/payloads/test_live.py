import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from loadchaos.core.errors import ProfileError
from loadchaos.core.model import Facts, Output
from loadchaos.core.rng import Rng
from loadchaos.core.session_ids import place_of, suffix
from loadchaos.load.payloads import conversation, live, tools
from loadchaos.load.payloads.live import History, SentBack, Session, Think
from loadchaos.load.registry import traffic_registry
from loadchaos.load.request_builder import build
from loadchaos.load.wire.contract import ToolCall
from loadchaos.load.wire.request import Request
from loadchaos.profile.profile import from_mapping
from tests.load.payloads.conftest import Steps, messages

CALL = SentBack("", (ToolCall("get_weather_0", '{"place":"x"}', "call_7"),))


def talk(**options: Any) -> dict[str, Any]:
    return {"conversation": conversation.Options.model_validate({"answers": "live", **options})}


def run(session: Session, facts: Facts, answers: Sequence[SentBack]) -> list[Request]:
    history, found = session.begin(), []
    for answer in answers:
        found.append(build(session.step_of(history), facts))
        history = session.answered(history, answer)
    return [*found, build(session.step_of(history), facts)]


def test_live_turn_repeats_the_servers_own_answers(facts: Facts, step: Steps) -> None:
    session = Session(step(talk(turns=3, question="20..60", system={"tokens": 30})), facts)
    requests = run(session, facts, [SentBack("first answer"), SentBack("second")])
    assert [m["role"] for m in messages(requests[2])] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert [m["content"] for m in messages(requests[2]) if m["role"] == "assistant"] == ["first answer", "second"]
    for before, after in pairwise(requests):
        assert messages(after)[: len(messages(before))] == messages(before)
    assert len({messages(r)[-1]["content"] for r in requests}) == 3
    assert [r.tokens for r in requests] == [None, None, None], "no template is known around a system prompt"


def test_live_first_prompt_without_system_has_its_exact_length(
    facts: Facts, step: Steps, counted: Callable[[Request], int]
) -> None:
    for n in range(10):
        request = build(step(talk(question="30..90"), n), facts)
        assert request.tokens == counted(request)
        assert 39 <= request.tokens <= 99


def test_live_sessions_share_system_prompts_in_turn(facts: Facts, step: Steps) -> None:
    payload = talk(system={"tokens": 40, "different": 2})
    systems = [messages(build(step(payload, n), facts))[0]["content"] for n in range(6)]
    assert systems[0] == systems[2] == systems[4] != systems[1] == systems[3]
    questions = {messages(build(step(payload, n), facts))[1]["content"] for n in range(6)}
    assert len(questions) == 6


def test_live_tool_calls_get_results_until_the_last_round(facts: Facts, step: Steps) -> None:
    payload = {**talk(turns=2, tool_rounds=2, tool_result=12), "tools": tools.Options.model_validate({"count": 2})}
    first, second, third, after = run(Session(step(payload), facts), facts, [CALL, CALL, SentBack("done")])
    assert [m["role"] for m in messages(second)] == ["user", "assistant", "tool"]
    called, result = messages(second)[1:]
    assert called["tool_calls"] == [
        {"id": "call_7", "type": "function", "function": {"name": "get_weather_0", "arguments": '{"place":"x"}'}}
    ]
    assert (called["content"], result["tool_call_id"]) == (None, "call_7")
    assert result["content"].strip()
    assert [json.loads(r.body)["tool_choice"] for r in (first, second, third, after)] == [
        "auto",
        "auto",
        "none",
        "auto",
    ]
    assert [m["role"] for m in messages(third)] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [m["role"] for m in messages(after)][-2:] == ["assistant", "user"]
    assert json.loads(first.body)["tools"] == json.loads(after.body)["tools"]


def test_live_call_after_the_last_round_is_no_call(facts: Facts, step: Steps) -> None:
    payload = {**talk(turns=2, tool_rounds=1), "tools": tools.Options()}
    session = Session(step(payload), facts)
    history = session.answered(session.answered(session.begin(), CALL), CALL)
    assert (history.question, history.round) == (1, 0)
    assert b"tool_calls" not in history.messages[-1]


def test_live_required_tools_have_a_contract_until_the_last_round(facts: Facts, step: Steps) -> None:
    payload = {**talk(tool_rounds=1), "tools": tools.Options.model_validate({"choice": "required"})}
    first, last = run(Session(step(payload), facts), facts, [CALL])
    assert first.contract is not None
    assert last.contract is not None
    assert first.contract.must_call
    assert not last.contract.must_call
    assert last.contract.violation("text", []) is None


def test_live_branches_continue_one_history_in_different_ways(facts: Facts, step: Steps) -> None:
    session = Session(step(talk(turns=3, branches={"count": 2, "after": 1})), facts)
    assert (session.planned_turns, session.fork) == (1 + 2 * 2, 1)
    history = session.answered(session.begin(), SentBack("root"))
    one, two = (build(session.step_of(replace(history, branch=b)), facts) for b in (1, 2))
    assert messages(one)[:-1] == messages(two)[:-1] == messages(build(session.step_of(history), facts))[:-1]
    assert messages(one)[-1] != messages(two)[-1]


def test_live_request_is_built_again_from_the_answers_before_it(facts: Facts, step: Steps) -> None:
    plan = step({**talk(turns=3, branches={"count": 2, "after": 1}, tool_rounds=2), "tools": tools.Options()}, 5)
    session = Session(plan, facts)
    history, sent, answers = session.begin(), {}, {}
    paths = [
        (0, [CALL, SentBack("root")]),
        (1, [SentBack("b1"), SentBack("b1 end")]),
        (2, [CALL, SentBack("b2"), SentBack("e")]),
    ]
    trunk = history
    for branch, texts in paths:
        history = trunk if not branch else replace(trunk, branch=branch)
        for number, answer in enumerate(texts, 1 if branch else 0):
            name = f"lc-ab-5{suffix(branch, number)}"
            sent[name], answers[name] = build(session.step_of(history), facts).body, answer
            history = session.answered(history, answer)
        trunk = trunk if branch else history
    assert list(sent) == [
        "lc-ab-5",
        "lc-ab-5-r1",
        *(f"lc-ab-5-b1r{n}" for n in (1, 2)),
        *(f"lc-ab-5-b2r{n}" for n in (1, 2, 3)),
    ]
    for name, body in sent.items():
        again = live.step_of_request(plan, facts, name, answers)
        assert again is not None
        assert build(again, facts).body == body
    del answers["lc-ab-5-r1"]
    assert live.step_of_request(plan, facts, "lc-ab-5-b2r2", answers) is None


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("lc-a-17", ("lc-a-17", 0, 0)),
        ("lc-a-17-r3", ("lc-a-17", 0, 3)),
        ("lc-a-17-b2r10", ("lc-a-17", 2, 10)),
        ("lc-b2-1000000017.2", ("lc-b2-1000000017.2", 0, 0)),
    ],
)
def test_session_id_is_read_back(name: str, place: tuple[str, int, int]) -> None:
    assert place_of(name) == place


def test_live_session_ends_before_its_context_is_full(facts: Facts, step: Steps) -> None:
    small = replace(facts, max_model_len=300)
    session = Session(step(talk(turns=9, question=50), output=Output(max=100)), small)
    begin = session.begin()
    after = session.answered(begin, SentBack("x"))
    assert session.fits(after, session.tokens_after(after, begin, 60))
    assert not session.fits(after, session.tokens_after(after, begin, 140))
    limited = Session(step(talk(turns=9, question=50, tokens=120)), facts)
    after = limited.answered(begin, SentBack("x"))
    assert not limited.fits(after, limited.tokens_after(after, begin, 60))


def test_live_first_question_fits_a_short_context(facts: Facts, step: Steps, counted: Callable[[Request], int]) -> None:
    request = build(step(talk(question=500), output=Output(max=100)), replace(facts, max_model_len=256))
    assert counted(request) <= 156


def test_live_first_question_leaves_room_for_the_definitions_of_tools(facts: Facts, step: Steps) -> None:
    payload = {**talk(question=2000), "tools": tools.Options.model_validate({"count": 4})}
    request = build(step(payload, output=Output(max=100)), replace(facts, max_model_len=2048))
    body = json.loads(request.body)
    assert facts.text is not None
    question = sum(dict(facts.text.words)[f" {word}"] for word in body["messages"][0]["content"].split())
    definitions = len(json.dumps(body["tools"])) / 3  # a usual tokenizer
    assert 1000 < question + definitions <= 2048 - 100 - 200


def test_live_least_tokens_are_those_we_wrote(facts: Facts, step: Steps) -> None:
    session = Session(step(talk(turns=3, question=50, system={"tokens": 100})), facts)
    history = session.answered(session.begin(), SentBack("x"))
    assert session.least_tokens(session.begin()) == 150 - 2 * 2
    assert session.least_tokens(history) == 200 - 2 * 4
    assert Session(session.step, replace(facts, text=None)).least_tokens(history) is None


@pytest.mark.parametrize("law", ["constant", "uniform", "exponential", "lognormal"])
def test_think_time_has_its_mean(law: str) -> None:
    rng = Rng(5)
    think = Think.model_validate({"mean": "2s", "law": law})
    drawn = [think.draw_s(rng) for _ in range(20_000)]
    assert statistics.fmean(drawn) == pytest.approx(2.0, rel=0.05)
    assert (statistics.pstdev(drawn) == 0) is (law == "constant")
    assert min(drawn) >= 0
    cut = Think.model_validate({"mean": "2s", "law": law, "most": "2500ms"})
    assert max(cut.draw_s(rng) for _ in range(1000)) <= 2.5


def test_think_time_is_a_duration_or_a_law() -> None:
    assert Think.model_validate("1500ms").describe() == "1 s 500 ms (constant)"
    assert math.isclose(Think.model_validate("1500ms").draw_s(Rng(1)), 1.5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"answers": "live", "parallel": 4}, "parallel goes with answers: made_up"),
        ({"think": "1s"}, "think goes with answers: live"),
        ({"answers": "live", "turns": "0..3"}, "1 to 1,000 turns were expected (got 0..3)"),
        ({"turns": "2..3"}, "a range of turns goes with answers: live"),
        ({"answers": "live", "turns": 2, "branches": {"count": 2, "after": 2}}, "branches.after has to be less"),
        ({"answers": "live", "question": 0}, "at least 1 token"),
        ({"answers": "live", "think": {"mean": "1s", "sigma": 2}}, "sigma has no effect with the law exponential"),
        ({"answers": "live", "branches": {"count": 1}}, "greater than 1"),
    ],
)
def test_live_options_refuse_what_has_no_meaning(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as e:
        conversation.Options.model_validate(options)
    assert words in str(e.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"payload": {"images": {}}}, "payload.images: a conversation with answers: live takes only tools, sampling"),
        ({"behaviour": {"pipeline": {"depth": 2}}}, "it cannot pipeline"),
        ({"endpoint": "messages"}, "conversations with answers: live go with endpoint: chat (got messages)"),
        (
            {"payload": {"conversation": {"answers": "live", "tool_rounds": 2}}},
            "has no effect without the payload tools",
        ),
    ],
)
def test_profile_refuses_what_a_session_cannot_go_with(change: dict[str, Any], words: str) -> None:
    payload = {"conversation": {"answers": "live"}, **change.get("payload", {})}
    traffic = {"name": "a", **change, "payload": payload}
    with pytest.raises(ProfileError) as e:
        from_mapping({"name": "t", "traffic": [traffic], "load": [{"users": 1, "requests": 1}]}, traffic_registry())
    assert words in str(e.value)


@pytest.mark.parametrize("line", ["turns_lost == 0", "session_e2e_p95 <= 60s", "a.session_e2e_max <= 1s"])
def test_profile_expects_figures_of_sessions_only_with_sessions(line: str) -> None:
    def profile(answers: str) -> dict[str, Any]:
        traffic = {"name": "a", "payload": {"conversation": {"answers": answers}}}
        return {"name": "t", "traffic": [traffic], "load": [{"users": 1, "requests": 1}], "expect": [line]}

    assert from_mapping(profile("live"), traffic_registry()).expect == (line,)
    with pytest.raises(ProfileError, match="needs sessions: a payload conversation with answers: live"):
        from_mapping(profile("made_up"), traffic_registry())


def test_live_history_is_no_option_of_a_profile(facts: Facts, step: Steps) -> None:
    plan = step(talk())
    later = Session(plan, facts).step_of(History(question=1))
    assert later.payload["conversation"].model_dump(mode="json", exclude_unset=True) == {"answers": "live"}
