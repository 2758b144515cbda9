import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.rare_failures import expected_tries, measure
from loadchaos.campaigns.minimise import minimiser, reductions, rewrite
from loadchaos.campaigns.minimise.candidate import Reduction, may_go, split_command
from loadchaos.campaigns.minimise.decider import SMALL, BudgetSpentError, Decision
from loadchaos.campaigns.minimise.full_cache import full_cache
from loadchaos.campaigns.minimise.leave_out import leave_out
from loadchaos.campaigns.minimise.minimiser import Minimised, minimise
from loadchaos.campaigns.minimise.reductions import flags, single_requests, traffic_kinds, windows
from loadchaos.campaigns.minimise.session import more_rounds
from loadchaos.campaigns.minimise.trials import patience
from loadchaos.campaigns.minimise.validate import ScriptRuns
from loadchaos.core.body_hash import store_body
from loadchaos.core.errors import OptionError
from loadchaos.core.stats import SequentialTest
from loadchaos.profile.request_trace import BODIES, RequestTrace, TraceHeader, TraceSend
from loadchaos.simulator.engine.engine import Engine
from loadchaos.simulator.engine.request import Batch
from loadchaos.simulator.engine.types import EngineConfig, EngineFault, EngineRequest
from tests.campaigns.states import decider_of
from tests.simulator.virtual_time import closed_loop

LEVELS = (("windows", windows), ("requests", single_requests), ("flags", flags))
OF_REQUESTS = tuple(level for level in minimiser.LEVELS if level[1] in (traffic_kinds, windows, single_requests))


def candidate(requests: int, flag_names: Sequence[str] = ("--port", "--a", "--b", "--c")) -> Reduction:
    sends = tuple(TraceSend(id=f"r{i}", at_s=float(i)) for i in range(requests))
    trace = RequestTrace(TraceHeader(event="trace", version=1), sends)
    return Reduction(trace, ("serve",), tuple((name,) for name in flag_names))


class Model:
    """A server that fails with probability p in each round that has the needed requests and flags."""

    def __init__(self, p: float, needed: set[str], flag: str, seed: int) -> None:
        self.p, self.needed, self.flag = p, needed, flag
        self.rng = random.Random(seed)
        self.tries = 0

    def fails_with(self, found: Reduction) -> bool:
        return self.needed <= {s.id for s in found.trace.sends} and (self.flag,) in found.flags

    async def attempt(self, found: Reduction) -> bool | None:
        self.tries += 1
        return self.fails_with(found) and self.rng.random() < 1 - (1 - self.p) ** found.rounds


def minimised(
    attempt: Callable[[Reduction], Awaitable[bool | None]],
    whole: Reduction | None = None,
    levels: Any = LEVELS,
    **more: Any,
) -> Minimised:
    """The smallest of 40 requests, or of another whole, that fails."""
    found = asyncio.run(minimise(whole or candidate(40), decider_of(attempt), levels, **more))
    assert found is not None
    return found


def reduced(model: Model, file: Path | None = None, requests: int = 40) -> Minimised | None:
    decider = decider_of(model.attempt, file)
    return asyncio.run(minimise(candidate(requests), decider, LEVELS, most_rounds=400))


@pytest.mark.parametrize("needed", [{0}, {39}, {0, 20, 39}, {1, 9, 17, 33}, set(range(8))])
def test_leave_out_keeps_the_needed_items(needed: set[int]) -> None:
    tests = 0

    async def fails(kept: Sequence[int], _: Sequence[int]) -> bool:
        nonlocal tests
        tests += 1
        return needed <= set(kept)

    assert set(asyncio.run(leave_out(range(40), fails))) == needed
    assert tests <= 40 * len(needed)


@pytest.mark.parametrize("p", [1.0, 0.3, 0.1, 0.02])
def test_minimiser_holds_in_19_of_20_seeds(p: float) -> None:
    """The result still fails, and is small, for deterministic and for rare failures."""
    still_fails = minimal = tries = 0
    for seed in range(20):
        rng = random.Random(seed)
        needed = {f"r{i}" for i in rng.sample(range(40), 2)}
        model = Model(p, needed, "--b", seed)
        found = reduced(model)
        tries += model.tries
        still_fails += found is not None and model.fails_with(found.candidate)
        minimal += found is not None and found.candidate.requests <= 4 and len(found.candidate.flags) <= 3
    assert still_fails >= 19
    assert minimal >= 18
    # Every decision needs at least as many tries as Wald's bound; about 25 decisions are made.
    raised = min(0.95, 0.7 * 0.9)
    bound = expected_tries(SequentialTest(raised, raised / 10, 0.1), raised / 10)
    assert tries / 20 <= 60 * max(1.0, bound)


