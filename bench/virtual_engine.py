"""A server in virtual time: a profile's load against the embedded engine, without clock, network or process.

It gives the ledger rows that feedback needs. Whether an answer is wrong is read from the engine, as by an oracle that never
errs: this measures how a load finds a state, and not how well loadchaos sees it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from loadchaos.analysis.coverage import WorkloadCoverage
from loadchaos.core.model import Facts, Step
from loadchaos.core.rng import Rng, hash64, text_seed
from loadchaos.load.payloads.image_positions import template_tokens
from loadchaos.load.payloads.image_tokens import qwen
from loadchaos.profile import steps
from loadchaos.profile.profile import Profile
from loadchaos.simulator.engine.engine import Engine
from loadchaos.simulator.engine.limits import input_limit, with_kv_blocks
from loadchaos.simulator.engine.processor_cache import ProcessorCache
from loadchaos.simulator.engine.types import EngineConfig, EngineFault, EngineRequest, MMItem

S = 1_000_000_000
_HEAD = 8
_TEMPLATE, _LEAD = 12, 4
"""Tokens of a chat template in all, and those before an image."""
_BETWEEN_S = 1.0
_NAMES = {
    name: f"{name}_total"
    for name in (
        "preemptions", "spec_drafts", "spec_draft_tokens", "spec_accepted_tokens", "mm_cache_queries", "mm_cache_hits",
        "prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens", "iterations",
    )
}  # fmt: skip
_MOST_STEPS = 60_000
_HANG_S = 30.0


@dataclass
class VirtualResult:
    """What one load did: requests sent, the first failure and after how many requests it came."""

    requests: int = 0
    seconds: float = 0.0
    failure: str = ""
    after_requests: int = 0
    coverage: WorkloadCoverage = field(default_factory=WorkloadCoverage)


@dataclass(order=True)
class _Timer:
    at_s: float
    number: int
    act: Any = field(compare=False)


class VirtualServer:
    """An engine that lives through several loads until it dies."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = with_kv_blocks(config)
        self._start()

    def _start(self) -> None:
        self.engine = Engine(self.config)
        self.sender = ProcessorCache(self.config.mm_processor_cache_items)
        self.now_s = 0.0

    def facts(self) -> Facts:
        """Facts that a real discovery would find."""
        config = self.config
        limit = input_limit(config) if config.dialect == "lmdeploy" else None
        return Facts(
            "", "", config.dialect, version=f"{config.era}.0", max_model_len=config.max_model_len, input_limit=limit,
            capacity_tokens=config.num_gpu_blocks * config.block_size, kv_blocks=config.num_gpu_blocks,
            kv_block_size=config.block_size, images=True, max_images=4, metrics=True,
            development_endpoints=config.dialect == "vllm",
            speculative_decoding=config.num_speculative_tokens > 0,
        )  # fmt: skip

    def run(self, profile: Profile, seed: int, most_requests: int = 1 << 30) -> VirtualResult:
        """Send a profile's load until its end, its first failure, or the limit of requests."""
        load = _Load(self, profile, seed, most_requests)
        load.run()
        if load.result.failure:
            self._start()
        return load.result


