"""Defects that release entries of the encoder cache while the drafter still needs them."""

from __future__ import annotations

from loadchaos.simulator.defects.defect import Defect
from loadchaos.simulator.engine.request import ScheduledRequest
from loadchaos.simulator.engine.rules import REDO_AFTER_REJECTIONS


def _count_drafts_in_flight(request: ScheduledRequest) -> int:
    if request.computed < request.target:
        return request.computed
    if request.computed >= request.target + REDO_AFTER_REJECTIONS:
        return request.target
    return request.chunk_start


def _count_planned_chunk(request: ScheduledRequest) -> int:
    return min(request.computed, request.target)


DEFECTS = (
    # Without async scheduling no step is in flight while the next is planned, so the two counts are the same.
    Defect(
        "encoder_free_on_speculated",
        "encoder entries are freed by a count that includes drafts in flight; after a rejection the drafter wants them",
        {"read_position": _count_drafts_in_flight},
        remedies={"async_scheduling": False, "num_speculative_tokens": 0},
        upstream="https://github.com/vllm-project/vllm/pull/39544",
    ),
    # The healthy engine waits until the chunk that reads them has run.
    Defect(
        "encoder_free_on_scheduled",
        "encoder entries are freed when the tokens that need them are scheduled, before the drafter has fetched them",
        {"read_position_after_planning": _count_planned_chunk},
        remedies={"num_speculative_tokens": 0},
        upstream="https://github.com/vllm-project/vllm/pull/38907",
    ),
)
