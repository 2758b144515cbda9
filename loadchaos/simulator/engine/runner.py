"""Model runner: what the GPU's side does with a planned step. It encodes images, computes, verifies drafts and drafts
again.
"""

from __future__ import annotations

from loadchaos.simulator.engine import crash_text
from loadchaos.simulator.engine.request import Batch, ScheduledRequest
from loadchaos.simulator.engine.rules import REDO_AFTER_REJECTIONS, EngineRules
from loadchaos.simulator.engine.types import SPEC_COUNTERS, EngineConfig


class ModelRunner:
    """The runner, with the embeddings that were really encoded. The scheduler only keeps account of them."""

    def __init__(self, config: EngineConfig, rules: EngineRules) -> None:
        self.config = config
        self._rules = rules
        self.embeddings: set[str] = set()
        self.counters = dict.fromkeys(SPEC_COUNTERS, 0)

    def run(self, batch: Batch) -> list[tuple[ScheduledRequest, int, int, int]]:
        """Compute one step. Returns (request, drafts verified, drafts rejected, new tokens) of each request. Raises
        EngineFault when the engine dies in it. Three of the planted bugs depend on the order: encode, target reads,
        (the plan's evictions), sample and verify, drafter reads, the plan's evictions.
        """
        for check in self._rules.before_step:
            check(batch, self.config)
        self.embeddings.update(item.hash for item in batch.encode)
        self._target_reads(batch)
        if self._rules.drop_before_draft:
            self.embeddings.difference_update(batch.evicted)
        outcome = []
        drafting = self.config.num_speculative_tokens > 0
        for request, epoch, start, count, drafts in batch.planned:
            if request.epoch != epoch:
                continue  # finished, aborted or preempted since it was planned
            if start < request.target:
                new_tokens = self._compute_chunk(request, start, count)
                first, last = start + 1, start + count + self._rules.skips_image_at_step_end
                rejected = 0
            else:
                rejected = self._verify(request, drafts)
                new_tokens = min(1 + drafts - rejected, request.length - request.outputs)
                first, last = self._drafter_restart(request)
            outcome.append((request, drafts, rejected, new_tokens))
            if drafting and request.items and first < last:
                self._drafter_reads(batch, request, first, last)
        self.embeddings.difference_update(batch.evicted)
        return outcome

    def _compute_chunk(self, request: ScheduledRequest, start: int, count: int) -> int:
        request.verified = start + count
        request.run_chunk_start = start
        return 1 if request.verified >= request.target else 0

    def _verify(self, request: ScheduledRequest, drafts: int) -> int:
        accepted = 0
        acceptance = self.config.draft_acceptance
        while accepted < drafts and request.draw() < acceptance:
            accepted += 1
        request.verified += 1 + accepted
        if drafts:
            for name, count in zip(SPEC_COUNTERS, (1, drafts, accepted), strict=True):
                self.counters[name] += count
        request.decode_steps += 1
        if accepted and request.decode_steps <= REDO_AFTER_REJECTIONS:
            request.all_rejected = False
        return drafts - accepted

    def _drafter_restart(self, request: ScheduledRequest) -> tuple[int, int]:
        if request.decode_steps == REDO_AFTER_REJECTIONS + 1 and request.all_rejected:
            return request.run_chunk_start, request.target
        return 0, 0

    def _target_reads(self, batch: Batch) -> None:
        for request, epoch, start, count, _ in batch.planned:
            if start >= request.target or not request.items or request.epoch != epoch:
                continue
            for item in request.items:
                inside = item.offset < start + count and item.offset + item.tokens > start
                if inside and item.hash not in self.embeddings:
                    raise crash_text.encoder_miss(self.config, batch, item.hash, drafter=False)

    def _drafter_reads(self, batch: Batch, request: ScheduledRequest, first: int, last: int) -> None:
        for item in request.items:
            if item.offset < last and item.offset + item.tokens > first and item.hash not in self.embeddings:
                raise crash_text.encoder_miss(self.config, batch, item.hash, drafter=True)
