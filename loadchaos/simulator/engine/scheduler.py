"""Scheduler: queues, token budget, KV blocks and the encoder cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from loadchaos.simulator.engine import crash_text
from loadchaos.simulator.engine.encoder_cache import EncoderCache
from loadchaos.simulator.engine.kv_cache import BlockPool
from loadchaos.simulator.engine.request import Batch, ScheduledRequest
from loadchaos.simulator.engine.rules import EngineRules
from loadchaos.simulator.engine.types import EngineConfig, MMItem


class Scheduler:
    """A small version of vLLM V1's scheduler. Running requests come first, then the queue in order of arrival, with one
    budget for both. Planning is optimistic: a request's `computed` moves when its tokens are planned, drafts included;
    `record_outcome` subtracts rejected drafts. With async scheduling the next step is planned before the last one's
    outcome is known.
    """

    def __init__(self, config: EngineConfig, rules: EngineRules) -> None:
        self.config = config
        self._rules = rules
        self.pool = BlockPool(config.num_gpu_blocks, config.block_size, caching=config.enable_prefix_caching)
        self.encoder = EncoderCache(config.encoder_cache_size, config.max_num_batched_tokens)
        self.waiting: deque[ScheduledRequest] = deque()
        self.running: list[ScheduledRequest] = []
        self.out_of_blocks: list[ScheduledRequest] = []  # alone and out of blocks: they end with the text so far
        self.held_aborts = 0  # requests whose clients left, which a defect keeps in the queue
        self.admitting = True
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._look_ahead = 1 if config.num_speculative_tokens else 0
        # without chunking a prompt is planned whole, so the budget must hold the longest
        self._budget = max(config.max_num_batched_tokens, 0 if config.enable_chunked_prefill else config.max_model_len)

    def plan(self) -> Batch:
        """Plan the next step; it is empty when nothing can run. Evicted encoder entries travel with it to the runner."""
        batch = Batch()
        self._encode_room = self.encoder.size
        preemptions = self.preemptions
        budget = self._plan_running(batch, self._budget)
        if self.admitting and preemptions == self.preemptions:
            self._plan_waiting(batch, budget)
        batch.evicted = self.encoder.pop_evicted()
        return batch

    def record_outcome(self, request: ScheduledRequest, drafts: int, rejected: int, given: int) -> None:
        request.unverified -= drafts
        request.computed -= rejected
        request.outputs += given
        if given:
            request.pending_outputs -= 1
        full = min(request.verified // self.config.block_size, len(request.original.prefix_hashes))
        while request.remembered < full:
            self.pool.remember(request.blocks[request.remembered], request.original.prefix_hashes[request.remembered])
            request.remembered += 1

    def finish(self, request: ScheduledRequest) -> None:
        if request.started and request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._release_resources(request)

    def preempt_all(self) -> None:
        """Send every running request back to the queue. /reset_prefix_cache with reset_running_requests does this."""
        while self.running:
            self._preempt(self.running[-1])

    def _plan_running(self, batch: Batch, budget: int) -> int:
        config = self.config
        max_drafts, longest = config.num_speculative_tokens, config.max_model_len
        planned = batch.planned
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            computed = request.computed
            if computed < request.target:
                used = self._plan_chunk(batch, request, budget)
                if used < 0:
                    break  # it was preempted itself: no request behind it can run either
                budget -= used
                index = self._next_index(request, index)
                continue
            if request.pending_outputs and request.outputs + request.pending_outputs >= request.length:
                index += 1
                continue  # the steps in flight will end it
            drafts = max(0, min(max_drafts, longest - computed - 1, budget - 1))
            if computed + 1 + drafts > request.capacity and not self._make_room(request, computed + 1 + drafts):
                break
            if request.held:
                self._release(request, self._rules.read_position)
            planned.append((request, request.epoch, computed, 1 + drafts, drafts))
            request.computed = computed + 1 + drafts
            request.unverified += drafts
            request.pending_outputs += 1
            if request.held:
                self._release(request, self._rules.read_position_after_planning)
            budget -= 1 + drafts
            batch.tokens += 1 + drafts
            index += 1
        return budget

    def _next_index(self, request: ScheduledRequest, index: int) -> int:
        # requests may have been preempted, always from the end, so the index still fits
        return index + 1 if index < len(self.running) and self.running[index] is request else index

    def _plan_waiting(self, batch: Batch, budget: int) -> None:
        passed: list[ScheduledRequest] = []
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            if request.original.adapter and not self._adapter_fits(request.original.adapter):
                passed.append(self.waiting.popleft())
                continue
            matched = self.pool.match(request.original.prefix_hashes, (request.target - 1) // self.config.block_size)
            if self.pool.freed_in_use.intersection(matched):
                raise crash_text.invalid_block(self.config, batch, next(iter(self.pool.freed_in_use & set(matched))))
            start = len(matched) * self.config.block_size
            room = self.pool.room_beside(matched) * self.config.block_size + start
            count = min(request.target - start, budget)
            if not self.config.enable_chunked_prefill and count < request.target - start:
                break
            count, items = self._fit_images(request, start, count)
            if count <= 0 or start + count > room:
                break
            self.waiting.popleft()
            self.pool.share(matched)
            request.blocks = list(matched)
            request.remembered = len(matched)
            request.capacity = request.computed = request.verified = start
            if not request.started:
                self.prefix_queries += request.prompt
                self.prefix_hits += start
                request.cached_tokens = start
                request.started = True
                batch.new_requests += 1
            self.running.append(request)
            self._grow(request, start + count)
            self._commit_chunk(batch, request, count, items)
            budget -= count
        self.waiting.extendleft(reversed(passed))

    def _adapter_fits(self, adapter: str) -> bool:
        loaded = {r.original.adapter for r in self.running} - {""}
        return adapter in loaded or len(loaded) < self.config.max_loras

    def _plan_chunk(self, batch: Batch, request: ScheduledRequest, budget: int) -> int:
        """Plan the next prompt chunk, and return its tokens. Returns 0 when its image has no space yet, -1 when the
        request was preempted.
        """
        if request.held:
            self._release(request, self._rules.read_position)
        count = min(request.target - request.computed, budget)
        count, items = self._fit_images(request, request.computed, count)
        if count <= 0:
            return 0
        if request.computed + count > request.capacity:
            if not self._make_room(request, request.computed + count):
                return -1
            # requests preempted for it may have released entries that were counted
            count, items = self._fit_images(request, request.computed, count)
            if count <= 0:
                return 0
        self._commit_chunk(batch, request, count, items)
        return count

    def _commit_chunk(self, batch: Batch, request: ScheduledRequest, count: int, items: list[MMItem]) -> None:
        for item in items:
            if self.encoder.hold(item, request.id):
                batch.encode.append(item)
                self._encode_room -= item.tokens
            request.held[item.hash] = max(request.held.get(item.hash, 0), item.offset + item.tokens)
        start = request.computed
        batch.planned.append((request, request.epoch, start, count, 0))
        batch.tokens += count
        batch.prompt_tokens += count
        request.chunk_start = start
        request.computed = start + count
        if request.computed >= request.target:
            request.pending_outputs += 1
        if request.held:
            self._release(request, self._rules.read_position_after_planning)

    def _fit_images(self, request: ScheduledRequest, start: int, count: int) -> tuple[int, list[MMItem]]:
        """Return how much of a chunk can run, and the images it must hold. With a drafter the chunk needs one position
        more than it computes, because the drafter reads one ahead.
        """
        if not request.items:
            return count, []
        ahead = self._look_ahead
        items: list[MMItem] = []
        tokens_to_encode = pinned = 0
        counted: set[str] = set()
        for item in request.items:
            end = item.offset + item.tokens
            if item.offset >= start + count + ahead:
                break
            if end <= start:
                continue
            if self.config.disable_chunked_mm_input and start <= item.offset and start + count < end:
                return max(0, item.offset - start - ahead), items
            if self._rules.skips_image_at_step_end and item.offset >= start + count:
                break
            if item.hash in counted or self.encoder.has_reader(item.hash, request.id):
                request.held[item.hash] = max(request.held.get(item.hash, 0), end)
                continue
            if item.hash in self.encoder:
                new_tokens, pin = 0, self.encoder.unread_size(item.hash)
            else:
                new_tokens, pin = item.tokens, 0
            needed = tokens_to_encode + new_tokens
            if needed > self._encode_room or not self.encoder.room_for(needed, pinned + pin):
                return self._tokens_before(item, start, alone=not (request.held or items)), items
            tokens_to_encode = needed
            pinned += pin
            counted.add(item.hash)
            items.append(item)
        return count, items

    def _tokens_before(self, item: MMItem, start: int, *, alone: bool) -> int:
        """Return the tokens from `start` to before an image that cannot run yet. The drafter, which reads one token
        ahead, must not reach the image either. A request that holds an earlier image runs right up to this one.
        Otherwise it would wait for ever for space that it uses itself.
        """
        count = max(0, item.offset - start - self._look_ahead)
        return count if count or alone else max(0, item.offset - start)

    def _release(self, request: ScheduledRequest, read_position: Callable[[ScheduledRequest], int] | None) -> None:
        if read_position is None:
            return
        position = read_position(request)
        released = [mm_hash for mm_hash, end in request.held.items() if end <= position]
        for mm_hash in released:
            del request.held[mm_hash]
            self.encoder.release(mm_hash, request.id)

    def _make_room(self, request: ScheduledRequest, tokens: int) -> bool:
        """Allocate blocks for `tokens` positions, preempting from the end. Returns False when the request itself was
        preempted or ended.
        """
        while not self._grow(request, tokens):
            victim = self.running[-1]
            if victim is request and len(self.running) == 1:
                if not request.pending_outputs and request not in self.out_of_blocks:
                    self.out_of_blocks.append(request)
                return False
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _grow(self, request: ScheduledRequest, tokens: int) -> bool:
        blocks_needed = -(-(tokens - request.capacity) // self.config.block_size)
        if blocks_needed <= 0:
            return True
        allocated = self.pool.allocate(blocks_needed)
        if allocated is None:
            return False
        request.blocks += allocated
        request.capacity += blocks_needed * self.config.block_size
        return True

    def _preempt(self, request: ScheduledRequest) -> None:
        self.running.remove(request)
        self._release_resources(request)
        request.epoch += 1
        request.restart()
        self.waiting.appendleft(request)
        self.preemptions += 1
        if self._rules.stops_admitting_when_full:
            preempted = sum(1 for waiting in self.waiting if waiting.epoch)
            self.admitting &= len(self.running) + preempted < self.config.max_num_seqs

    def _release_resources(self, request: ScheduledRequest) -> None:
        for mm_hash in request.held:
            self.encoder.release(mm_hash, request.id)
        request.held.clear()
        self.pool.release(request.blocks)
        request.blocks = []
