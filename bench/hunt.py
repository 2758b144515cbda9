"""Requests to the first failure, by strategy, for each planted defect of the embedded engine.

`python -m bench.hunt [DEFECT...] [--seeds 5] [--budget 20000]` compares the shipped profile, a hunt, random genes without
feedback (with the lengths of a hunt, and with fixed ones), and plain load. All run in virtual time (bench/virtual_engine.py)
with equal flags of the server. Virtual time has neither questions nor discovery: only requests of the load are counted, and
a wrong answer counts when the engine makes it. It prints the table of docs/measured/hunt.md. With `--tools` real benchmark
tools load the embedded server over HTTP (bench/hunt_tools.py).
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import hunt_tools
from bench.cost.contenders import Environments
from bench.virtual_engine import VirtualServer
from loadchaos.campaigns.hunt.corpus import Corpus
from loadchaos.campaigns.hunt.genes import ServerLimits, pool_of
from loadchaos.campaigns.hunt.journal import WorkloadRow
from loadchaos.core import resources
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.load import registry
from loadchaos.profile.profile import Profile, from_mapping, load
from loadchaos.simulator.engine.types import EngineConfig

PLAIN: Mapping[str, Mapping[str, Any]] = {
    "random": {"text": {"tokens": 1024}},
    "random-mm": {"text": {"tokens": 1024}, "images": {"count": 1, "size": "448x448"}},
}
"""Loads of the shape of `vllm bench serve`: 1024 tokens in, 128 out."""
_FIXED_LENGTHS = [32, 64, 128]
"""Requests of a load of random genes, whatever its users."""


@dataclass(frozen=True)
class HuntCase:
    """A defect, the profile that looks for it, and the flags of its server."""

    defect: str
    profile: str
    flags: Mapping[str, Any] = field(default_factory=dict)


CASES = (
    HuntCase("encoder_free_on_speculated", "mtp_mm"),
    HuntCase("encoder_free_on_scheduled", "mtp_mm"),
    HuntCase("encoder_pop_before_draft", "mtp_mm"),
    HuntCase("encoder_skipped_at_step_end", "mtp_mm"),
    HuntCase("mm_cache_desync", "mtp_mm"),
    HuntCase("mm_chunk_split", "mm_chunked_prefill", {"era": "0.8.1"}),
    HuntCase("near_max_oob", "near_max_len", {"max_model_len": 4096}),
    HuntCase("pp_illegal_access", "pp_memory_pressure", {"pipeline_parallel_size": 4, "gpu_memory_utilization": 0.3}),
    HuntCase("kv_leak_on_abort", "corruption"),
    HuntCase("queued_abort_held", "abort_storm", {"max_num_seqs": 16}),
    HuntCase("stale_kv_on_resume", "corruption", {"num_gpu_blocks": 256}),
    HuntCase("rows_slip_on_abort", "corruption"),
    HuntCase("prompt_taken_for_decode", "spec_text"),
    HuntCase("wrong_block_at_edge", "corruption"),
    HuntCase("repeated_token", "spec_text"),
    HuntCase("lost_token", "spec_text"),
    HuntCase("stale_image_embedding", "mtp_mm"),
    HuntCase("streams_swapped", "corruption"),
    HuntCase("admission_stops", "kv_pressure", {"era": "0.32", "max_num_seqs": 12, "num_gpu_blocks": 200}),
    HuntCase("queue_lost_on_resume", "engine_pause", {"era": "0.32", "max_num_seqs": 16}),
    HuntCase("shared_block_freed", "prefix_cache", {"era": "0.32", "num_gpu_blocks": 1500}),
)


@dataclass(frozen=True)
class Measured:
    """Requests and virtual seconds to the first failure; not `found`: censored at the budget."""

    requests: int
    seconds: float
    found: bool


def measure(case: HuntCase, strategy: str, seed: int, budget: int) -> Measured:
    """Run one strategy until its first failure or its budget of requests."""
    server = VirtualServer(EngineConfig(defects=frozenset([case.defect]), seed=seed, **case.flags))
    sent, seconds = 0, 0.0
    corpus = _corpus(server, seed, strategy) if strategy in ("hunt", "lengths", "chance") else None
    profile = None if corpus is not None else _profile(case, strategy)
    while sent < budget:
        before_s = server.now_s
        if corpus is not None:
            choice = corpus.choose()
            profile, chosen_seed = _checked(choice.workload.profile(corpus.pool)), choice.seed
        else:
            chosen_seed = seed * 1000 + sent
        assert profile is not None
        result = server.run(profile, chosen_seed, budget - sent)
        if result.failure:
            return Measured(sent + result.after_requests, seconds + result.seconds, True)
        sent += max(1, result.requests)
        seconds += server.now_s - before_s
        if corpus is not None:
            coverage = result.coverage
            row = {
                "features": sorted(coverage.features),
                "lines": list(coverage.lines),
                "failures": [],
                "at_s": seconds,
            }
            chosen = {"n": choice.number, "workload": to_json(choice.workload), "parent": choice.parent}
            corpus.fold(from_json(WorkloadRow, {**chosen, **row}))
    return Measured(budget, seconds, False)


def _corpus(server: VirtualServer, seed: int, strategy: str) -> Corpus:
    """Corpus of a hunt, or of random genes.

    `chance` has fixed lengths, `lengths` those of a hunt.
    """
    settings = {"max_num_batched_tokens": server.config.max_num_batched_tokens, "sleep_mode": True}
    load = {"questions": False, **({"requests": _FIXED_LENGTHS} if strategy == "chance" else {})}
    return Corpus(seed, pool_of(ServerLimits(server.facts(), settings), {"load": load}), strategy == "hunt")


def _profile(case: HuntCase, strategy: str) -> Profile:
    if strategy == "profile":
        return load(resources.profile(case.profile), registry.full_registry(), ())
    traffic = {"name": "plain", "payload": PLAIN[strategy], "output": {"exact": 128}}
    return _checked({"name": "plain", "traffic": [traffic], "load": [{"users": 32, "requests": 1000}]})


def _checked(data: Mapping[str, Any]) -> Profile:
    target = {"launch": {"command": ["serve"], "url": "http://127.0.0.1:1"}}
    return from_mapping({**data, "target": target}, registry.full_registry())


@dataclass(frozen=True)
class ToolSettings:
    """Settings of the runs of benchmark tools: requests of each, speed of the embedded server, environments."""

    budget: int
    speed: float
    tools: Sequence[str]
    environments: Environments


STRATEGIES = ("profile", "hunt", "lengths", "chance", "random", "random-mm")


def shown(found: Sequence[Measured], budget: int) -> str:
    """Median with the range of the middle 80 %, and how many were found."""
    values = sorted(m.requests if m.found else math.inf for m in found)
    low, mid, high = (values[min(len(values) - 1, int(q * len(values)))] for q in (0.1, 0.5, 0.9))

    def text(value: float) -> str:
        return f"> {budget:,}" if math.isinf(value) else f"{value:,.0f}"

    hits = sum(m.found for m in found)
    if not hits:
        return f"> {budget:,} (0 of {len(found)})"
    return f"{text(mid)} ({text(low)} to {text(high)})" + (f", {hits} of {len(found)}" if hits < len(found) else "")


def shown_time(found: Sequence[Measured]) -> str:
    """Median of the wall-clock time to the first failure, without censored runs."""
    values = sorted(m.seconds for m in found if m.found)
    return f", {values[len(values) // 2]:.0f} s" if values else ""


def measure_tool(case: HuntCase, tool: str, seed: int, settings: ToolSettings) -> Measured:
    """Run a benchmark tool against the embedded server until its first failure or its last request."""
    flags = {"speed": settings.speed, "seed": seed, **case.flags}
    argv = ["--defect", case.defect, "--era", str(flags.pop("era", EngineConfig().era))]
    argv += [word for name, value in flags.items() for word in ("--flag", f"{name}={value}")]
    result = hunt_tools.run_tool(tool, argv, seed, settings.budget, settings.environments)
    print(f"<!-- {case.defect}, {tool}, seed {seed}: {result} -->", flush=True)
    return Measured(result.requests, result.seconds, result.found)


def print_tools(cases: Sequence[HuntCase], seeds: int, settings: ToolSettings) -> None:
    """Print a table of the benchmark tools; one run after the other."""
    print(f"| defect | {' | '.join(f'`{t}`' for t in settings.tools)} |\n|---|{'---|' * len(settings.tools)}")
    for case in cases:
        cells = []
        for tool in settings.tools:
            found = [measure_tool(case, tool, seed, settings) for seed in range(seeds)]
            cells.append(shown(found, settings.budget) + shown_time(found))
        print(f"| `{case.defect}` | {' | '.join(cells)} |", flush=True)


def _one(arguments: tuple[HuntCase, str, int, int]) -> Measured:
    return measure(*arguments)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("defects", nargs="*")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--tools", nargs="*", choices=sorted(hunt_tools.TOOLS), help="all where none is named")
    parser.add_argument("--with", dest="given", action="append", default=[], metavar="NAME=VENV")
    parser.add_argument("--speed", type=float, default=10.0, help="of the embedded server under a tool")
    options = parser.parse_args()
    cases = [c for c in CASES if not options.defects or c.defect in options.defects]
    if options.tools is not None:
        given = {name: Path(path) for name, _, path in (text.partition("=") for text in options.given)}
        tools = options.tools or list(hunt_tools.TOOLS)
        print_tools(cases, options.seeds, ToolSettings(options.budget, options.speed, tools, Environments(given)))
        return
    print(
        "<!-- requests of the load: in virtual time nothing is asked beside it, and no server has to be identified -->"
    )
    print(f"| defect | profile | {' | '.join(STRATEGIES[1:])} |\n|---|---|{'---|' * len(STRATEGIES[1:])}")
    with ProcessPoolExecutor(options.processes) as pool:
        for case in cases:
            begin_s = time.monotonic()
            jobs = [(case, s, seed, options.budget) for s in STRATEGIES for seed in range(options.seeds)]
            results = list(pool.map(_one, jobs))
            cells = [
                shown(results[i * options.seeds : (i + 1) * options.seeds], options.budget)
                for i in range(len(STRATEGIES))
            ]
            took = f"<!-- {time.monotonic() - begin_s:.0f} s -->"
            print(f"| `{case.defect}` | `{case.profile}`: {cells[0]} | {' | '.join(cells[1:])} | {took}", flush=True)


if __name__ == "__main__":
    main()
