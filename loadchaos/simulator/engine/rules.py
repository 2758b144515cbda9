"""Decisions of the engine that a planted bug may change.

The defaults are those of a healthy engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from loadchaos.simulator.engine.request import Batch, ScheduledRequest
from loadchaos.simulator.engine.types import EngineConfig

REDO_AFTER_REJECTIONS = 3
"""After this many rejected drafts in a row the drafter reads the last prompt chunk again.


A simplification. Upstream says that a rejection makes the drafter want an entry that the scheduler, whose account never
included the drafter's reads, has let go; how far back it reads differs between models. Here it is this rare but certain
event, so that all three planted bugs need what the real one needs: images, drafts, rejections, and a cache so small that
another request takes the room in the few steps between.
"""


def position_read_by_all(request: ScheduledRequest) -> int:
    """Return the position before which no later step reads.

    Neither the target nor the drafter reads before it after the step now being planned.


    A prompt chunk is planned from `computed`: what ends before it was read. After the prompt the last chunk is kept until
    the drafter has had its chance to start over, counted with every draft in flight taken as rejected.
    """
    if request.computed < request.target:
        return request.computed
    if request.computed - request.unverified >= request.target + REDO_AFTER_REJECTIONS:
        return request.target
    return request.chunk_start


@dataclass
class EngineRules:
    """The engine's rules.

    Defects change fields of their engine's own copy; the engine knows no defect by name.
    """

    config: EngineConfig
    # encoder cache: which entries a request gives up when it is planned, before it asks for new ones ...
    read_position: Callable[[ScheduledRequest], int] = position_read_by_all
    # ... and once more when its tokens are planned and `computed` has moved: nothing more in the healthy engine
    read_position_after_planning: Callable[[ScheduledRequest], int] | None = None
    # the runner forgets evicted entries when the step's drafter is done, not when the step's plan arrives
    drop_before_draft: bool = False
    # the receiver's side of the processor cache
    refresh_on_hit: bool = True
    reset_in_order: bool = True
    # how many blocks of the KV cache stay behind, held by nobody, when a running request is aborted
    blocks_leaked_on_abort: int = 0
    # a request that was preempted and comes back reads KV blocks that are somebody else's by now
    stale_after_preemption: bool = False
    # the row of an aborted request is taken out of the batch, and the two rows behind it come back in each other's place
    swap_rows_on_abort: bool = False
    # what may kill a step before it runs: raises EngineFault
    before_step: list[Callable[[Batch, EngineConfig], None]] = field(default_factory=list)
