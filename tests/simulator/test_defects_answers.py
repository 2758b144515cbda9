from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from loadchaos.simulator.defects import DEFECTS
from loadchaos.simulator.engine.answers import AnswerText
from loadchaos.simulator.engine.engine import Engine
from loadchaos.simulator.engine.types import EngineConfig, EngineRequest, MMItem, RequestOutput

CONFIG = EngineConfig(num_speculative_tokens=1, draft_acceptance=0.7)


def outputs(config: EngineConfig, requests: Sequence[EngineRequest], every: int = 1) -> list[RequestOutput]:
    """All outputs when one request arrives every so many steps."""
    engine, waiting = Engine(config), list(requests)
    found: list[RequestOutput] = []
    for step in range(3_000):
        if waiting and step % every == 0:
            engine.add(waiting.pop(0))
        found += engine.step().outputs if engine.has_work else []
    return found


def with_defect(name: str, **config: Any) -> EngineConfig:
    return replace(CONFIG, defects=frozenset([name]), **config)


def prompts(n: int, tokens: int, answer: int = 40, **more: Any) -> list[EngineRequest]:
    return [EngineRequest(f"r{i}", tokens, answer, seed=i, **more) for i in range(n)]


def spoiled(found: Sequence[RequestOutput]) -> set[str]:
    return {o.request_id for o in found if o.fault or o.swapped_with or o.seen_image or o.used_adapter is not None}


@pytest.mark.parametrize("name", ["lost_token", "repeated_token"])
def test_token_is_spoiled_only_beside_a_prompt_and_with_drafts(name: str) -> None:
    fault = name.split("_")[0]
    found = outputs(with_defect(name), prompts(20, 100), every=5)
    assert {o.fault for o in found if o.fault} == {fault}
    assert len(spoiled(found)) >= 10
    assert spoiled(outputs(with_defect(name), prompts(5, 100), every=200)) == set(), "one request at a time"
    assert spoiled(outputs(with_defect(name, **DEFECTS[name].remedies), prompts(20, 100), every=5)) == set()


def test_streams_swapped_needs_two_prompts_that_end_in_one_step() -> None:
    engine = Engine(with_defect("streams_swapped"))
    for request in prompts(2, 50):
        engine.add(request)
    swaps = [(o.request_id, o.swapped_with) for _ in range(50) for o in engine.step().outputs if o.swapped_with]
    assert swaps == [("r0", "r1")]
    assert spoiled(outputs(with_defect("streams_swapped"), prompts(6, 50), every=20)) == set()
    cured = with_defect("streams_swapped", **DEFECTS["streams_swapped"].remedies)
    assert spoiled(outputs(cured, prompts(6, 50))) == set()


def test_stale_image_embedding_needs_two_images_in_one_step() -> None:
    def images(n: int) -> list[EngineRequest]:
        return [EngineRequest(f"r{i}", 300, 8, mm_items=(MMItem(f"h{i}", 200, 5),), seed=i) for i in range(n)]

    engine = Engine(with_defect("stale_image_embedding"))
    for request in images(3):
        engine.add(request)
    assert spoiled([o for _ in range(50) if engine.has_work for o in engine.step().outputs]) == {"r1", "r2"}
    assert spoiled(outputs(with_defect("stale_image_embedding"), images(3), every=50)) == set()
    together = images(3)
    found = outputs(with_defect("stale_image_embedding"), together, every=1)
    assert {o.seen_image for o in found} <= {None, "h0", "h1"}
    cured = with_defect("stale_image_embedding", **DEFECTS["stale_image_embedding"].remedies)
    assert spoiled(outputs(cured, images(3))) == set()


def test_schema_ignored_needs_a_grammar_accepted_drafts_and_another_request() -> None:
    def spoiled_of(config: EngineConfig, *, guided: bool = True, every: int = 1) -> set[str]:
        found = outputs(config, prompts(4, 50, guided=guided), every=every)
        assert all(o.fault in (None, "derailed") for o in found)
        return spoiled(found)

    broken = with_defect("schema_ignored")
    assert spoiled_of(broken) == {"r0", "r1", "r2", "r3"}
    assert spoiled_of(broken, guided=False) == set()
    assert spoiled_of(broken, every=200) == set(), "one request at a time"
    assert spoiled_of(with_defect("schema_ignored", **DEFECTS["schema_ignored"].remedies)) == set()


