"""State of a request in the engine, and the plan of one step. Scheduler and runner pass these to each other."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadchaos.simulator.engine.types import EngineConfig, EngineRequest, MMItem

_MASK = 0xFFFFFFFFFFFFFFFF


class ScheduledRequest:
    """The state of one admitted request. `computed` is what the scheduler has planned, drafts included; `verified` is
    what the runner has really computed. They differ by the steps in flight; a rejected draft lowers `computed` again.
    """

    __slots__ = (
        "all_rejected", "blocks", "cached_tokens", "capacity", "chunk_start", "computed", "decode_steps", "epoch",
        "held", "id", "items", "length", "original", "outputs", "pending_outputs", "prompt", "remembered", "rng_state",
        "run_chunk_start", "started", "stop_reason", "target", "unverified", "verified",
    )  # fmt: skip

    def __init__(self, original: EngineRequest, config: EngineConfig) -> None:
        self.original = original
        self.id = original.id
        self.prompt = original.prompt_tokens
        self.items: tuple[MMItem, ...] = tuple(sorted(original.mm_items, key=lambda item: item.offset))
        self.length, self.stop_reason = answer_length(original, config)
        self.outputs = 0
        self.epoch = 0  # grows with each preemption: older steps in flight no longer count
        self.cached_tokens = 0
        self.started = False
        self.rng_state = (original.seed * 0xD1342543DE82EF95 + config.seed * 0xDA942042E4DD58B5 + 1) & _MASK
        self.blocks: list[int] = []
        self.held: dict[str, int] = {}  # encoder cache entries this request reads: hash -> position after the item
        self.restart()

    def restart(self) -> None:
        """Reset the progress, before admission and after a preemption. After a preemption the answer so far becomes
        part of the prompt.
        """
        self.target = self.prompt + self.outputs  # computed up to here, the next token is sampled
        self.computed = 0
        self.verified = 0
        self.unverified = 0  # drafts in flight
        self.pending_outputs = 0  # steps in flight that will give at least one token
        self.capacity = 0  # tokens its blocks can hold
        self.remembered = 0  # full blocks whose prefix is known to the pool
        self.chunk_start = 0  # where the last planned prompt chunk began
        self.run_chunk_start = 0  # where the last prompt chunk that ran began
        self.decode_steps = 0
        self.all_rejected = True

    def draw(self) -> float:
        """Return a number in [0, 1), decided by the seed and the call's number. It uses splitmix, because this code is
        hot.
        """
        self.rng_state = state = (self.rng_state + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((state ^ (state >> 31)) >> 11) / 9007199254740992.0


def answer_length(original: EngineRequest, config: EngineConfig) -> tuple[int, str]:
    """Return the length of the answer in tokens, at least one, and why it ends there."""
    longest = max(1, min(original.max_tokens, config.max_model_len - original.prompt_tokens))
    shortest = max(1, original.min_tokens)
    if shortest <= original.stop_after <= longest:
        return original.stop_after, "stop"
    return longest, "length"


# request, its epoch when planned, first position, tokens, how many of them are drafts
Planned = tuple[ScheduledRequest, int, int, int, int]


@dataclass
class Batch:
    """The plan of one step. `encode` are images to encode first, `evicted` hashes that the runner must forget."""

    planned: list[Planned] = field(default_factory=list)
    encode: list[MMItem] = field(default_factory=list)
    evicted: list[str] = field(default_factory=list)
    tokens: int = 0
    prompt_tokens: int = 0
    new_requests: int = 0
    # since the engine was last idle, this step included:
    burst_steps: int = 0
    burst_tokens: int = 0  # of prompts
    burst_requests: int = 0
