"""Run an engine without a clock, a process or a network.

Tests and benchmarks of the engine use this.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from loadchaos.simulator.engine.engine import Engine
from loadchaos.simulator.engine.types import EngineFault, EngineRequest, MMItem, RequestOutput


@dataclass
class LoopResult:
    """Result of a closed loop.

    Steps, virtual seconds, the output of each request, and the death if there was one.
    """

    steps: int = 0
    seconds: float = 0.0
    tokens: dict[str, int] = field(default_factory=dict)
    ended: dict[str, RequestOutput] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    fault: EngineFault | None = None


def closed_loop(engine: Engine, requests: Iterator[EngineRequest], users: int, max_steps: int = 200_000) -> LoopResult:
    """Keep `users` requests in the engine until all have ended or it died.

    Raises:
        RuntimeError: when that takes more than `max_steps` steps, so the engine makes no progress.
    """
    loop = LoopResult()
    for request in islice(requests, users):
        engine.add(request)
    while engine.has_work:
        loop.steps += 1
        if loop.steps > max_steps:
            raise RuntimeError(f"no end after {max_steps} steps: {engine.stats()}")
        try:
            result = engine.step()
        except EngineFault as fault:
            loop.fault = fault
            return loop
        loop.seconds += result.duration_s
        loop.log += result.log
        for output in result.outputs:
            loop.tokens[output.request_id] = loop.tokens.get(output.request_id, 0) + output.new_tokens
            if output.finish_reason:
                loop.ended[output.request_id] = output
                for request in islice(requests, 1):
                    engine.add(request)
    return loop


def mixed_traffic(
    count: int, seed: int = 0, *, images: float = 0.75, image_tokens: int = 1024, per_request: int = 2
) -> Iterator[EngineRequest]:
    """Yield `count` requests, a share `images` of them with images.

    Those have 1 to `per_request` images; one image in five was sent before.


    The layout is that of Qwen-VL prompts: the template's head, the images with a start and an end mark each, then the text.
    """
    rng = random.Random(seed)
    seen: list[str] = []
    for n in range(count):
        position = rng.randint(5, 20)
        items = []
        with_images = rng.random() < images
        for _ in range(rng.randint(1, per_request) if with_images else 0):
            fresh = not seen or rng.random() < 0.8
            mm_hash = f"{rng.getrandbits(256):064x}" if fresh else rng.choice(seen[-200:])
            seen.append(mm_hash)
            items.append(MMItem(mm_hash, image_tokens, position + 1))
            position += image_tokens + 2
        position += rng.randint(32, 512) if with_images else rng.randint(64, 2048)
        yield EngineRequest(f"r{n}", position, 128 if with_images else 256, 0, items, (), seed * 1_000_003 + n)
