"""Capacity search against the embedded engine, whose true capacity is known in virtual time.

`python -m bench.capacity [--seeds 20]` prints the table of docs/how-to/capacity.md. The truth of a configuration is the
highest rate at which half an hour of load meets the goal. The search sees only the rows that a run would write.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from loadchaos.analysis.capacity.result import Unit
from loadchaos.analysis.capacity.step_watch import StepWatch
from loadchaos.campaigns.capacity.search import CapacitySearch, SearchSettings
from loadchaos.campaigns.capacity.step_profile import step_plan, step_profile
from loadchaos.core.histogram import bucket
from loadchaos.core.typed_json import to_json
from loadchaos.load import registry
from loadchaos.profile import steps
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.simulator.engine.engine import Engine
from loadchaos.simulator.engine.limits import with_kv_blocks
from loadchaos.simulator.engine.types import EngineConfig, EngineRequest

S = 1_000_000_000
_BEAT_S = 0.25
_STEP_OVERHEAD_S = 6.0


@dataclass(frozen=True)
class CapacityCase:
    """A server, a traffic and a goal."""

    name: str
    flags: Mapping[str, Any]
    prompt: str
    output: str
    slo: Mapping[str, str]
    goal: float = 0.99
    by: Unit = "rate"


CASES = (
    CapacityCase("batch slots", {"max_num_seqs": 8}, "32..64", "16..32", {"ttft": "1s"}),
    CapacityCase("KV cache", {"num_gpu_blocks": 128}, "128..256", "16..64", {"ttft": "1s"}, 0.95),
    CapacityCase("prefill", {}, "1024..2048", "8..16", {"ttft": "1s"}, 0.95),
    CapacityCase("decode", {"num_speculative_tokens": 0}, "16..32", "32..64", {"tpot": "11.5ms"}, 0.95),
    CapacityCase(
        "decode, users", {"num_speculative_tokens": 0}, "16..32", "32..64", {"tpot": "11.5ms"}, 0.95, "concurrency"
    ),
)


def profile_of(case: CapacityCase) -> Profile:
    """The profile that a user would give."""
    return from_mapping(
        {
            "name": "bench", "slo": dict(case.slo), "load": [{"rate": "1/s", "law": "poisson", "for": "1m"}],
            "traffic": [{"name": "text", "payload": {"text": {"tokens": case.prompt}}, "output": {"exact": case.output}}],
        },
        registry.full_registry(),
    )  # fmt: skip


@dataclass
class _Answer:
    due_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    tokens: int = 0
    prompt: int = 0
    gaps: dict[int, int] = field(default_factory=dict)
    gap_s: float = 0.0


class VirtualStep:
    """One step of a search: the rows of a run, in virtual time."""

    def __init__(self, case: CapacityCase, profile: Profile, seed: int) -> None:
        self._engine = Engine(with_kv_blocks(EngineConfig(**{"seed": seed, **case.flags})))
        self._profile, self._seed, self._case = profile, seed, case
        self.now_s = 0.0
        self._answers: dict[str, _Answer] = {}
        self._next_beat_s = 0.0

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield rows until the load ends; the caller may stop before."""
        phase = self._profile.load[0]
        found = steps.of_phase(self._profile, self._seed, 0)
        yield {"row": "load", "what": "begin", "at_ns": 0}
        waiting = next(found, None)
        users = phase.slots if phase.kind == "closed" else 0
        until_s = phase.for_ or 0.0
        while True:
            while waiting is not None and self._is_due(waiting, users, until_s):
                yield self._begin(waiting)
                waiting = next(found, None)
            if users and self.now_s >= until_s:
                waiting = None
            if self._engine.has_work:
                yield from self._step()
            elif waiting is not None and waiting.due_s is not None:
                self.now_s = max(self.now_s, min(waiting.due_s, self._next_beat_s))
            elif waiting is None:
                return
            if self.now_s >= self._next_beat_s:
                yield from self._beat()

    def _is_due(self, step: Any, users: int, until_s: float) -> bool:
        if users:
            return len(self._answers) < users and self.now_s < until_s
        return bool(step.due_s <= self.now_s)

    def _begin(self, step: Any) -> dict[str, Any]:
        name = str(step.index)
        due_s = self.now_s if step.due_s is None else step.due_s
        tokens = step.payload["text"].tokens
        prompt = tokens.low + step.seed % (tokens.high - tokens.low + 1)
        output = step.output.exact
        self._answers[name] = _Answer(due_s, prompt=prompt)
        hashes = tuple((step.seed + n) & 0xFFFFFFFFFFFF for n in range(prompt // 16))
        self._engine.add(EngineRequest(name, prompt, output, output, (), hashes, step.seed & 0xFFFFFFFF))
        return {"row": "begin", "id": name, "at_ns": int(due_s * S), "due_ns": int(due_s * S)}

    def _step(self) -> Iterator[dict[str, Any]]:
        result = self._engine.step()
        self.now_s += max(result.duration_s, 1e-4)
        for output in result.outputs:
            found = self._answers.get(output.request_id)
            if found is None:
                continue
            if output.new_tokens and not found.tokens:
                found.first_s = self.now_s
            elif output.new_tokens:
                gap_s = self.now_s - found.last_s
                found.gaps[bucket(gap_s * S)] = found.gaps.get(bucket(gap_s * S), 0) + 1
            if output.new_tokens:
                found.last_s = self.now_s
                found.tokens += output.new_tokens
            if output.finish_reason:
                yield self._end(output.request_id, self._answers.pop(output.request_id))

    def _end(self, name: str, found: _Answer) -> dict[str, Any]:
        due_ns, now_ns = int(found.due_s * S), int(self.now_s * S)
        return {
            "row": "end", "id": name, "at_ns": now_ns, "due_ns": due_ns, "sent_ns": due_ns, "outcome": "ok",
            "first_token_ns": int(found.first_s * S), "last_byte_ns": now_ns, "itl_hist": found.gaps,
            "prompt_tokens": found.prompt, "completion_tokens": found.tokens, "chunks": found.tokens, "expect": ["ok"],
            "traffic": "text", "detail": {},
        }  # fmt: skip

    def _beat(self) -> Iterator[dict[str, Any]]:
        self._next_beat_s = self.now_s + _BEAT_S
        at_ns = int(self.now_s * S)
        yield {"row": "heartbeat", "at_ns": at_ns, "cpu_share": 0.1, "lag_ns": 0}
        stats = self._engine.stats()
        values = {
            "requests_running": stats.requests_running, "requests_waiting": stats.requests_waiting,
            "kv_usage_ratio": stats.kv_usage,
            **{f"{n}_total": stats.counters.get(n, 0) for n in ("prompt_tokens", "generation_tokens", "preemptions")},
        }  # fmt: skip
        yield {"row": "metrics", "replica": "server", "engine": "0", "at_ns": at_ns, "values": values}


def search(case: CapacityCase, seed: int, most_steps: int = 40) -> dict[str, Any]:
    """Search as `loadchaos capacity` does, in virtual time."""
    profile = profile_of(case)
    assert profile.slo is not None
    limits_s = profile.slo.limits_s()
    most = 100_000.0 if case.by == "rate" else 4096.0
    settings = SearchSettings(case.by, 1.0, most, goal=case.goal, limits_s=limits_s)
    found = CapacitySearch(settings)
    spent_s = 0.0
    while len(found.steps) < most_steps and (chosen := found.next()) is not None:
        plan = step_plan(settings, chosen)
        watch = StepWatch(plan)
        step = VirtualStep(case, step_profile(profile, plan), seed * 1000 + len(found.steps))
        for row in step.rows():
            watch.fold(row)
            if watch.reason() is not None:
                break
        watch.finish()
        spent_s += step.now_s + _STEP_OVERHEAD_S
        found.add(watch.result())
    return {**to_json(found.answer()), "steps": found.steps, "seconds": spent_s}


def truth(case: CapacityCase, around: float, hours: float = 0.5) -> float:
    """Highest load at which a long run meets the goal, by bisection to 1 %."""
    low, high = 0.8 * around, 1.25 * around
    while high / low > 1.01 and (case.by == "rate" or high - low > 1):
        middle = (low * high) ** 0.5 if case.by == "rate" else float(round((low + high) / 2))
        if middle in (low, high):
            break
        low, high = (middle, high) if long_run(case, middle, hours) else (low, middle)
    return low


def long_run(case: CapacityCase, load: float, hours: float) -> bool:
    """Tell if the goodput of a long run, without its first minute, meets the goal."""
    profile = profile_of(case)
    assert profile.slo is not None
    limits = profile.slo.limits_s()
    key, value = ("rate", f"{load:.6f}/s") if case.by == "rate" else ("users", round(load))
    law = {"law": "poisson"} if case.by == "rate" else {}
    phases = [{key: value, **law, "for": f"{round(3600 * hours)}s"}]
    long = from_mapping({**profile.to_json(), "load": phases}, registry.full_registry())
    from loadchaos.core.goodput import figures_of

    good = whole = 0
    allowed = (1 - case.goal) * load * 3600 * hours
    step = VirtualStep(case, long, 99)
    for row in step.rows():
        if row["row"] == "end" and row["due_ns"] > 60 * S:
            whole += 1
            good += all(v <= limits[n] for n, v in figures_of(row, limits).items())  # type: ignore[arg-type]
            if case.by == "rate" and whole - good > allowed:
                return False
        if case.by == "rate" and len(step._answers) > 20 * load + 2000:
            return False
    return whole > 0 and good / whole >= case.goal


def _one(arguments: tuple[int, int]) -> dict[str, Any]:
    return search(CASES[arguments[0]], arguments[1])


def _truth(arguments: tuple[int, float, float]) -> float:
    return truth(CASES[arguments[0]], arguments[1], arguments[2])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--hours", type=float, default=0.5)
    parser.add_argument("--case", type=int, action="append")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    begin_s = time.monotonic()
    print("| limit | goal | true capacity | within 5 % | largest error | interval holds it | steps | time |")
    print("|---|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(options.processes) as pool:
        for n in options.case if options.case is not None else range(len(CASES)):
            case = CASES[n]
            results = list(pool.map(_one, [(n, seed) for seed in range(1, options.seeds + 1)]))
            known = [r["capacity"] for r in results if r["known"]]
            true = next(iter(pool.map(_truth, [(n, statistics.median(known), options.hours)])))
            errors = [r["capacity"] / true - 1 if r["known"] else float("nan") for r in results]
            close = sum(abs(e) <= 0.05 for e in errors)
            ends = [(r["interval"][0] or 0.0, r["interval"][1] or 1e9) for r in results if r["known"]]
            holds = sum(low <= true * 1.01 and true <= high for low, high in ends)
            slo = ", ".join(f"{k} <= {v}" for k, v in case.slo.items())
            unit = "/s" if case.by == "rate" else " users"
            worst = max(errors, key=abs)
            count = statistics.median(len(r["steps"]) for r in results)
            minutes = statistics.median(r["seconds"] for r in results) / 60
            print(
                f"| {case.name} | {100 * case.goal:g} % within {slo} | {true:.3g}{unit} | {close} of {len(results)} | "
                f"{100 * worst:+.1f} % | {holds} of {len(results)} | {count:g} | {minutes:.1f} min |",
                flush=True,
            )
    print(f"\n{time.monotonic() - begin_s:.0f} s of computing")


if __name__ == "__main__":
    main()
