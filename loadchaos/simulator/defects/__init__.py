"""Planted bugs: one file per defect.

A defect changes a few of the engine's rules (engine/rules.py), so that a bug known from a real server becomes possible. It
never kills by chance: traffic has to bring the engine into the state that triggers it. `Defect` describes one. No other
code knows a defect by its name.

A new defect is one file with NAME, ABOUT, UPSTREAM, REMEDIES and `plant(rules)`, and one entry in `_ALL` below.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from loadchaos.simulator.defects import (
    admission_stops,
    call_cut_at_mark,
    connection_slot_leak,
    encoder_free_on_scheduled,
    encoder_free_on_speculated,
    encoder_pop_before_draft,
    encoder_skipped_at_step_end,
    kv_capacity_as_500,
    kv_leak_on_abort,
    lost_token,
    mm_cache_desync,
    mm_chunk_split,
    near_max_oob,
    poisoned_prefix_cache,
    position_overflow,
    pp_illegal_access,
    prompt_taken_for_decode,
    queue_lost_on_resume,
    queued_abort_held,
    repeated_token,
    rows_slip_on_abort,
    schema_ignored,
    shared_block_freed,
    stale_image_embedding,
    stale_kv_on_resume,
    streams_swapped,
    wrong_adapter,
    wrong_block_at_edge,
)
from loadchaos.simulator.engine.rules import EngineRules


@dataclass(frozen=True)
class Defect:
    """One planted bug. `remedies` are engine flags with a value; each of them alone prevents the bug."""

    name: str
    dialect: str
    about: str
    upstream: str
    remedies: Mapping[str, object]
    plant: Callable[[EngineRules], None]


class DefectModule(Protocol):
    """Contents of a defect file. `UPSTREAM` is the URL of the issue, or empty."""

    NAME: str
    ABOUT: str
    UPSTREAM: str
    REMEDIES: dict[str, object]

    def plant(self, rules: EngineRules) -> None: ...


def _defect(dialect: str, module: DefectModule) -> Defect:
    return Defect(module.NAME, dialect, module.ABOUT, module.UPSTREAM, module.REMEDIES, module.plant)


_ALL = (
    _defect("vllm", encoder_pop_before_draft),
    _defect("vllm", encoder_free_on_speculated),
    _defect("vllm", encoder_free_on_scheduled),
    _defect("vllm", encoder_skipped_at_step_end),
    _defect("vllm", mm_cache_desync),
    _defect("vllm", mm_chunk_split),
    _defect("lmdeploy", kv_capacity_as_500),
    _defect("vllm", pp_illegal_access),
    _defect("vllm", near_max_oob),
    _defect("vllm", kv_leak_on_abort),
    _defect("vllm", stale_kv_on_resume),
    _defect("vllm", rows_slip_on_abort),
    _defect("vllm", prompt_taken_for_decode),
    _defect("vllm", wrong_block_at_edge),
    _defect("vllm", poisoned_prefix_cache),
    _defect("vllm", repeated_token),
    _defect("vllm", lost_token),
    _defect("vllm", stale_image_embedding),
    _defect("vllm", streams_swapped),
    _defect("vllm", wrong_adapter),
    _defect("vllm", schema_ignored),
    _defect("vllm", call_cut_at_mark),
    _defect("vllm", queued_abort_held),
    _defect("vllm", admission_stops),
    _defect("vllm", connection_slot_leak),
    _defect("vllm", shared_block_freed),
    _defect("vllm", queue_lost_on_resume),
    _defect("vllm", position_overflow),
)
DEFECTS: dict[str, Defect] = {defect.name: defect for defect in _ALL}


def plant(names: Iterable[str], rules: EngineRules) -> None:
    """Plant these defects into an engine's rules. Raises ValueError for an unknown name."""
    for name in sorted(names):
        if name not in DEFECTS:
            near = difflib.get_close_matches(name, DEFECTS, n=1)
            hint = f": did you mean {near[0]}?" if near else f" (there are {', '.join(DEFECTS)})"
            raise ValueError(f"no defect named {name!r}{hint}")
        DEFECTS[name].plant(rules)