@pytest.mark.parametrize("p", [1.0, 0.1])
def test_minimiser_finds_the_two_requests_that_kill_the_engine_in_virtual_time(p: float) -> None:
    cost = measure(p, seed=3)
    assert cost.holds
    assert cost.minimal
    assert cost.tries <= 2 * cost.least_tries


def test_minimiser_of_a_failure_that_always_comes_needs_two_tries_a_decision() -> None:
    model = Model(1.0, {"r39"}, "--b", seed=0)
    found = reduced(model)
    assert found is not None
    assert [s.id for s in found.candidate.trace.sends] == ["r39"]
    assert found.candidate.flags == (("--port",), ("--b",))
    assert found.candidate.rounds == 1
    assert model.tries == sum(d.tries for level in found.levels for d in level[3]) + 2
    for name, _, _, decisions in found.levels:
        assert all(d.tries == (1 + (name == "flags" or (d.fails and d.requests <= SMALL))) for d in decisions)


@pytest.mark.parametrize(
    ("needed", "tries"),
    [
        ({"r319"}, 1),  # the newest request
        ({"r7"}, 2),  # the oldest one that was in flight when the server died
        ({"r317", "r319"}, 3),
        ({"r7", "r316", "r310"}, 4),
    ],
)
def test_minimiser_tries_the_likeliest_requests_first(needed: set[str], tries: int) -> None:
    model, whole = Model(1.0, needed, "--a", seed=0), candidate(320)
    in_flight = {7, *range(310, 320)}
    sends = tuple(
        s.model_copy(update={"outcome": "reset" if n in in_flight else "ok"}) for n, s in enumerate(whole.trace.sends)
    )
    whole = replace(whole, trace=replace(whole.trace, sends=sends))
    found = minimised(model.attempt, whole, (), scripts=True)
    assert needed <= {s.id for s in found.candidate.trace.sends}
    assert found.candidate.requests <= 11
    assert found.candidate.as_script
    assert model.tries == tries + (found.candidate.requests <= SMALL)
    assert all(s.at_s == 0 and not s.after for s in found.candidate.trace.sends)


def test_minimiser_leaves_out_old_requests_before_it_tries_each_kind_of_traffic() -> None:
    model, sent = Model(1.0, {"r300", "r319"}, "--a", seed=0), 0

    async def attempt(found: Reduction) -> bool | None:
        nonlocal sent
        sent += found.requests
        return await model.attempt(found)

    whole = candidate(320)
    kinds = tuple(s.model_copy(update={"traffic": f"t{n % 4}"}) for n, s in enumerate(whole.trace.sends))
    mixed = replace(whole, trace=replace(whole.trace, sends=kinds))
    found = minimised(attempt, mixed, OF_REQUESTS)
    assert found.candidate.requests == 2
    assert sent <= 5 * whole.requests  # the whole and its windows twice each, and small candidates


@pytest.mark.parametrize("longest", [1000, 96], ids=["longer answers", "on a smaller server"])
def test_minimiser_keeps_a_cache_full_with_fewer_requests(longest: int, tmp_path: Path) -> None:
    """The engine dies when it computes a request again that it preempted. Each request that is left out frees KV blocks."""
    words = [{"role": "user", "content": f"{'word ' * 64}"}]
    body = store_body(tmp_path / BODIES, orjson.dumps({"messages": words, "max_tokens": 96, "ignore_eos": True}))
    sends = tuple(TraceSend(id=f"r{n}", at_s=n * 0.05, body=body, outcome="stream_error") for n in range(16))
    flags = (("--num-gpu-blocks-override", "128"), ("--max-model-len=2048",))
    whole = Reduction(RequestTrace(TraceHeader(event="trace", version=1), sends, folder=tmp_path), ("serve",), flags)

    def dies(batch: Batch, _: EngineConfig) -> None:
        if any(request.epoch == epoch > 0 for request, epoch, *_ in batch.planned):
            raise EngineFault("a preempted request came again", ())

    async def attempt(found: Reduction) -> bool | None:
        given = {name: int(value) for name, value in (" ".join(f).replace("=", " ").split() for f in found.flags)}
        blocks, length = given.get("--num-gpu-blocks-override", 1000), given.get("--max-model-len", 4096)
        bodies = [orjson.loads(found.trace.body_file(s).read_bytes()) for s in found.trace.sends]
        if length > blocks * 16 or any(b["max_tokens"] > longest or rewrite.words(b) > longest for b in bodies):
            return False
        config = EngineConfig(num_gpu_blocks=blocks, max_num_seqs=64, num_speculative_tokens=0, max_model_len=length)
        engine = Engine(config)
        engine._rules.before_step.append(dies)
        requests = [
            EngineRequest(str(n), rewrite.words(b) + 1, b["max_tokens"], b["max_tokens"] if "ignore_eos" in b else 0)
            for n, b in enumerate(bodies)
        ]
        return closed_loop(engine, iter(requests), users=len(requests)).fault is not None

    found = minimised(attempt, whole, minimiser.LEVELS, scripts=True)
    assert found.candidate.requests <= 4
    assert found.tries < 70
    assert bool(found.candidate.resized(whole)) == (longest == 96)


