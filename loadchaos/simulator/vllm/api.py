"""vLLM's HTTP API: completions, tokenizer, models, health, metrics."""

from __future__ import annotations

import asyncio
import os
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from loadchaos.simulator.body import Body, objects
from loadchaos.simulator.engine import tokenizer
from loadchaos.simulator.engine.client import EngineClient
from loadchaos.simulator.engine.guided import guided_answer
from loadchaos.simulator.engine.types import EngineRequest
from loadchaos.simulator.http import metrics_page
from loadchaos.simulator.http.api import Api, Refusal, Route
from loadchaos.simulator.http.server import HttpExchange
from loadchaos.simulator.media.processor import AspectRatioError, DecodedImage, ImageError, Processor, place_images
from loadchaos.simulator.options import Options, adapters
from loadchaos.simulator.vllm import errors, pooling, render, requests, transcription
from loadchaos.simulator.vllm.admin import Admin
from loadchaos.simulator.vllm.errors import VllmRefusal
from loadchaos.simulator.vllm.metrics import VllmMetrics
from loadchaos.simulator.vllm.pooling import PoolingRequest
from loadchaos.simulator.vllm.requests import CheckedRequest
from loadchaos.simulator.vllm.streams import VllmGeneration, new_id, seeds_for
from loadchaos.simulator.vllm.translate import messages_to_chat, responses_to_chat
from loadchaos.simulator.vllm.typed_streams import GENERATIONS

_RESPONSES = "/v1/responses"
_MOST_RESPONSES = 10_000

_MOST_SEEN = 4096


