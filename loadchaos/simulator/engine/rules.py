"""Decisions of the engine that a planted bug may change. The defaults are those of a healthy engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from loadchaos.simulator.engine.request import Batch, ScheduledRequest
from loadchaos.simulator.engine.types import EngineConfig, Spoil

REDO_AFTER_REJECTIONS = 3
"""After this many rejected drafts in a row the drafter reads the last prompt chunk again.


This is a simplification. According to upstream, a rejection makes the drafter read an entry that the scheduler has released,
because the scheduler's account never included the drafter's reads. How far back the drafter reads differs between models.
Here it is this rare but certain event. So all three planted bugs need what the real one needs: images, drafts, rejections,
and a cache so small that another request uses the space within the few steps between.
"""


def position_read_by_all(request: ScheduledRequest) -> int:
    """Return the position before which no later step reads. Neither the target nor the drafter reads before it after
    the step now being planned. A prompt chunk is planned from `computed`: everything that ends before it was read.
    After the prompt, the last chunk is kept until the drafter can no longer read it again. Every draft in flight counts
    as rejected.
    """
    if request.computed < request.target:
        return request.computed
    if request.computed - request.unverified >= request.target + REDO_AFTER_REJECTIONS:
        return request.target
    return request.chunk_start


@dataclass(frozen=True)
class RequestStep:
    """One step of one request, as a defect sees it: requests that run, those of them in prefill, drafts that were
    verified and rejected, and tokens that it gave.
    """

    config: EngineConfig
    running: int
    prefills: int
    drafts: int
    rejected: int
    new_tokens: int


@dataclass
class EngineRules:
    """The engine's rules. Defects change fields of their engine's own copy; the engine knows no defect by name."""

    config: EngineConfig
    # encoder cache: a request releases the entries before this position when it is planned, before it holds new ones
    read_position: Callable[[ScheduledRequest], int] = position_read_by_all
    # the same after its tokens are planned and `computed` has moved; a healthy engine releases nothing then
    read_position_after_planning: Callable[[ScheduledRequest], int] | None = None
    # the runner forgets evicted entries when the step's drafter is done, not when the step's plan arrives
    drop_before_draft: bool = False
    # an image that begins right behind a prompt chunk is not encoded with it, although the drafter needs its first token;
    # the drafter of a healthy engine then takes the embedding of the token, as vLLM does since 0.24
    skips_image_at_step_end: bool = False
    # the receiver's side of the processor cache
    refresh_on_hit: bool = True
    reset_in_order: bool = True
    # number of KV blocks that are lost when a running request is aborted
    blocks_leaked_on_abort: int = 0
    # a request that is aborted before it was ever scheduled stays in the queue, and is never scheduled
    holds_queued_aborts: bool = False
    # admission ends for good when running and preempted requests together reach max_num_seqs
    stops_admitting_when_full: bool = False
    # an abort releases blocks of a shared prefix although another request holds them
    frees_shared_blocks_on_abort: bool = False
    # requests that wait when the engine resumes or wakes up are forgotten
    forgets_queue_on_resume: bool = False
    # an abort removes a row from the batch and swaps the two rows behind it
    swap_rows_on_abort: bool = False
    # the API server answers an input longer than the KV cache with 500 and hides the cause
    kv_error_as_500: bool = False
    # the API server ends a tool call at this text, also inside an argument; empty: never
    ends_calls_at: str = ""
    # what goes wrong with a request's tokens of a step; the first answer counts
    spoilers: list[Callable[[ScheduledRequest, RequestStep], Spoil | None]] = field(default_factory=list)
    # two requests whose first tokens come in one step get each other's tokens
    swap_joint_starts: bool = False
    # of several images encoded in one step, the later ones get the embedding of another image
    stale_joint_embeddings: bool = False
    # prompts in one step are all computed with the adapter of the first
    adapter_of_first_prompt: bool = False
    # new connections get no answer after this many were closed in the middle of a request; 0: no limit
    most_unfinished_connections: int = 0
    # checks before a step runs; each may raise EngineFault
    before_step: list[Callable[[Batch, EngineConfig], None]] = field(default_factory=list)
