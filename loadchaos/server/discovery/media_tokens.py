"""What images and videos cost on this server in prompt tokens, whether it takes them, and how many in one prompt."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from loadchaos.core.model import Facts
from loadchaos.server.discovery.client import CalibrationRequest, DiscoveryClient, DiscoveryResponse
from loadchaos.server.discovery.text_tokens import sample
from loadchaos.server.discovery.token_counters import prompt_counters, usage_of

_QUICK_GENERATIONS = 3
_REFUSALS = (400, 415, 422, 501)


def plain_png(width: int, height: int) -> str:
    """A data URL of a one-colour PNG: what an image of that size costs does not depend on what it shows."""
    from PIL import Image  # only where images are measured

    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (90, 140, 200)).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _image_content(text: str, urls: Sequence[str]) -> list[dict[str, Any]]:
    images: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*images, {"type": "text", "text": text}]


class _Prompts:
    """Counts whole prompts: by /render or /tokenize, once the usage of a real answer agrees with it, else by usage alone.

    `how` says which it was. Both leave the caches of a server alone, and cost it no generation.
    """

    def __init__(self, asker: DiscoveryClient, facts: Facts) -> None:
        self._asker, self._model = asker, facts.model
        self._counters = prompt_counters(asker, facts)
        self._checked = False
        self.how = "usage"

    async def count(self, content: list[dict[str, Any]]) -> tuple[int | None, DiscoveryResponse]:
        """(prompt tokens, what the server said); None where it refused, or said nothing of tokens."""
        told = await self.without_generation(content)
        counted = self._counters[0].read(told) if told is not None else None
        if told is not None and self._checked and (counted is not None or told.status in _REFUSALS):
            return counted, told
        real = await self._asker.generate(self._model, content)
        used = usage_of(real)
        if told is None or real.status != 200:
            return used, real
        self._checked = counted is not None and used in (counted, None)
        if not self._checked:  # /tokenize of an old version sees no images; or something answers in the server's place
            self._counters.pop(0)
            return used, real
        self.how = (
            f"/{self._counters[0].source}, {'not checked: no usage is told' if used is None else 'checked by usage'}"
        )
        return counted, real

    async def without_generation(self, content: list[dict[str, Any]]) -> DiscoveryResponse | None:
        """What is said by the way to count without an answer; None where there is none (any more)."""
        while self._counters:
            answer = await self._counters[0].asked([{"role": "user", "content": content}])
            if self._checked or answer.status in (200, *_REFUSALS):  # a refusal may be of this very prompt
                return answer
            self._counters.pop(0)
        return None


async def image_facts(asker: DiscoveryClient, facts: Facts, wanted: CalibrationRequest) -> Facts:
    """Whether images are taken, how many a request may have, and what one of each size costs in prompt tokens."""
    if facts.text is None:
        return facts
    sources = dict(facts.sources)
    tokens: dict[str, int] = {}
    prompts = _Prompts(asker, facts)
    said, expected = sample(facts.text.words, facts.text.unit, seed=3, length=8)
    for width, height in dict.fromkeys(wanted.image_sizes):
        used, answer = await prompts.count(_image_content(said, [plain_png(width, height)]))
        if used is not None:
            tokens[f"{width}x{height}"] = used - expected - facts.text.overhead
            sources["image_tokens"] = prompts.how
        elif answer.status in _REFUSALS and not tokens:
            refused = f"refused with {answer.status}: {answer.text[:160]}"
            if "context length" in answer.text or "max_model_len" in answer.text:
                sources["image_tokens"] = refused  # too large for the context, which says nothing against images
                continue
            return replace(facts, images=False, sources={**sources, "images": refused})
    if not tokens:
        return replace(facts, sources=sources)
    # LMDeploy's text-only models drop images silently in some eras: an image that costs nothing was not looked at.
    if all(cost <= 0 for cost in tokens.values()):
        sources["images"] = "an image adds no prompt token: the server drops it"
        return replace(facts, images=False, sources=sources)
    facts = replace(facts, images=True, image_tokens=tokens, sources={**sources, "images": "a request with one"})
    return await _max_images(asker, facts, wanted, prompts, said)


async def _max_images(
    asker: DiscoveryClient, facts: Facts, wanted: CalibrationRequest, prompts: _Prompts, said: str
) -> Facts:
    """The limit of images a prompt, taken from the refusal's own words; the images asked with are small."""
    most = wanted.images_per_request
    content = _image_content(said, [plain_png(32, 32)] * most)
    if most < 2:
        return facts
    answer = await prompts.without_generation(content)
    if answer is None:
        if wanted.quick and asker.generations >= _QUICK_GENERATIONS:
            return facts
        answer = await asker.generate(facts.model, content)
    if answer.status == 200:
        return replace(facts, sources={**facts.sources, "max_images": f"a request with {most} was taken"})
    limit = re.search(r"[Aa]t most (\d+) image", answer.text)
    if limit is None:
        return facts
    sources = {**facts.sources, "max_images": "the server's refusal of more"}
    return replace(facts, max_images=int(limit[1]), sources=sources)


async def video_facts(asker: DiscoveryClient, facts: Facts, wanted: CalibrationRequest) -> Facts:
    """Whether videos are taken, and what one of each kind costs in prompt tokens."""
    if facts.text is None:
        return facts
    said, expected = sample(facts.text.words, facts.text.unit, seed=4, length=8)
    sources = dict(facts.sources)
    tokens: dict[str, int] = {}
    prompts = _Prompts(asker, facts)
    for kind, part in wanted.videos:
        used, answer = await prompts.count([json.loads(part.rstrip(b",")), {"type": "text", "text": said}])
        if used is not None:
            tokens[kind] = used - expected - facts.text.overhead
            sources["video_tokens"] = prompts.how
        elif not tokens:
            refused = f"refused with {answer.status}: {answer.text[:160]}"
            return replace(facts, videos=False, sources={**sources, "videos": refused})
    if all(cost <= 0 for cost in tokens.values()):
        sources["videos"] = "a video adds no prompt token: the server drops it"
        return replace(facts, videos=False, sources=sources)
    return replace(facts, videos=True, video_tokens=tokens, sources={**sources, "videos": "a request with one"})
