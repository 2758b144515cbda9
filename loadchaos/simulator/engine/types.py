"""Types shared by the API process and the engine core."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Release = tuple[int, int, int]


@functools.cache
def release(era: str) -> Release:
    """Parse an era: 0.18 -> (0, 18, 0); 0.10.1.1 -> (0, 10, 1). Raises ValueError for anything else."""
    if not re.fullmatch(r"\d+(\.\d+){1,3}(\.post\d+)?", era):
        raise ValueError(f"era must look like 0.18 or 0.8.1 (got {era!r})")
    major, minor, patch = [*map(int, re.findall(r"\d+", era)), 0][:3]
    return major, minor, patch


@dataclass(frozen=True)
class EngineConfig:
    """The engine's flags, under the server's own names where it has them. Sizes are in tokens unless the name says
    otherwise. `encoder_cache_size` None means max(max_num_batched_tokens, largest item): vLLM takes it from the batch
    budget. `max_loras` is the number of adapters in one batch: requests for further ones wait. `speed` divides every
    step's duration: 1.0 is about a 7B model on one large GPU.
    """

    dialect: str = "vllm"
    max_model_len: int = 16384
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 128
    block_size: int = 16
    num_gpu_blocks: int = 8192
    enable_chunked_prefill: bool = True
    disable_chunked_mm_input: bool = False
    enable_prefix_caching: bool = True
    num_speculative_tokens: int = 1
    draft_acceptance: float = 0.75
    async_scheduling: bool = True
    encoder_cache_size: int | None = None
    mm_processor_cache_items: int = 256
    max_loras: int = 1
    pipeline_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    cuda_launch_blocking: bool = False
    cache_max_entry_count: float = 0.8
    speed: float = 1.0
    defects: frozenset[str] = frozenset()
    era: str = "0.18"
    seed: int = 0

    @property
    def release(self) -> Release:
        return release(self.era)

    @property
    def version(self) -> str:
        """The era as a full version: 0.18 -> 0.18.0; 0.8.1 stays."""
        return self.era if self.era.count(".") > 1 else f"{self.era}.0"


@dataclass(frozen=True)
class MMItem:
    """One image of a request. It has a content hash, the number of placeholder tokens, and the prompt position where
    they begin. `data` is False when the API server sent only the hash, because its side of the processor cache assumes
    that the engine has the item (vLLM's two-sided cache).
    """

    hash: str
    tokens: int
    offset: int
    data: bool = True


@dataclass(frozen=True)
class EngineRequest:
    """One request as the API server sends it to the engine core. `prefix_hashes` are the hashes of its full KV blocks.
    `stop_after` are the tokens after which its answer is complete; 0: only `max_tokens` ends it. `adapter` is
    the name of its LoRA adapter; empty: the base model. `guided`: a grammar restricts its answer.
    """

    id: str
    prompt_tokens: int
    max_tokens: int
    min_tokens: int = 0
    mm_items: Sequence[MMItem] = ()
    prefix_hashes: Sequence[int] = ()
    seed: int = 0
    stop_after: int = 0
    adapter: str = ""
    guided: bool = False


Spoil = Literal["derailed", "lost", "repeated"]


@dataclass(frozen=True)
class RequestOutput:
    """Output of one step for one request. `finish_reason` is stop, length, abort or error; `error` is the reason in the
    text of the server's log. `swapped_with`: from here on the two requests get each other's tokens. `fault`: the first of
    its tokens is lost or comes twice, or all were computed from a context that is not the request's own (`derailed`).
    `seen_image`: hash of the image whose embedding it was computed with in place of its own. `used_adapter`: adapter
    that it was computed with in place of its own; empty: none.
    """

    request_id: str
    new_tokens: int
    finish_reason: str | None = None
    error: str | None = None
    cached_tokens: int = 0
    swapped_with: str | None = None
    fault: Spoil | None = None
    seen_image: str | None = None
    used_adapter: str | None = None


@dataclass(frozen=True)
class StepResult:
    """Outputs of one step, its duration in seconds, and its log lines."""

    outputs: Sequence[RequestOutput]
    duration_s: float
    log: Sequence[str] = ()
    scheduled_tokens: int = 0


SPEC_COUNTERS = ("drafts", "draft_tokens", "accepted_tokens")
"""Counters of speculative decoding, in `EngineStats.counters` with `spec_` before them."""


@dataclass(frozen=True)
class EngineStats:
    """Counters and gauges for the metrics page. `counters` only ever grow."""

    requests_running: int
    requests_waiting: int
    kv_usage: float
    counters: Mapping[str, float] = field(default_factory=dict)
    encoder_cache_tokens: int = 0


class EngineFault(Exception):  # noqa: N818 - a fault of the imitated server, not our error
    """The engine died in this step. `traceback` is the output of its process, as in the real server, without prefix.
    `log_before` are its first log lines (`Dumping input data ...`), `raw_before` the lines that the device prints
    before them, without a log prefix as in the real server.
    """

    def __init__(
        self, title: str, traceback: Sequence[str], log_before: Sequence[str] = (), raw_before: Sequence[str] = ()
    ) -> None:
        self.title = title
        self.traceback = tuple(traceback)
        self.log_before = tuple(log_before)
        self.raw_before = tuple(raw_before)
        super().__init__(title)