class _Load:
    def __init__(self, server: VirtualServer, profile: Profile, seed: int, most_requests: int) -> None:
        self._server, self._profile, self._seed = server, profile, seed
        self._config, self._engine = server.config, server.engine
        self.result = VirtualResult()
        self._most = most_requests
        self._live: dict[str, Step] = {}
        self._tokens: dict[str, int] = {}
        self._timers: list[_Timer] = []
        self._undo: Any = None
        self._number = 0
        self._aborted = 0
        self._begin_s = server.now_s
        self._next_scrape_s = server.now_s
        self._steps = 0
        self._progress_s = server.now_s

    # --- the load -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Send the load, then undo an attack that is still in effect."""
        self._run()
        if self._undo is not None:
            self._undo()

    def _run(self) -> None:
        coverage = self.result.coverage
        self._scrape()
        coverage.fold({"row": "run", "what": "load_begin", "at_ns": int(self._server.now_s * S)})
        for attack in self._profile.attacks:
            every = attack.every or attack.at or 1.0
            self._after(every, lambda a=attack, e=every: self._attack(a, e))
        for number, phase in enumerate(self._profile.load):
            found = steps.of_phase(self._profile, self._seed, number)
            if phase.kind == "burst":
                self._bursts(list(found), phase.burst or 1, phase.every or 0.0)
            else:
                self._closed(found, phase.slots, self._server.now_s + (phase.for_ or 1e9))
            if self._ended:
                return
            self._drain()
        if not self._ended:
            self._scrape()
            self._check_idle()

    @property
    def _ended(self) -> bool:
        return bool(self.result.failure) or self.result.requests >= self._most or self._steps > _MOST_STEPS

    def _closed(self, found: Iterator[Step], users: int, until_s: float) -> None:
        round_ = 0
        held: Step | None = None
        done = False
        while not self._ended:
            while not done and len(self._live) < users and not self._ended:
                step = held or next(found, None)
                held = None
                if step is None or self._server.now_s >= until_s:
                    done = True
                elif step.round != round_ and self._live:
                    held = step
                    break
                else:
                    round_ = step.round
                    self._send(step)
            if done and not self._live:
                return
            self._advance()

    def _bursts(self, found: list[Step], size: int, every_s: float) -> None:
        for at in range(0, len(found), size):
            for step in found[at : at + size]:
                self._send(step)
            end_s = self._server.now_s + every_s
            while self._live and not self._ended:
                self._advance()
            self._server.now_s = max(self._server.now_s, end_s if at + size < len(found) else 0.0)

    def _drain(self) -> None:
        while self._live and not self._ended:
            self._advance()

    def _send(self, step: Step) -> None:
        self.result.requests += 1
        options: Any = step.behaviour_options
        if step.behaviour == "abort" and options.before == "body":
            self._aborted += 1
            return
        request = _Prompt(step, self._server).request()
        if request is None:
            return
        self._live[request.id] = step
        self._tokens[request.id] = 0
        self._engine.add(request)
        if step.behaviour == "abort" and (options.after is not None or options.before == "first_byte"):
            self._after(options.after or 0.02, lambda: self._abort(request.id))

    def _abort(self, request_id: str) -> None:
        if request_id in self._live:
            self._aborted += 1
            self._engine.abort([request_id])

    # --- time ---------------------------------------------------------------------------------------------------------

    def _after(self, delay_s: float, act: Any) -> None:
        self._number += 1
        heapq.heappush(self._timers, _Timer(self._server.now_s + delay_s, self._number, act))

    def _advance(self) -> None:
        self._steps += 1
        server = self._server
        if self._engine.input_thread_dead:
            self._fail("input thread died")
            return
        if self._engine.has_work:
            try:
                result = self._engine.step()
            except EngineFault as fault:
                self._fail(fault.title.splitlines()[0])
                return
            server.now_s += result.duration_s
            if result.outputs or result.scheduled_tokens:
                self._progress_s = server.now_s
            for line in result.log:
                self._feed({"row": "log", "source": "server.log", "text": line})
            for output in result.outputs:
                self._output(output)
        elif self._timers:
            server.now_s = max(server.now_s, self._timers[0].at_s)
        else:
            self._fail("hang")
        while self._timers and self._timers[0].at_s <= server.now_s:
            heapq.heappop(self._timers).act()
        if self._live and server.now_s - self._progress_s > _HANG_S:
            self._fail("hang")
        if server.now_s >= self._next_scrape_s:
            self._scrape()

    def _output(self, output: Any) -> None:
        step = self._live.get(output.request_id)
        if output.fault or output.swapped_with or output.seen_image:
            self._fail("wrong answer")
        if output.error and "cached item" in output.error.lower():
            self._fail("request failed: expected cached item")
        if step is None:
            return
        self._tokens[output.request_id] += output.new_tokens
        options: Any = step.behaviour_options
        if output.finish_reason:
            del self._live[output.request_id]
            self._feed({"row": "end", "outcome": "ok", "status": 200, "finish_reason": output.finish_reason,
                        "cached_tokens": output.cached_tokens})  # fmt: skip
        elif step.behaviour == "abort" and options.at_token is not None:
            at = Rng(hash64(step.seed, 9)).between(options.at_token.low, options.at_token.high)
            if self._tokens[output.request_id] >= at:
                self._abort(output.request_id)

    def _attack(self, attack: Any, every_s: float) -> None:
        if not self._live:
            return
        self._after(every_s, lambda: self._attack(attack, every_s))
        if not self._holds(attack.when):
            return
        name, engine = attack.admin, self._engine
        if name == "reset_mm_cache":
            self._server.sender.clear()
            engine.reset_mm_cache()
        elif name == "reset_prefix_cache":
            engine.reset_prefix_cache()
        elif name == "sleep":
            engine.sleep(1, "keep")
            self._undo_after(attack.for_ or 0.5, engine.wake_up)
        elif name == "pause":
            engine.pause("keep")
            self._undo_after(attack.for_ or 0.5, engine.resume)
        self._feed({"row": "attack", "what": "end", "attack": name, "ok": True, "status": 200})

    def _undo_after(self, delay_s: float, undo: Any) -> None:
        def act() -> None:
            self._undo = None
            undo()

        self._undo = undo
        self._after(delay_s, act)

    def _holds(self, when: Mapping[str, str]) -> bool:
        stats = self._engine.stats()
        values = {
            "requests_running": stats.requests_running, "requests_waiting": stats.requests_waiting,
            "kv_usage_ratio": stats.kv_usage, "images_in_prefill": self._in_prefill(), "aborts_per_s": self._aborted,
        }  # fmt: skip
        for name, text in when.items():
            sign, _, number = text.strip().rpartition(" ")
            limit = float(number.rstrip("%")) / (100 if number.endswith("%") else 1)
            value = values.get(name, 0)
            if not (value >= limit if sign == ">=" else value > limit):
                return False
        return True

    def _in_prefill(self) -> int:
        return sum("images" in step.payload and not self._tokens[name] for name, step in self._live.items())

    # --- what is seen -------------------------------------------------------------------------------------------------

    def _feed(self, row: dict[str, Any]) -> None:
        self.result.coverage.fold({**row, "at_ns": int(self._server.now_s * S)})

    def _scrape(self) -> None:
        self._next_scrape_s = self._server.now_s + _BETWEEN_S
        stats = self._engine.stats()
        values = {_NAMES[name]: value for name, value in stats.counters.items() if name in _NAMES}
        values |= {
            "requests_running": stats.requests_running, "requests_waiting": stats.requests_waiting,
            "kv_usage_ratio": stats.kv_usage,
        }  # fmt: skip
        self._feed({"row": "heartbeat", "aborted": self._aborted, "images_in_prefill": self._in_prefill()})
        self._feed({"row": "metrics", "replica": "server", "engine": "0", "values": values})

    def _check_idle(self) -> None:
        """Look for what stays after the load: KV blocks and requests."""
        while self._engine.has_work and not self._ended:
            self._advance()
        stats = self._engine.stats()
        if stats.requests_waiting or stats.requests_running:
            self._fail("requests held")
        elif round(stats.kv_usage * self._config.num_gpu_blocks) >= 3:
            self._fail("kv leak")

    def _fail(self, failure: str) -> None:
        if not self.result.failure:
            self.result.failure, self.result.after_requests = failure, self.result.requests
            self.result.seconds = self._server.now_s - self._begin_s


