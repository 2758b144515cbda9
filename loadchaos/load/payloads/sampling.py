"""Sampling parameters: n, logprobs, temperature, model or LoRA adapter."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from loadchaos.core.model import Facts
from loadchaos.core.rng import Rng
from loadchaos.core.unit_fields import IntRange, Share, at_least
from loadchaos.load.payloads.base import Payload
from loadchaos.load.wire.request import Request

_AS_GIVEN = (
    "prompt_logprobs", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty",
)  # fmt: skip


class Options(Payload):
    """Sampling parameters of a request.

    `n` answers are requested, at temperature 1 where none is given. `logprobs` is the number of candidates per token,
    `prompt_logprobs` likewise (vLLM). `models` are names that the server serves (LoRA adapters), with weights: each request
    draws one. `adapters` is the share of requests that go to a LoRA adapter, each to one of those that the server lists.
    `thinking` (Qwen's and DeepSeek's templates) and `reasoning_effort` are for models that reason; the length of
    such prompts is not known beforehand. `seeded` sends the seed of the step as `seed`, which makes a server sample that
    request with a generator of its own; false sends null, so that requests share one. Penalties, `top_k` and `min_p` are
    sent as they are.
    """

    ORDER: ClassVar[int] = 30
    n: Annotated[IntRange | None, at_least(0, "0 or more was expected")] = None
    logprobs: Annotated[IntRange | None, at_least(0, "0 or more was expected")] = None
    prompt_logprobs: int | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=2)
    seeded: bool | None = None
    models: dict[str, float] = Field(default={})
    adapters: Share | None = None
    thinking: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high"] | None = None

    @model_validator(mode="after")
    def _several_need_temperature(self) -> Options:
        if self.n is not None and self.n.high > 1 and self.temperature == 0:
            raise ValueError("n above 1 needs a temperature above 0: servers refuse several greedy answers")
        return self

    @field_validator("models")
    @classmethod
    def _weights_valid(cls, value: dict[str, float]) -> dict[str, float]:
        if value and (min(value.values()) < 0 or not sum(value.values())):
            raise ValueError("weights are 0 or more, and one of them above 0")
        return value

    @property
    def prompts_differ(self) -> bool:
        return self.n is None or self.n.high <= 1

    def answers_per_request(self) -> float:
        return self.n.mean if self.n is not None else 1.0

    def describe(self) -> str:
        given = self.model_dump(mode="json", exclude_unset=True)
        return "sampled with " + ", ".join(f"{k} {v}" for k, v in given.items()) if given else "default sampling"

    def add(self, request: Request, facts: Facts, rng: Rng) -> None:
        """Add the fields to the body; parameters that are not given are not sent."""
        if self.n is not None:
            request.extra["n"] = n = rng.between(self.n.low, self.n.high)
            if n > 1:
                request.extra["temperature"] = 1.0  # equal answers to one question are refused
        if self.logprobs is not None:
            request.extra |= {"logprobs": True, "top_logprobs": rng.between(self.logprobs.low, self.logprobs.high)}
        request.extra |= {name: value for name in _AS_GIVEN if (value := getattr(self, name)) is not None}
        if self.seeded is not None:
            request.extra["seed"] = request.step.seed & 0x7FFFFFFF if self.seeded else None
        if self.thinking is not None:
            request.extra["chat_template_kwargs"] = {"enable_thinking": self.thinking}
        if self.reasoning_effort is not None:
            request.extra["reasoning_effort"] = self.reasoning_effort
        if self.thinking is not None or self.reasoning_effort is not None:
            request.length_known = False  # a template says it in words of its own
        if self.models:
            request.model = _draw_model(self.models, rng.share())
        if self.adapters is not None and facts.lora_adapters and rng.share() < self.adapters:
            request.model = facts.lora_adapters[rng.between(0, len(facts.lora_adapters) - 1)]


def _draw_model(models: dict[str, float], share: float) -> str:
    left = share * sum(models.values())
    for name, weight in models.items():
        left -= weight
        if left < 0:
            return name
    return list(models)[-1]