def mixed_answers(folder: Path, capacity: int, longest: int) -> Reduction:
    """36 requests for 200 or 8 tokens, of a server with this KV cache and context."""
    texts = [[{"role": "user", "content": f"text {n}"}] for n in range(36)]
    bodies = [{"messages": text, "max_tokens": 200 if n % 4 else 8} for n, text in enumerate(texts)]
    sends = tuple(
        TraceSend(id=f"r{n}", at_s=n * 0.05, traffic="new" if n % 4 == 0 else "again", outcome="stream_error",
                  body=store_body(folder / BODIES, orjson.dumps(b)))
        for n, b in enumerate(bodies)
    )  # fmt: skip
    header = TraceHeader(event="trace", version=1, server={"capacity_tokens": capacity, "max_model_len": longest})
    return Reduction(RequestTrace(header, sends, folder=folder), ("serve",), (("--port", "1"),))


@pytest.mark.parametrize(("capacity", "longest", "tried"), [(4608, 4096, 4), (8000, 2048, 4), (131_072, 16_384, 0)])
def test_cache_is_filled_within_the_context_and_where_that_takes_no_minutes(
    capacity: int, longest: int, tried: int, tmp_path: Path
) -> None:
    answers: list[int] = []

    async def fails(found: Reduction) -> bool:
        answers.append(max(reductions.body_of(found.trace, s)["max_tokens"] for s in found.trace.sends))
        return False

    asyncio.run(full_cache(mixed_answers(tmp_path, capacity, longest), fails))
    assert len(answers) == tried
    assert all(capacity / 10 < n <= 0.91 * longest for n in answers)


def test_minimiser_replaces_many_requests_by_a_few_that_fill_the_cache(tmp_path: Path) -> None:
    """It fails where a prompt that was seen before comes as the newest into a full KV cache, or nearly as recorded."""
    whole = mixed_answers(tmp_path, 4608, 4096)
    rng = random.Random(4)

    async def attempt(found: Reduction) -> bool | None:
        sent = [(s, reductions.body_of(found.trace, s)) for s in found.trace.sends]
        begin_s = {s.id: s.after[0].delay_s if s.after else s.at_s for s, _ in sent}
        for n, (victim, body) in enumerate(sent):
            seen = any(b["messages"] == body["messages"] and not s.after for s, b in sent[:n])
            older = sum(b["max_tokens"] for s, b in sent[:n] if begin_s[s.id] < begin_s[victim.id])
            newer = [s for s in begin_s if begin_s[s] > begin_s[victim.id]]
            if victim.after and seen and 4608 <= older <= 3 * 4096 and len(newer) >= 2 and body["max_tokens"] >= 1000:
                return rng.random() < 1 - 0.7**found.rounds
        return found.requests >= 33 and sum(b["max_tokens"] for _, b in sent) >= 4608

    found = minimised(attempt, whole, minimiser.LEVELS, scripts=True)
    assert found.candidate.requests <= 7
    assert found.candidate.rounds == 5


def test_minimiser_raises_a_rare_failure_by_repetition() -> None:
    found = reduced(Model(0.05, {"r3", "r7"}, "--a", seed=1))
    assert found is not None
    assert found.candidate.rounds > 10
    assert found.p >= 0.5


@pytest.mark.parametrize(
    ("rounds", "reproduced", "runs", "expected"),
    [(1, 3, 3, 1), (1, 4, 8, 1), (1, 3, 8, 5), (5, 2, 8, 41), (1, 1, 8, 18)],
)
def test_script_that_reproduces_rarely_gets_more_rounds(rounds: int, reproduced: int, runs: int, expected: int) -> None:
    assert more_rounds(rounds, ScriptRuns(reproduced, runs)) == expected


def test_slow_start_with_flags_that_have_worked_is_waited_for() -> None:
    assert patience(1200.0, None, known_flags=False) == 1200.0
    assert patience(1200.0, 25.0, known_flags=False) == 75.0
    assert patience(1200.0, 2.0, known_flags=False) == 30.0
    assert patience(1200.0, 25.0, known_flags=True) == 1200.0


def test_minimiser_gives_up_on_a_failure_that_does_not_come() -> None:
    assert reduced(Model(0.0, {"r1"}, "--a", seed=0)) is None