class _Prompt:
    """A step as the engine gets it."""

    def __init__(self, step: Step, server: VirtualServer) -> None:
        self._step, self._server = step, server
        self._rng = Rng(hash64(step.seed, 7))

    def request(self) -> EngineRequest | None:
        """Request of the engine; None where a server refuses it."""
        step, config = self._step, self._server.config
        payload = step.payload
        output = step.output.exact or step.output.max or 128
        items, prompt = self._images(payload["images"]) if "images" in payload else ([], _HEAD)
        blocks: list[tuple[int, ...]] = []
        if "image_positions" in payload:
            items, prompt = self._image_at_position(payload["image_positions"])
        elif "near_limit" in payload:
            rung: Any = payload["near_limit"]
            limit = input_limit(config) + 1 if config.dialect == "lmdeploy" else config.max_model_len
            prompt = max(prompt + 16, limit + rung.rung.margin)
            output = 1 if rung.rung.output == "one" else max(1, limit - prompt)
            if prompt >= config.max_model_len:
                return None
        elif "conversation" in payload:
            options: Any = payload["conversation"]
            turns = options.turns.high
            group = (step.ordinal % options.parallel, step.ordinal // options.parallel // turns)
            turn = step.ordinal // options.parallel % turns + 1
            prompt = max(_HEAD, options.tokens.high * turn // turns)
            blocks = [(text_seed(step.traffic), *group, n) for n in range(prompt // config.block_size)]
        else:
            text: Any = payload.get("text")
            tokens = self._rng.between(text.tokens.low, text.tokens.high) if text is not None else 64
            prompt = prompt - _HEAD + tokens if items else tokens
            if text is not None and text.shared_prefix is not None:
                group_of = self._rng.between(0, text.shared_prefix.groups - 1)
                blocks = [(7, group_of, n) for n in range(text.shared_prefix.tokens // config.block_size)]
        prompt = min(prompt, config.max_model_len - 1)
        output = min(output, config.max_model_len - prompt)
        full = prompt // config.block_size
        named = blocks[:full] + [(step.seed, n) for n in range(len(blocks), full)]
        hashes = tuple(hash64(11, *(part & 0xFFFFFFFFFFFFFFF for part in block)) for block in named)
        least = output if step.output.exact else 0
        return EngineRequest(f"{step.index}-{step.seed}", prompt, output, least, items, hashes, step.seed & 0xFFFFFFFF)

    def _image_at_position(self, options: Any) -> tuple[list[MMItem], int]:
        """Image at the position of the step, behind a template that puts `_LEAD` tokens before it."""
        step, config = self._step, self._server.config
        facts = replace(self._server.facts(), step_tokens=config.max_num_batched_tokens)
        positions, tries = options.fitting(facts, step.output.max or 0), template_tokens(_TEMPLATE)
        if not positions:
            return [], 64
        position = positions[step.ordinal // len(tries) % len(positions)] - tries[step.ordinal % len(tries)] + _LEAD
        cost = qwen(options.size.width, options.size.height)
        name = f"{hash64(step.run_seed, text_seed(step.traffic), step.phase, step.ordinal):016x}"
        item = MMItem(name, cost - 2, position, not self._server.sender.look_up(name))
        return [item], position + cost + 16

    def _images(self, options: Any) -> tuple[list[MMItem], int]:
        step, place, items = self._step, _HEAD, []
        cost = qwen(options.size.width, options.size.height)
        for k in range(self._rng.between(options.count.low, options.count.high)):
            new = self._rng.share() < options.new or step.ordinal < options.reuse_distance
            ordinal = step.ordinal if new else step.ordinal - options.reuse_distance
            name = f"{hash64(step.run_seed, text_seed(step.traffic), step.phase, ordinal, k):016x}"
            data = not self._server.sender.look_up(name)
            items.append(MMItem(name, cost - 2, place + 1, data))
            place += cost
        return items, place
