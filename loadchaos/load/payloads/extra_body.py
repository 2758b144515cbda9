"""More fields of the body, as they are: what a server or a gateway takes and loadchaos has no key for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import orjson
from pydantic import ConfigDict, model_validator

from loadchaos.core.model import Facts
from loadchaos.core.rng import Rng
from loadchaos.load.payloads.base import Payload
from loadchaos.load.payloads.sampling import Options as Sampling
from loadchaos.load.wire.contract import OUTPUT_LIMITS
from loadchaos.load.wire.request import Request

_KEYS: Mapping[str, str] = {
    **dict.fromkeys(("messages", "prompt", "input", "query", "documents", "texts", "system"), "another payload"),
    "model": "--model, or sampling: {models: ...}",
    "stream": "stream",
    "stream_options": "stream",
    **dict.fromkeys(OUTPUT_LIMITS, "output: {max: ...}"),
    "min_tokens": "output: {exact: ...}",
    "ignore_eos": "output: {exact: ...}",
    "seed": "sampling: {seeded: ...}",
    "top_logprobs": "sampling: {logprobs: ...}",
    "tools": "tools",
    "tool_choice": "tools",
    "response_format": "structured",
    "structured_outputs": "structured",
    **{
        name: f"sampling: {{{name}: ...}}"
        for name in Sampling.model_fields
        if name not in ("models", "adapters", "seeded", "thinking")
    },
}
"""Fields that loadchaos writes, or by which it judges answers, with the key of a profile that sets each."""
_PROMPT = frozenset(
    {
        "chat_template", "chat_template_kwargs", "mm_processor_kwargs", "add_special_tokens", "add_generation_prompt",
        "continue_final_message", "truncate_prompt_tokens", "reasoning", "enable_thinking", "thinking",
    }
)  # fmt: skip
"""Fields that may change how many tokens a prompt has."""


class Options(Payload):
    """Fields that are added to the body of each request, as they are, such as `chat_template_kwargs`."""

    model_config = ConfigDict(extra="allow")
    ORDER: ClassVar[int] = 40

    @model_validator(mode="after")
    def _none_is_ours(self) -> Self:
        given = self.__pydantic_extra__ or {}
        if not given:
            raise ValueError("at least one field was expected, e.g. {chat_template_kwargs: {enable_thinking: false}}")
        for name in given:
            if name in _KEYS:
                raise ValueError(f"{name} is set by {_KEYS[name]}; leave it out here")
        return self

    @property
    def prompts_differ(self) -> bool:
        return True

    def describe(self) -> str:
        return f"with {', '.join(self.__pydantic_extra__ or {})} in the body"

    def add(self, request: Request, facts: Facts, rng: Rng) -> None:  # noqa: ARG002 - the same in each request
        fields = self.__pydantic_extra__ or {}
        request.more_fields = orjson.dumps(fields)
        if not _PROMPT.isdisjoint(fields):
            request.length_known = False