def with_adapters(*names: str) -> list[EngineRequest]:
    return [EngineRequest(f"r{i}", 50, 8, seed=i, adapter=name) for i, name in enumerate(names)]


def test_wrong_adapter_needs_two_prompts_with_different_adapters_in_one_step() -> None:
    def used(config: EngineConfig, *names: str, together: bool = True) -> dict[str, str | None]:
        engine, requests = Engine(config), with_adapters(*names)
        found: dict[str, str | None] = {}
        for wave in [requests] if together else [[r] for r in requests]:
            for request in wave:
                engine.add(request)
            while engine.has_work:
                found |= {o.request_id: o.used_adapter for o in engine.step().outputs if o.used_adapter is not None}
        return found

    broken = with_defect("wrong_adapter", max_loras=4)
    assert used(broken, "a", "b", "", "a") == {"r1": "a"}
    assert used(broken, "", "b") == {"r1": ""}
    assert used(broken, "a", "a", "") == {}
    assert used(broken, "a", "b", together=False) == {}
    assert used(replace(CONFIG, max_loras=4), "a", "b") == {}
    assert used(with_defect("wrong_adapter", **DEFECTS["wrong_adapter"].remedies), "a", "b", "c") == {}


def test_adapters_beyond_max_loras_wait_and_others_pass_them() -> None:
    engine = Engine(replace(CONFIG, max_loras=1))
    for request in with_adapters("a", "b", "a", ""):
        engine.add(request)
    first = [o.request_id for _ in range(300) if engine.has_work for o in engine.step().outputs if o.new_tokens]
    begun = list(dict.fromkeys(first))
    assert set(begun[:3]) == {"r0", "r2", "r3"}
    assert begun[3] == "r1"
    assert first.index("r1") > max(i for i, name in enumerate(first) if name in ("r0", "r2"))


@pytest.mark.parametrize(
    ("name", "tokens", "wrong"),
    [
        ("wrong_block_at_edge", 64, {"r1"}), ("wrong_block_at_edge", 63, set()), ("wrong_block_at_edge", 65, set()),
        ("prompt_taken_for_decode", 66, {"r1"}), ("prompt_taken_for_decode", 65, set()),
        ("prompt_taken_for_decode", 67, set()),
    ],
)  # fmt: skip
def test_prefix_defects_need_a_hit_and_a_length_at_an_edge(name: str, tokens: int, wrong: set[str]) -> None:
    same = prompts(2, tokens, 8, prefix_hashes=tuple(range(1, tokens // 16 + 1)))
    assert spoiled(outputs(with_defect(name, block_size=16), same, every=50)) == wrong
    assert spoiled(outputs(with_defect(name, block_size=16, **DEFECTS[name].remedies), same, every=50)) == set()


@pytest.mark.parametrize("size", [1, 3, 12])
def test_answer_text_loses_and_repeats_single_tokens(size: int) -> None:
    words = AnswerText(7).next_text(12).split()
    for fault, expected in (("lost", [*words[:4], *words[5:]]), ("repeated", [*words[:5], *words[4:]])):
        answer = AnswerText(7)
        answer.spoil(fault, after=4)  # type: ignore[arg-type]  # one of the two values
        assert "".join(answer.next_text(size) for _ in range(12 // size)).split() == expected


def test_answer_text_has_several_faults_at_their_places() -> None:
    words, answer = AnswerText(7).next_text(12).split(), AnswerText(7)
    answer.spoil("lost", after=2)
    answer.spoil("repeated", after=6)
    assert answer.next_text(12).split() == [*words[:2], *words[3:7], words[6], *words[7:]]


def test_poisoned_prefix_cache_spoils_later_hits_until_they_are_computed_anew() -> None:
    def wrong(config: EngineConfig) -> list[bool]:
        engine, found = Engine(config), []
        same, anew = (1, 2, 3, 4), (5, 6, 7, 8)
        for wave in ([("a", same), ("b", ())], [("hit", same)], [("anew", anew)], [("hit2", same)]):
            for name, hashes in wave:
                engine.add(EngineRequest(name, 66, 8, prefix_hashes=hashes))
            seen: set[str] = set()
            while engine.has_work:
                seen |= spoiled(engine.step().outputs)
            found.append(bool(seen))
        return found

    assert wrong(with_defect("poisoned_prefix_cache", block_size=16)) == [True, True, False, True]
    cured = with_defect("poisoned_prefix_cache", block_size=16, **DEFECTS["poisoned_prefix_cache"].remedies)
    assert wrong(cured) == [False] * 4
