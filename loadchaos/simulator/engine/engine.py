"""The engine core: requests in, tokens out, one step at a time. It is deterministic and has no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

from loadchaos.simulator.defects import rules_of
from loadchaos.simulator.engine import crash_text
from loadchaos.simulator.engine.limits import input_limit, with_kv_blocks
from loadchaos.simulator.engine.processor_cache import ProcessorCache
from loadchaos.simulator.engine.request import Batch, ScheduledRequest
from loadchaos.simulator.engine.rules import RequestStep
from loadchaos.simulator.engine.runner import ModelRunner
from loadchaos.simulator.engine.scheduler import Scheduler
from loadchaos.simulator.engine.step_time import FIXED_S, step_duration_s
from loadchaos.simulator.engine.types import EngineConfig, EngineRequest, EngineStats, RequestOutput, StepResult

PauseMode = Literal["abort", "wait", "keep"]


class Engine:
    """A small serving engine. The same config, seed and arrivals by step give the same outputs. With async scheduling
    `step` plans one step ahead of the one it runs; a request that arrives waits one step longer.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config = with_kv_blocks(config)
        self._rules = rules = rules_of(config)
        self._scheduler = Scheduler(config, rules)
        self._runner = ModelRunner(config, rules)
        self._receiver = ProcessorCache(config.mm_processor_cache_items, refresh_on_hit=rules.refresh_on_hit)
        self._requests: dict[str, ScheduledRequest] = {}
        self._in_flight: deque[Batch] = deque()
        self._outputs: list[RequestOutput] = []
        self._log: list[str] = []
        self._clear_receiver_later = False
        self._paused: PauseMode | None = None
        self._stale_images: dict[str, str] = {}  # hash of an image: of the one whose embedding it has
        self._burst = Batch()  # the last planned step's count of what came since the engine was idle
        self._iterations = self._prompt_tokens = self._generation_tokens = 0
        self._finished = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        self.sleeping = False
        self.input_thread_dead = False
        """Before 0.14 a desynced processor cache kills the input thread: new requests are ignored, no process dies, and
        /health stays 200."""

    @property
    def has_work(self) -> bool:
        """True if `step` has anything to do. False while paused with mode keep, even when requests wait."""
        if self._outputs or self._log:
            return True
        if self._paused == "keep" or self.sleeping:
            return False
        if self._in_flight or self._scheduler.running:
            return True
        return bool(self._scheduler.waiting) and self._scheduler.admitting

    @property
    def paused(self) -> bool:
        return self._paused is not None

    def add(self, request: EngineRequest) -> None:
        """Queue a request. A bad request comes out of the next step as an output with an error."""
        if self.input_thread_dead:
            return
        error = self._receive_images(request)
        if error and self.config.release < (0, 14):
            self.input_thread_dead = True
            self._log += crash_text.input_thread_death(error)
            return
        if error:
            self._log += crash_text.preprocessing_error(request.id, error)
        error = error or self._reason_to_refuse(request)
        if error:
            self._end(request.id, "error", error)
            return
        state = ScheduledRequest(request, self.config)
        self._requests[request.id] = state
        self._scheduler.waiting.append(state)

    def abort(self, request_ids: Sequence[str]) -> None:
        if self.input_thread_dead:
            return
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None:
                if self._rules.swap_rows_on_abort:
                    self._swap_rows(request)
                if left := min(self._rules.blocks_leaked_on_abort, len(request.blocks)):
                    del request.blocks[-left:]
                if self._rules.frees_shared_blocks_on_abort:
                    self._scheduler.pool.free_shared(request.blocks)
                if self._rules.holds_queued_aborts and not request.started:
                    self._scheduler.held_aborts += 1
                self._remove(request)
                self._end(request_id, "abort")

    def step(self) -> StepResult:
        """Plan, run and account for one step. Raises EngineFault when the engine dies in it; it must not run again."""
        if self._clear_receiver_later:
            self._receiver.clear()
            self._clear_receiver_later = False
        batch = self._next_batch()
        for request in self._scheduler.out_of_blocks:
            self._remove(request)
            self._end(request.id, "length")
        self._scheduler.out_of_blocks.clear()
        duration_s = FIXED_S / self.config.speed
        if batch is not None:
            self._account(batch)
            duration_s = step_duration_s(batch, self.config)
        elif self._outputs or self._log:
            duration_s = 0.0
        if not (self._scheduler.running or self._scheduler.waiting or self._in_flight):
            self._burst = Batch()
        outputs, self._outputs = self._outputs, []
        log, self._log = self._log, []
        return StepResult(outputs, duration_s, log, batch.tokens if batch else 0)

    def reset_mm_cache(self) -> list[str]:
        """Clear the engine's side of the processor cache. The encoder cache stays. Returns the lines it logs."""
        if self._rules.reset_in_order:
            self._receiver.clear()
        else:
            self._clear_receiver_later = True
        return self._desync_warning("multi-modal")

    def reset_encoder_cache(self) -> list[str]:
        """Clear the encoder cache in scheduler and runner. Even entries with readers go. Returns the lines it logs."""
        warning = self._desync_warning("encoder")
        self._scheduler.encoder.reset()
        self._runner.embeddings.clear()
        for request in self._requests.values():
            request.held.clear()
        return warning

    def reset_prefix_cache(self, reset_running: bool = False) -> bool:
        """Forget cached prefixes. Returns False, and does nothing, while blocks are held and `reset_running` is not
        set.
        """
        if reset_running:
            self._scheduler.preempt_all()
        return self._scheduler.pool.forget_prefixes()

    def pause(self, mode: PauseMode = "abort") -> None:
        """Accept requests and serve none. `keep` freezes the running ones, `wait` lets them finish, `abort` ends them."""
        self._paused = mode
        self._scheduler.admitting = False
        if mode == "abort":
            self.abort(list(self._requests))

    def resume(self) -> None:
        self._paused = None
        self._scheduler.admitting = not self.sleeping
        if self._rules.forgets_queue_on_resume:
            self._scheduler.waiting.clear()

    def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Sleep, as vLLM's /sleep does. Requests are ended (or kept), caches are lost, and nothing runs until
        `wake_up`.
        """
        self.pause(mode)
        self.sleeping = True
        self._scheduler.preempt_all()
        self._scheduler.pool.forget_prefixes()
        if level > 1:
            self.reset_encoder_cache()

    def wake_up(self) -> None:
        self.sleeping = False
        self.resume()

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        counters: dict[str, float] = {
            "prompt_tokens": self._prompt_tokens,
            "generation_tokens": self._generation_tokens,
            "iterations": self._iterations,
            "preemptions": scheduler.preemptions,
            **{f"spec_{name}": count for name, count in self._runner.counters.items()},
            "mm_cache_queries": self._receiver.queries,
            "mm_cache_hits": self._receiver.hits,
            "prefix_cache_queries": scheduler.prefix_queries,
            "prefix_cache_hits": scheduler.prefix_hits,
        }
        counters |= {f"requests_finished_{reason}": count for reason, count in self._finished.items()}
        return EngineStats(
            len(scheduler.running),
            len(scheduler.waiting) + scheduler.held_aborts,
            scheduler.pool.usage,
            counters,
            scheduler.encoder.used,
        )

    def _next_batch(self) -> Batch | None:
        frozen = self._paused == "keep" or self.sleeping
        ahead = 2 if self.config.async_scheduling else 1
        while len(self._in_flight) < ahead and not frozen:
            batch = self._scheduler.plan()
            if not batch.planned and not batch.evicted:
                break
            batch.burst_steps = self._burst.burst_steps + 1
            batch.burst_tokens = self._burst.burst_tokens + batch.prompt_tokens
            batch.burst_requests = self._burst.burst_requests + batch.new_requests
            self._burst = batch
            self._in_flight.append(batch)
        return self._in_flight.popleft() if self._in_flight and not frozen else None

    def _account(self, batch: Batch) -> None:
        self._iterations += 1
        prefills = sum(start < request.target for request, _, start, _, _ in batch.planned)
        if self._rules.stale_joint_embeddings:
            self._mix_up(batch)
        started: list[str] = []
        for request, drafts, rejected, new_tokens in self._runner.run(batch):
            first = request.outputs == 0
            step = RequestStep(self.config, len(self._scheduler.running), prefills, drafts, rejected, new_tokens)
            self._scheduler.record_outcome(request, drafts, rejected, new_tokens)
            if not new_tokens:
                continue
            spoil = next((found for spoiler in self._rules.spoilers if (found := spoiler(request, step))), None)
            if first:
                self._prompt_tokens += request.prompt
                started.append(request.id)
            self._generation_tokens += new_tokens
            reason = None
            if request.outputs >= request.length:
                reason = request.stop_reason
                self._finished[reason] += 1
                self._remove(request)
            cached = request.cached_tokens if first else 0
            seen = next((h for i in request.items if (h := self._stale_images.get(i.hash))), None) if first else None
            used = self._adapter_instead(request, batch) if first and self._rules.adapter_of_first_prompt else None
            output = RequestOutput(request.id, new_tokens, reason, None, cached, None, spoil, seen, used)
            self._outputs.append(output)
        if self._rules.swap_joint_starts and len(started) > 1:
            swap = RequestOutput(started[0], 0, swapped_with=started[1])
            self._outputs.insert(next(i for i, o in enumerate(self._outputs) if o.request_id == started[0]), swap)

    def _adapter_instead(self, request: ScheduledRequest, batch: Batch) -> str | None:
        prompts = (r for r, _, start, _, _ in batch.planned if start < r.target)
        adapter = next((r.original.adapter for r in prompts), request.original.adapter)
        return adapter if request.original.adapter and adapter != request.original.adapter else None

    def _mix_up(self, batch: Batch) -> None:
        for item in batch.encode:
            self._stale_images.pop(item.hash, None)
            if item.hash != batch.encode[0].hash:
                self._stale_images[item.hash] = batch.encode[0].hash

    def _remove(self, request: ScheduledRequest) -> None:
        self._scheduler.finish(request)
        request.epoch += 1  # steps already planned for it no longer count
        del self._requests[request.id]

    def _end(self, request_id: str, reason: str, error: str | None = None) -> None:
        self._finished[reason] += 1
        self._outputs.append(RequestOutput(request_id, 0, reason, error))

    def _swap_rows(self, aborted: ScheduledRequest) -> None:
        running = self._scheduler.running
        behind = running[running.index(aborted) + 1 :][:2] if aborted in running else []
        if len(behind) == 2:
            self._outputs.append(RequestOutput(behind[0].id, 0, swapped_with=behind[1].id))

    def _receive_images(self, request: EngineRequest) -> str | None:
        for item in request.mm_items:
            if not self._receiver.look_up(item.hash, keep=item.data) and not item.data:
                return f"Expected a cached item for mm_hash={item.hash!r}"
        return None

    def _reason_to_refuse(self, request: EngineRequest) -> str | None:
        config = self.config
        if config.dialect == "lmdeploy" and request.prompt_tokens > input_limit(config):
            return "ResponseType.INPUT_LENGTH_ERROR"
        longest = min(config.max_model_len, config.num_gpu_blocks * config.block_size)
        if request.prompt_tokens > longest:
            return f"prompt of {request.prompt_tokens} tokens exceeds the {longest} that fit"
        for item in request.mm_items:
            if not self._scheduler.encoder.grow_for(item):
                return f"image of {item.tokens} tokens exceeds the encoder cache of {self._scheduler.encoder.size}"
            if config.disable_chunked_mm_input and item.tokens > config.max_num_batched_tokens:
                return f"image of {item.tokens} tokens exceeds max_num_batched_tokens {config.max_num_batched_tokens}"
        return None

    def _desync_warning(self, which: str) -> list[str]:
        if not self._requests:
            return []
        return [f"Resetting the {which} cache when requests are in progress may lead to desynced internal caches."]
