"""A prefix cache hit reads a wrong block where a prompt ends with one."""

from loadchaos.simulator.engine.request import ScheduledRequest
from loadchaos.simulator.engine.rules import EngineRules, RequestStep, Spoil

NAME = "wrong_block_at_edge"
ABOUT = "a prompt whose length is a multiple of the block size reads a wrong block when its prefix is in the cache"
UPSTREAM = "https://github.com/sgl-project/sglang/issues/22819"
REMEDIES: dict[str, object] = {"enable_prefix_caching": False}


def plant(rules: EngineRules) -> None:
    """Read a wrong block on a hit at a block edge."""
    size = rules.config.block_size

    def spoil(request: ScheduledRequest, _: RequestStep) -> Spoil | None:
        return "derailed" if request.cached_tokens and request.prompt % size == 0 else None

    rules.spoilers.append(spoil)