class VllmApi(Api):
    """HTTP API of vLLM's server, in the configured era. `handle` is the HTTP server's handler."""

    def __init__(self, options: Options, engine: EngineClient) -> None:
        super().__init__(options, engine)
        self.adapters = adapters(options.server)
        self.fingerprint = f"vllm-{options.engine.version}-51d5c4a0" if self.release >= (0, 30, 0) else None
        self.service_tier = options.server.service_tier or None
        self.token_details = options.server.enable_prompt_tokens_details
        self.metrics = VllmMetrics(options)
        engine.on_step = self.metrics.step_tokens.observe
        self.seen_images: OrderedDict[str, DecodedImage] = OrderedDict()
        """The images that the engine has, by hash."""
        self._admin = Admin(self)
        self._generations: dict[str, VllmGeneration] = {}
        self._kept_responses: dict[str, Sequence[Body]] = {}
        self._admitting = asyncio.Event()
        self._admitting.set()
        self._all_answered = asyncio.Event()
        self._all_answered.set()

    def _processor(self) -> Processor:
        return Processor(hash_pixels=self.release < (0, 13, 0), strict_load=self.release >= (0, 25, 0))

    @property
    def exit_code_on_death(self) -> int | None:
        """0, so that no supervisor restarts it. It is None with VLLM_KEEP_ALIVE_ON_ENGINE_DEATH set: the server stays,
        and fails.
        """
        return None if os.environ.get("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "0") not in {"0", ""} else 0

    def generation_ended(self, generation: VllmGeneration) -> None:
        for choice in generation.choices:
            self._generations.pop(choice.id, None)
        if not self._generations:
            self._all_answered.set()

    def set_holding(self, held: bool) -> None:
        """Hold new requests back without a byte, or admit them again."""
        if held:
            self._admitting.clear()
        else:
            self._admitting.set()

    def abort_all(self, ids: list[str] | None = None) -> int:
        """End running generations with finish_reason abort; None means all. Returns the number of aborted generations."""
        chosen = self._generations if ids is None else {i: g for i in ids if (g := self._generations.get(i))}
        running = set(chosen.values())
        for generation in running:
            generation.abort()
        return len(running)

    async def idle(self) -> None:
        await self._all_answered.wait()

    def _refuse(self, exchange: HttpExchange, refusal: Refusal) -> None:
        errors.send(exchange, refusal, self.release)

    def _routes(self) -> Iterable[Route]:
        return (
            Route("POST", "/v1/chat/completions", partial(self._generate, chat=True)),
            Route("POST", "/v1/completions", partial(self._generate, chat=False)),
            Route("POST", "/v1/chat/completions/render", partial(self._render, chat=True), (0, 18, 0)),
            Route("POST", "/v1/completions/render", partial(self._render, chat=False), (0, 18, 0)),
            Route("POST", _RESPONSES, partial(self._generate, chat=True, translated=self._from_response), (0, 10, 0)),
            Route("POST", "/v1/messages", partial(self._generate, chat=True, translated=messages_to_chat), (0, 11, 1)),
            Route("POST", transcription.PATH, self._transcribe),
            *(Route("POST", path, lambda exchange: PoolingRequest(self, exchange).submit()) for path in pooling.PATHS),
            Route("GET", "/v1/models", self._models),
            Route("POST", "/tokenize", self._tokenize),
            Route("GET", "/health", self._health),
            Route("GET", "/version", lambda exchange: exchange.send_json({"version": self.options.engine.version})),
            Route("GET", "/metrics", self._metrics),
            *(self._admin.routes() if self.options.server.dev_mode else ()),
        )

    # simple endpoints

    def _health(self, exchange: HttpExchange) -> None:
        status = 200
        if self.engine.dead and self.release >= (0, 9, 0):
            status = 503 if self.release >= (0, 11, 0) else 500
        exchange.send(status, b"", None)

    def _metrics(self, exchange: HttpExchange) -> None:
        self.metrics.mm_queries, self.metrics.mm_hits = self.sender.queries, self.sender.hits
        exchange.send(200, self.metrics.page(self.engine.stats), metrics_page.CONTENT_TYPE)

    def _models(self, exchange: HttpExchange) -> None:
        card = self._model_card("vllm", f"/models/{self.model}")
        card["max_model_len"] = self.options.engine.max_model_len
        loras = [
            {**card, "id": name, "root": path, "parent": self.model, "max_model_len": None}
            for name, path in self.adapters.items()
        ]
        exchange.send_json({"object": "list", "data": [card, *loras]})

    def body(self, exchange: HttpExchange) -> Body:
        """Return the body of a request for a model that is served. Raises VllmRefusal."""
        data = requests.parse_body(exchange)
        requests.check_model(data, self.model, self.adapters)
        return data

    async def _tokenize(self, exchange: HttpExchange) -> None:
        data = self.body(exchange)
        if "messages" in data:
            prompt = requests.chat_prompt(data, self.options)
            ids, _ = place_images(prompt.pieces, await self._decode_images(prompt.sources))
        elif isinstance(text := data.get("prompt"), str):
            ids = tuple(requests.encode(text))
        else:
            shown = f"<dict of {len(data)} items>"
            template = "{'type': 'missing', 'loc': 'body.%s', 'msg': 'Field required', 'input': '%s'}"
            text = f"2 validation errors:\n  {template % ('prompt', shown)}\n  {template % ('messages', shown)}"
            raise VllmRefusal(text, "Bad Request", "body.prompt")
        texts = [tokenizer.decode((i,)) for i in ids] if data.get("return_token_strs") else None
        limit = self.options.engine.max_model_len
        exchange.send_json({"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": texts})

    async def _render(self, exchange: HttpExchange, *, chat: bool) -> None:
        if self.release >= render.GATED_SINCE and not self.options.server.enable_scale_out:
            raise render.disabled()
        data = self.body(exchange)
        sampling = requests.sampling(data, chat, self.options)
        results = []
        for prompt in requests.prompts(data, self.options, chat=chat):
            ids, images = place_images(prompt.pieces, await self._decode_images(prompt.sources))
            checked = CheckedRequest(prompt, sampling, chat, new_id(chat, None), ids, images)
            results.append(render.rendered(requests.fit(checked, self.options)))
        exchange.send_json(results[0] if chat else results)

    # generation

    def _from_response(self, data: Body) -> Body:
        return responses_to_chat(data, self._kept_responses.get)

    def _transcribe(self, exchange: HttpExchange) -> None:
        form = transcription.Form(exchange)
        requests.check_model(form.fields, self.model, self.adapters)
        if self.engine.dead:
            raise errors.dead(self.release)
        sampling = requests.sampling(form.sampling_fields(), True, self.options)
        source = requests.MediaSource(transcription.PATH, None)
        shown_id = f"trsc-{uuid.uuid4().hex[:16]}"
        checked = CheckedRequest(requests.Prompt((transcription.START, ()), (source,)), sampling, True, shown_id)
        self._submit(exchange, checked, (form.audio(),))

    def keep_response(self, response_id: str, messages: Sequence[Body]) -> None:
        if len(self._kept_responses) >= _MOST_RESPONSES:
            self._kept_responses.pop(next(iter(self._kept_responses)))
        self._kept_responses[response_id] = messages

    def _generate(
        self, exchange: HttpExchange, *, chat: bool, translated: Callable[[Body], Body] = lambda data: data
    ) -> Awaitable[None] | None:
        data = translated(requests.parse_body(exchange))
        if chat and "messages" not in data:
            requests.chat_prompt(data, self.options)  # raises: the body's shape comes before its model
        adapter = requests.check_model(data, self.model, self.adapters)
        if self.engine.dead:
            raise errors.dead(self.release)
        sampling = requests.sampling(data, chat, self.options)
        prompt = (requests.chat_prompt if chat else requests.completion_prompt)(data, self.options)
        guided = guided_answer(data, zlib.crc32(exchange.body))
        if guided is not None and guided.tool and self.rules.ends_calls_at:
            guided = guided._replace(text=guided.text.partition(self.rules.ends_calls_at)[0])
        shown_id, messages = new_id(chat, exchange.headers.get("x-request-id")), tuple[Body, ...]()
        if exchange.path == _RESPONSES:
            shown_id = str(data.get("request_id") or f"resp_{uuid.uuid4().hex[:16]}")
            messages = tuple(objects(data["messages"]))
        salt = str(data.get("cache_salt") or "")
        checked = CheckedRequest(
            prompt, sampling, chat, shown_id, guided=guided, messages=messages, adapter=adapter, cache_salt=salt
        )
        if prompt.sources or not (self._admitting.is_set() or self._admin.refusing):
            return self._submit_later(exchange, checked)
        self._submit(exchange, checked, ())
        return None

    async def _submit_later(self, exchange: HttpExchange, checked: CheckedRequest) -> None:
        decoded = await self._decode_images(checked.prompt.sources)
        while not (self._admitting.is_set() or self._admin.refusing):
            await self._admitting.wait()
        if not exchange.done:  # else the client has left
            self._submit(exchange, checked, decoded)

    async def _decode_images(self, sources: Sequence[requests.MediaSource]) -> list[DecodedImage]:
        images = await self._decoded(source.url for source in sources)
        return [
            image if source.uuid is None else image.named(source.uuid)
            for source, image in zip(sources, images, strict=True)
        ]

    def _unreadable(self, error: ImageError) -> Refusal:
        if isinstance(error, AspectRatioError):
            return errors.aspect_ratio(error.width, error.height)
        return VllmRefusal(str(error), error.kind, None, error.status)

    def _submit(self, exchange: HttpExchange, checked: CheckedRequest, decoded: Sequence[DecodedImage]) -> None:
        ids, images = place_images(checked.prompt.pieces, decoded)
        images = tuple((offset, self._as_engine_has(image)) for offset, image in images)
        checked = requests.fit(replace(checked, ids=ids, images=images), self.options)
        engine_id = checked.request_id
        while engine_id in self._generations or f"0_{engine_id}" in self._generations:
            engine_id += "-1"  # two clients may send the same X-Request-Id; both are served
        generation = GENERATIONS.get(exchange.path, VllmGeneration)(
            self, exchange, checked, engine_id, seeds_for(checked, self._random)
        )
        if self._admin.refusing:
            generation.fail(errors.paused())
            return
        marks = [(offset, image.tokens, int(image.hash[:12], 16)) for offset, image in checked.images]
        names = filter(None, (checked.adapter, checked.cache_salt))
        prefix = self._prefix(ids, [*marks, *((0, len(ids), zlib.crc32(name.encode())) for name in names)])
        self._all_answered.clear()
        for choice in generation.choices:
            self._generations[choice.id] = generation
        for choice in generation.choices:
            guided, min_tokens = checked.guided is not None, checked.sampling.min_tokens
            request = EngineRequest(
                id=choice.id,
                prompt_tokens=len(ids),
                max_tokens=checked.sampling.max_tokens or 1,
                min_tokens=min(min_tokens, choice.stop_after)
                if guided
                else min_tokens,  # a grammar allows nothing behind its end
                mm_items=self._items(checked.images),
                prefix_hashes=prefix,
                seed=choice.answer.seed,
                stop_after=choice.stop_after,
                adapter=checked.adapter,
                guided=guided,
            )
            self.engine.add(request, choice)

    def _as_engine_has(self, image: DecodedImage) -> DecodedImage:
        """Return the image that the engine computes with. A client's own name (`uuid`) is the cache key: while the
        engine has an image of this name, new bytes are not sent.
        """
        if image.hash in self.sender and image.hash in self.seen_images:
            self.seen_images.move_to_end(image.hash)
            return replace(image, content=self.seen_images[image.hash].content)
        self.seen_images[image.hash] = image
        if len(self.seen_images) > _MOST_SEEN:
            self.seen_images.popitem(last=False)
        return image
