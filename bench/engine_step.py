"""Measure CPU per step of the embedded engine.

Goal: it leaves room for 200 streams at 50 tokens/s.
"""

import time

from loadchaos.simulator.engine.engine import Engine
from loadchaos.simulator.engine.types import EngineConfig, EngineRequest, MMItem

STREAMS = 200
STEPS = 500


def main() -> None:
    for drafts in (0, 1, 3):
        engine = Engine(EngineConfig(max_num_seqs=256, num_gpu_blocks=60_000, num_speculative_tokens=drafts))
        for n in range(STREAMS):
            engine.add(EngineRequest(f"r{n}", 64, 6000, seed=n, mm_items=(MMItem(f"h{n}", 30, 4),)))
        while engine.stats().requests_waiting:
            engine.step()
        begun = time.process_time()
        for _ in range(STEPS):
            engine.step()
        spent_ms = (time.process_time() - begun) * 1000 / STEPS
        print(f"{STREAMS} streams, {drafts} drafts: {spent_ms:.2f} ms a step")


if __name__ == "__main__":
    main()
