"""Measure the prompt tokens of images and videos. The largest number of images in a prompt is read from a refusal."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace

from loadchaos.core.model import Facts
from loadchaos.server.answer import SMALL_QUESTION
from loadchaos.server.discovery.client import CalibrationRequest, DiscoveryClient, DiscoveryResponse
from loadchaos.server.discovery.text_tokens import sample
from loadchaos.server.discovery.token_counters import prompt_counters

_QUICK_GENERATIONS = 3
_REFUSALS = (400, 415, 422, 501)
_NO_IMAGES = (*_REFUSALS, 404)
"""Statuses that mean "no images" when text alone is answered: some gateways look for a model that takes them."""
_SMALL_SIDE = 224


def plain_png(width: int, height: int) -> str:
    """Make a data URL of a one-colour PNG. The token count depends on the size only."""
    from PIL import Image  # only where images are measured

    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (90, 140, 200)).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _image_content(text: str, urls: Sequence[str]) -> list[dict[str, object]]:
    images: list[dict[str, object]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*images, {"type": "text", "text": text}]


class _PromptCounter:
    """Counts prompts with media: by /render or /tokenize, which leave the caches alone, once usage has confirmed it,
    else by usage.
    """

    def __init__(self, client: DiscoveryClient, facts: Facts) -> None:
        self._client, self._model = client, facts.model
        self._counters = prompt_counters(client, facts)
        self._checked = False
        self.method = "usage"

    async def count(self, content: list[dict[str, object]]) -> tuple[int | None, DiscoveryResponse]:
        """Return the prompt tokens (None if refused or not told) and the response."""
        shown = await self.without_generation(content)
        counted = self._counters[0].read(shown) if shown is not None else None
        if shown is not None and self._checked and (counted is not None or shown.status in _REFUSALS):
            return counted, shown
        real = await self._client.generate(self._model, content)
        used = real.prompt_tokens
        if shown is None or not real.is_completion:
            return used, real
        self._checked = counted is not None and used in (counted, None)
        if not self._checked:  # /tokenize of an old version ignores images; or another program answers
            self._counters.pop(0)
            return used, real
        self.method = f"/{self._counters[0].source}, {'not checked: no usage' if used is None else 'checked by usage'}"
        return counted, real

    async def without_generation(self, content: list[dict[str, object]]) -> DiscoveryResponse | None:
        while self._counters:
            answer = await self._counters[0].send_chat([{"role": "user", "content": content}])
            if self._checked or answer.status in (200, *_REFUSALS):  # a refusal may be about this prompt
                return answer
            self._counters.pop(0)
        return None


async def measure_images(client: DiscoveryClient, facts: Facts, request: CalibrationRequest) -> Facts:
    if facts.text is None:
        return await _without_counts(client, facts)
    sources = dict(facts.sources)
    tokens: dict[str, int] = {}
    failed: list[DiscoveryResponse] = []
    too_long: list[str] = []
    prompts = _PromptCounter(client, facts)
    sentence, expected = sample(facts.text.words, facts.text.unit, seed=3, length=8)
    for width, height in dict.fromkeys(request.image_sizes):
        used, answer = await prompts.count(_image_content(sentence, [plain_png(width, height)]))
        if used is not None:
            tokens[f"{width}x{height}"] = used - expected - facts.text.overhead
            sources["image_tokens"] = prompts.method
        elif _is_error(answer):
            failed.append(answer)
        elif answer.status in _NO_IMAGES and _is_too_long(answer):
            too_long.append(f"{width}x{height}")  # images as such may be accepted
            sources["long_images"] = answer.refusal
        elif answer.status in _NO_IMAGES and not tokens:
            return replace(facts, images=False, sources={**sources, "images": answer.refusal})
    facts = replace(facts, long_images=tuple(too_long))
    if failed and not tokens and (fault := await _fault(client, facts, "an image", failed[0])) is not None:
        return replace(facts, images=False, media_fault=fault, sources={**sources, "images": fault})
    if not tokens:
        return replace(facts, sources=sources)
    # Some versions of LMDeploy drop images for text-only models: an image without tokens was not used.
    if all(cost <= 0 for cost in tokens.values()):
        sources["images"] = "an image adds no prompt token: the server drops it"
        return replace(facts, images=False, sources=sources)
    facts = replace(facts, images=True, image_tokens=tokens, sources={**sources, "images": "a request with an image"})
    return await _max_images(client, facts, request, prompts, sentence)


async def _small_image(client: DiscoveryClient, facts: Facts) -> DiscoveryResponse:
    content = _image_content(SMALL_QUESTION, [plain_png(_SMALL_SIDE, _SMALL_SIDE)])
    return await client.generate(facts.model, content)


async def _without_counts(client: DiscoveryClient, facts: Facts) -> Facts:
    small = await _small_image(client, facts)
    if small.status not in _NO_IMAGES or not (await client.generate(facts.model, SMALL_QUESTION)).is_completion:
        return facts
    return replace(facts, images=False, sources={**facts.sources, "images": small.refusal})


def _is_error(answer: DiscoveryResponse) -> bool:
    """True for a 5xx, a cut connection or a 200 without a completion, which are no refusal."""
    if answer.answer is None:
        return answer.status >= 500 and answer.status not in _REFUSALS
    return answer.answer.is_fault and answer.status not in _REFUSALS and answer.answer.outcome != "timeout"


def _is_too_long(answer: DiscoveryResponse) -> bool:
    return "context length" in answer.text or "max_model_len" in answer.text


async def _fault(client: DiscoveryClient, facts: Facts, what: str, first: DiscoveryResponse) -> str | None:
    """Says that a server fails on every image (one small one decides) but answers text; None: it does not."""
    if what == "an image":
        small = await _small_image(client, facts)
        if not _is_error(small):
            return None
    if not (await client.generate(facts.model, SMALL_QUESTION)).is_completion:
        return None
    client.failed = None
    text = " ".join(first.text.split())[:160]
    return f"answers {what} with an error ({f'{first.status} {text}'.strip() if first.status else text})"


async def _max_images(
    client: DiscoveryClient, facts: Facts, request: CalibrationRequest, prompts: _PromptCounter, sentence: str
) -> Facts:
    most = request.images_per_request
    content = _image_content(sentence, [plain_png(32, 32)] * most)
    if most < 2:
        return facts
    answer = await prompts.without_generation(content)
    if answer is None:
        if request.quick and client.generations >= _QUICK_GENERATIONS:
            return facts
        answer = await client.generate(facts.model, content)
    if answer.status == 200 and facts.max_images is not None and facts.max_images >= most:
        return facts  # the settings of the server tell the limit
    if answer.status == 200:
        accepted = f"a request with {most} was accepted"
        return replace(facts, max_images=None, sources={**facts.sources, "max_images": accepted})
    limit = re.search(r"[Aa]t most (\d+) image", answer.text)
    if limit is None:
        return facts
    sources = {**facts.sources, "max_images": "the server's refusal of more"}
    return replace(facts, max_images=int(limit[1]), sources=sources)


async def measure_videos(client: DiscoveryClient, facts: Facts, request: CalibrationRequest) -> Facts:
    if facts.text is None:
        return facts
    sentence, expected = sample(facts.text.words, facts.text.unit, seed=4, length=8)
    sources = dict(facts.sources)
    tokens: dict[str, int] = {}
    prompts = _PromptCounter(client, facts)
    for kind, part in request.videos:
        used, answer = await prompts.count([json.loads(part.rstrip(b",")), {"type": "text", "text": sentence}])
        if used is not None:
            tokens[kind] = used - expected - facts.text.overhead
            sources["video_tokens"] = prompts.method
        elif not tokens:
            if _is_error(answer) and (fault := await _fault(client, facts, "a video", answer)) is not None:
                known = facts.media_fault or fault
                return replace(facts, videos=False, media_fault=known, sources={**sources, "videos": fault})
            return replace(facts, videos=False, sources={**sources, "videos": answer.refusal})
    if all(cost <= 0 for cost in tokens.values()):
        sources["videos"] = "a video adds no prompt token: the server drops it"
        return replace(facts, videos=False, sources=sources)
    return replace(facts, videos=True, video_tokens=tokens, sources={**sources, "videos": "a request with one"})