def test_minimiser_that_was_killed_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "minimise.json"
    model = Model(1.0, {"r5", "r30"}, "--b", seed=0)

    class KilledError(Exception):
        pass

    async def killed(found: Reduction) -> bool | None:
        if model.tries == 9:
            raise KilledError
        return await model.attempt(found)

    with pytest.raises(KilledError):
        asyncio.run(minimise(candidate(40), decider_of(killed, file), LEVELS))
    before, fresh = model.tries, Model(1.0, {"r5", "r30"}, "--b", seed=0)
    again = reduced(fresh, file)
    whole = Model(1.0, {"r5", "r30"}, "--b", seed=0)
    reduced(whole)
    assert again is not None
    assert {s.id for s in again.candidate.trace.sends} == {"r5", "r30"}
    assert 0 <= fresh.tries - (whole.tries - before) <= 1  # the decision under way is made again


def test_minimiser_state_that_cannot_be_read_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "minimise.json").write_text("{")
    with pytest.raises(OptionError, match="start without --resume"):
        reduced(Model(1.0, {"r5"}, "--b", seed=0), tmp_path / "minimise.json")


def test_minimiser_without_time_keeps_the_smallest_so_far() -> None:
    model = Model(1.0, {"r39"}, "--b", seed=0)
    decider = decider_of(model.attempt)

    def spend(decision: Decision) -> None:
        if decision.requests == 10:
            decider._deadline_s = 0.0

    decider._report = spend
    found = asyncio.run(minimise(candidate(40), decider, LEVELS))
    assert found is not None
    assert found.out_of_time
    assert found.candidate.requests == 10


def test_candidate_that_cannot_be_tried_does_not_fail() -> None:
    async def attempt(found: Reduction) -> bool | None:
        return None if ("--c",) not in found.flags else True

    assert minimised(attempt, candidate(4)).candidate.flags == (("--port",), ("--c",))


@pytest.mark.parametrize(
    ("command", "head", "found"),
    [
        ("vllm serve M --port 8000 --a --b 1 2", "vllm serve M", (("--port", "8000"), ("--a",), ("--b", "1", "2"))),
        ("python -m vllm.x --model M -tp 2", "python -m vllm.x", (("--model", "M"), ("-tp", "2"))),
        ("serve M --seed -1", "serve M", (("--seed", "-1"),)),
        ("serve", "serve", ()),
    ],
)
def test_command_is_split_into_flags(command: str, head: str, found: tuple[tuple[str, ...], ...]) -> None:
    assert split_command(command.split()) == (tuple(head.split()), found)


def test_decisions_hold_for_another_port() -> None:
    one, other = candidate(2, ("--a",)), candidate(2, ("--a",))
    with_port = [Reduction(c.trace, c.command, (*c.flags, ("--port", p))).key() for c, p in ((one, "1"), (other, "2"))]
    assert with_port[0] == with_port[1] == one.key()
    assert one.key() != candidate(2, ("--b",)).key()


def test_address_of_a_server_is_never_left_out() -> None:
    assert [may_go((f,)) for f in ("--port", "--host=0.0.0.0", "--max-num-seqs")] == [False, False, True]


class SlowScripts(Model):
    """A server on which scripts never fail and take long; the clock moves with each try."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, replay_s: float) -> None:
        super().__init__(1.0, {"r3"}, "--a", 0)
        self.now_s, self.replay_s, self.replays = 0.0, replay_s, 0
        monkeypatch.setattr("loadchaos.campaigns.minimise.decider.time.monotonic", lambda: self.now_s)

    async def attempt(self, found: Reduction) -> bool | None:
        self.now_s += 100.0 if found.as_script else self.replay_s
        self.replays += not found.as_script
        return not found.as_script and await super().attempt(found)


def test_minimiser_replays_the_whole_although_scripts_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SlowScripts(monkeypatch, replay_s=1.0)
    decider = decider_of(model.attempt, budget_s=2000.0)
    found = asyncio.run(minimise(candidate(40), decider, LEVELS, scripts=True))
    assert found is not None
    assert found.candidate.requests < 40


def test_minimiser_whose_budget_ends_before_the_whole_was_tried_says_nothing_about_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = SlowScripts(monkeypatch, replay_s=1.0)
    decider = decider_of(model.attempt, budget_s=150.0)
    with pytest.raises(BudgetSpentError):
        asyncio.run(minimise(candidate(40), decider, LEVELS, scripts=True))
    assert model.replays == 0


def test_decisions_of_an_older_rule_are_refused(tmp_path: Path) -> None:
    reduced(Model(1.0, {"r3"}, "--a", 0), tmp_path / "minimise.json")
    text = (tmp_path / "minimise.json").read_text()
    (tmp_path / "minimise.json").write_text(text.replace('"schema": 3', '"schema": 2'))
    with pytest.raises(OptionError, match="another version"):
        reduced(Model(1.0, {"r3"}, "--a", 0), tmp_path / "minimise.json")
