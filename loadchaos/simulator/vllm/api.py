"""vLLM's HTTP API: completions, tokenizer, models, health, metrics."""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from loadchaos.simulator.defects import plant
from loadchaos.simulator.engine import tokenizer
from loadchaos.simulator.engine.client import EngineClient
from loadchaos.simulator.engine.guided import guided_answer
from loadchaos.simulator.engine.rules import EngineRules
from loadchaos.simulator.engine.types import EngineRequest, MMItem
from loadchaos.simulator.http import metrics_page
from loadchaos.simulator.http.routes import Route, Routes
from loadchaos.simulator.http.server import HttpExchange
from loadchaos.simulator.media.images import ImageReader
from loadchaos.simulator.media.processor import AspectRatioError, DecodedImage, ImageError, Processor
from loadchaos.simulator.media.sender_cache import SenderCache
from loadchaos.simulator.options import Options, adapters, release
from loadchaos.simulator.vllm import errors, pooling, render, requests, transcription, translate
from loadchaos.simulator.vllm.admin import Admin
from loadchaos.simulator.vllm.errors import VllmRefusal
from loadchaos.simulator.vllm.metrics import VllmMetrics
from loadchaos.simulator.vllm.requests import CheckedRequest
from loadchaos.simulator.vllm.streams import VllmGeneration, new_id, seeds_for
from loadchaos.simulator.vllm.typed_streams import GENERATIONS

_RESPONSES_SINCE, _MESSAGES_SINCE = (0, 10, 0), (0, 11, 1)
_MOST_RESPONSES = 10_000

_MOST_SEEN = 4096


class VllmApi:
    """HTTP API of vLLM's server, in the configured era. `handle` is the HTTP server's handler."""

    def __init__(self, options: Options, engine: EngineClient) -> None:
        self.options = options
        self.engine = engine
        self.release = release(options.engine.era)
        self.model = options.server.model
        self.adapters = adapters(options.server)
        self.fingerprint = f"vllm-{options.version}-51d5c4a0" if self.release >= (0, 30, 0) else None
        self.service_tier = options.server.service_tier or None
        self.token_details = options.server.enable_prompt_tokens_details
        rules = EngineRules(options.engine)
        plant(options.engine.defects, rules)
        self._ends_calls_at = rules.ends_calls_at
        self.metrics = VllmMetrics(options)
        self.sender = SenderCache(options.engine.mm_processor_cache_items)
        self._seen: OrderedDict[str, DecodedImage] = OrderedDict()
        server = options.server
        self._reader = ImageReader(
            Processor(
                server.patch,
                server.min_pixels,
                server.max_pixels,
                self.release < (0, 13, 0),
                self.release >= (0, 25, 0),
            )
        )
        self._admin = Admin(self)
        self._random = random.Random()
        self._generations: dict[str, VllmGeneration] = {}
        self._kept_responses: dict[str, list[dict[str, Any]]] = {}
        self._admitting = asyncio.Event()
        self._admitting.set()
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._routes = Routes(self._table(), VllmRefusal, self._refuse)
        engine.on_step = self._record_step

    def warm_up(self) -> None:
        """Import the image decoder, once the server listens."""
        if self.options.server.images:
            self._reader.warm_up()

    @property
    def routes(self) -> list[tuple[str, str]]:
        """(path, method) of all endpoints, for the log."""
        return self._routes.endpoints()

    @property
    def exit_code_on_death(self) -> int | None:
        """0, so that no supervisor restarts it.

        It is None with VLLM_KEEP_ALIVE_ON_ENGINE_DEATH set: the server stays, and fails.
        """
        return None if os.environ.get("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "0") not in {"0", ""} else 0

    def handle(self, exchange: HttpExchange) -> None:
        """Answer one request, now or in a task."""
        self._routes.answer(exchange, exchange.path)

    def seen_image(self, mm_hash: str) -> DecodedImage | None:
        """Return the image that the engine has under a hash."""
        return self._seen.get(mm_hash)

    def abort_in_engine(self, ids: list[str]) -> None:
        """Remove requests from the engine."""
        self.engine.abort(ids)

    def generation_ended(self, generation: VllmGeneration) -> None:
        """Note that a generation is answered, or that its client has gone."""
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
        """End running generations with finish_reason abort; None means all.

        Returns the number of aborted generations.
        """
        chosen = self._generations if ids is None else {i: g for i in ids if (g := self._generations.get(i))}
        running = set(chosen.values())
        for generation in running:
            generation.abort()
        return len(running)

    async def idle(self) -> None:
        """Wait until no generation runs."""
        await self._all_answered.wait()

    def _record_step(self, tokens: int) -> None:
        if tokens:
            self.metrics.step_tokens.observe(tokens)

    def _refuse(self, exchange: HttpExchange, refusal: VllmRefusal) -> None:
        errors.send(exchange, refusal, self.release)

    def _table(self) -> dict[tuple[str, str], Route]:
        table: dict[tuple[str, str], Route] = {
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._completions,
            ("GET", "/v1/models"): self._models,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("POST", "/ping"): self._health,
            ("GET", "/version"): lambda exchange: exchange.send(200, orjson.dumps({"version": self.options.version})),
            ("GET", "/load"): lambda exchange: exchange.send(200, orjson.dumps({"server_load": self._server_load()})),
            ("GET", "/metrics"): self._metrics,
        }
        if self.release >= render.SINCE:
            table |= {("POST", path): partial(self._render, chat=chat) for path, chat in render.PATHS.items()}
        if self.release >= _RESPONSES_SINCE:
            table["POST", "/v1/responses"] = self._responses
        if self.release >= _MESSAGES_SINCE:
            table["POST", "/v1/messages"] = self._messages
        table |= {("POST", path): self._pool for path in pooling.PATHS}
        table["POST", transcription.PATH] = self._transcribe
        if self.options.server.dev_mode:
            table |= self._admin.routes()
        return table

    def _server_load(self) -> int:
        return len(self._generations) if self.options.server.enable_server_load_tracking else 0

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
        now = int(time.time())
        permission = {
            "id": f"modelperm-{uuid.uuid4().hex[:16]}", "object": "model_permission", "created": now,
            "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True, "allow_search_indices": False,
            "allow_view": True, "allow_fine_tuning": False, "organization": "*", "group": None, "is_blocking": False,
        }  # fmt: skip
        card = {
            "id": self.model, "object": "model", "created": now, "owned_by": "vllm", "root": f"/models/{self.model}",
            "parent": None, "max_model_len": self.options.engine.max_model_len, "permission": [permission],
        }  # fmt: skip
        loras = [
            {**card, "id": name, "root": path, "parent": self.model, "max_model_len": None}
            for name, path in self.adapters.items()
        ]
        exchange.send(200, orjson.dumps({"object": "list", "data": [card, *loras]}))

    def _tokenize(self, exchange: HttpExchange) -> Awaitable[None] | None:
        data = requests.parse_body(exchange)
        requests.check_model(data, self.model, self.adapters)
        if "messages" in data:
            prompt = requests.chat_prompt(data, self.options)
            if prompt.sources:
                return self._tokenize_with_images(exchange, prompt)
            self._send_tokens(exchange, data, prompt.pieces[0])
        elif isinstance(data.get("prompt"), str):
            self._send_tokens(exchange, data, requests.encode(data["prompt"]))
        else:
            shown = f"<dict of {len(data)} items>"
            template = "{'type': 'missing', 'loc': 'body.%s', 'msg': 'Field required', 'input': '%s'}"
            text = f"2 validation errors:\n  {template % ('prompt', shown)}\n  {template % ('messages', shown)}"
            raise VllmRefusal(text, "Bad Request", "body.prompt")
        return None

    async def _tokenize_with_images(self, exchange: HttpExchange, prompt: requests.Prompt) -> None:
        ids, _ = requests.assemble(prompt, await self._decode_images(prompt.sources))
        self._send_tokens(exchange, {}, ids)

    def _send_tokens(self, exchange: HttpExchange, data: dict[str, Any], ids: Sequence[int]) -> None:
        texts = [tokenizer.token_text(i) for i in ids] if data.get("return_token_strs") else None
        limit = self.options.engine.max_model_len
        body = {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": texts}
        exchange.send(200, orjson.dumps(body))

    def _detokenize(self, exchange: HttpExchange) -> None:
        data = requests.parse_body(exchange)
        requests.check_model(data, self.model, self.adapters)
        tokens = data.get("tokens")
        if not isinstance(tokens, list):
            raise errors.validation("missing", "body.tokens", "Field required", f"<dict of {len(data)} items>")
        exchange.send(200, orjson.dumps({"prompt": tokenizer.decode(t for t in tokens if isinstance(t, int))}))

    async def _render(self, exchange: HttpExchange, *, chat: bool) -> None:
        if self.release >= render.GATED_SINCE and not self.options.server.enable_scale_out:
            raise render.disabled()
        data = requests.parse_body(exchange)
        requests.check_model(data, self.model, self.adapters)
        sampling = requests.sampling(data, chat, self.options)
        results = []
        for prompt in requests.prompts(data, self.options, chat=chat):
            ids, images = requests.assemble(prompt, await self._decode_images(prompt.sources))
            checked = CheckedRequest(prompt, sampling, chat, new_id(chat, None), ids, images)
            results.append(render.rendered(requests.fit(checked, self.options), data, self.model))
        exchange.send(200, orjson.dumps(results[0] if chat else results))

    # generation

    def _chat(self, exchange: HttpExchange) -> Awaitable[None] | None:
        return self._generate(exchange, chat=True)

    def _completions(self, exchange: HttpExchange) -> Awaitable[None] | None:
        return self._generate(exchange, chat=False)

    def _responses(self, exchange: HttpExchange) -> Awaitable[None] | None:
        data = requests.parse_body(exchange)
        response_id = str(data.get("request_id") or f"resp_{uuid.uuid4().hex[:16]}")
        chat = translate.responses_to_chat(data, self._kept_responses.get)
        return self._generate_from(exchange, chat, chat=True, shown_id=response_id)

    def _messages(self, exchange: HttpExchange) -> Awaitable[None] | None:
        data = translate.messages_to_chat(requests.parse_body(exchange))
        return self._generate_from(exchange, data, chat=True)

    def _transcribe(self, exchange: HttpExchange) -> None:
        form = transcription.Form(exchange)
        requests.check_model(form.fields, self.model, self.adapters)
        if self.engine.dead:
            raise errors.dead(self.release)
        sampling = requests.sampling(form.sampling_fields(), True, self.options)
        source = requests.MediaSource(transcription.PATH, None)
        shown_id = f"trsc-{uuid.uuid4().hex[:16]}"
        checked = CheckedRequest(requests.Prompt((form.prompt, ()), (source,)), sampling, True, shown_id)
        self._submit(exchange, checked, (form.audio(),))

    def _pool(self, exchange: HttpExchange) -> None:
        pooling.PoolingRequest(self, exchange).submit()

    def keep_response(self, response_id: str, messages: list[dict[str, Any]]) -> None:
        """Keep the messages of a response for a later one."""
        if len(self._kept_responses) >= _MOST_RESPONSES:
            self._kept_responses.pop(next(iter(self._kept_responses)))
        self._kept_responses[response_id] = messages

    def _generate(self, exchange: HttpExchange, chat: bool) -> Awaitable[None] | None:
        return self._generate_from(exchange, requests.parse_body(exchange), chat=chat)

    def _generate_from(
        self, exchange: HttpExchange, data: dict[str, Any], *, chat: bool, shown_id: str = ""
    ) -> Awaitable[None] | None:
        if chat and "messages" not in data:
            requests.chat_prompt(data, self.options)  # raises: the body's shape comes before its model
        adapter = requests.check_model(data, self.model, self.adapters)
        if self.engine.dead:
            raise errors.dead(self.release)
        sampling = requests.sampling(data, chat, self.options)
        prompt = (requests.chat_prompt if chat else requests.completion_prompt)(data, self.options)
        guided = guided_answer(data, zlib.crc32(exchange.body))
        if guided is not None and guided.tool and self._ends_calls_at:
            guided = guided._replace(text=guided.text.partition(self._ends_calls_at)[0])
        shown_id = shown_id or new_id(chat, exchange.headers.get("x-request-id"))
        messages = tuple(data["messages"]) if exchange.path == "/v1/responses" else ()
        salt = str(data.get("cache_salt") or "")
        checked = CheckedRequest(
            prompt, sampling, chat, shown_id, guided=guided, messages=messages, adapter=adapter, cache_salt=salt
        )
        if prompt.sources or not (self._admitting.is_set() or self._admin.refusing):
            return self._submit_later(exchange, checked)
        self._submit(exchange, checked, ())
        return None

    async def _submit_later(self, exchange: HttpExchange, checked: CheckedRequest) -> None:
        client_left = False

        def note_disconnect() -> None:
            nonlocal client_left
            client_left = True

        exchange.on_disconnect = note_disconnect
        decoded = await self._decode_images(checked.prompt.sources)
        while not (self._admitting.is_set() or self._admin.refusing):
            await self._admitting.wait()
        if not client_left:
            self._submit(exchange, checked, decoded)

    async def _decode_images(self, sources: Sequence[requests.MediaSource]) -> list[DecodedImage]:
        """Decode all images.

        Raises:
            VllmRefusal: with vLLM's message for the first bad image.
        """
        results = await asyncio.gather(*(self._reader.read(s.url) for s in sources), return_exceptions=True)
        decoded = []
        for source, result in zip(sources, results, strict=True):
            if isinstance(result, AspectRatioError):
                raise errors.aspect_ratio(result.width, result.height) from result
            if isinstance(result, ImageError):
                raise VllmRefusal(str(result), result.kind, None, result.status) from result
            if isinstance(result, BaseException):
                raise result
            decoded.append(result if source.uuid is None else result.named(source.uuid))
        return decoded

    def _submit(self, exchange: HttpExchange, checked: CheckedRequest, decoded: Sequence[DecodedImage]) -> None:
        """Send a checked request to the engine. From here on its generation answers it."""
        ids, images = requests.assemble(checked.prompt, decoded)
        images = tuple((offset, self._as_engine_has(image)) for offset, image in images)
        checked = requests.fit(replace(checked, ids=ids, images=images), self.options)
        engine_id = checked.request_id
        while engine_id in self._generations or f"0_{engine_id}" in self._generations:
            engine_id += "-1"  # two clients may send the same X-Request-Id; both are served
        generation = GENERATIONS.get(exchange.path, VllmGeneration)(
            self, exchange, checked, engine_id, seeds_for(checked, lambda: self._random.getrandbits(31))
        )
        if self._admin.refusing:
            generation.fail(errors.paused())
            return
        if self._full():
            self.metrics.rejected += 1
            generation.fail(VllmRefusal(errors.BUSY, "Service Unavailable", None, 503))
            return
        prefix = self._prefix(checked)
        self._all_answered.clear()
        for choice in generation.choices:
            self._generations[choice.id] = generation
        for choice in generation.choices:
            # Each image's hash is looked up as the request is sent: both sides of the cache see the same order.
            items = [MMItem(p.hash, p.tokens, offset, self.sender.must_send(p.hash)) for offset, p in checked.images]
            max_tokens, min_tokens = checked.sampling.max_tokens or 1, checked.sampling.min_tokens
            if checked.guided is not None:  # the grammar allows nothing behind its end
                min_tokens = min(min_tokens, choice.stop_after)
            seed = choice.answer.seed
            stop, guided = choice.stop_after, checked.guided is not None
            request = EngineRequest(
                choice.id, len(ids), max_tokens, min_tokens, items, prefix, seed, stop, checked.adapter, guided
            )
            self.engine.add(request, choice)

    def _as_engine_has(self, image: DecodedImage) -> DecodedImage:
        """Return the image that the engine computes with.

        A client's own name (`uuid`) is the cache key: while the engine has an image of this name, new bytes are not sent.
        """
        if image.hash in self.sender and image.hash in self._seen:
            self._seen.move_to_end(image.hash)
            return replace(image, content=self._seen[image.hash].content)
        self._seen[image.hash] = image
        if len(self._seen) > _MOST_SEEN:
            self._seen.popitem(last=False)
        return image

    def _full(self) -> bool:
        limit = self.options.server.max_num_queued_reqs
        return bool(limit) and self.engine.in_flight - self.options.engine.max_num_seqs >= limit

    def _prefix(self, checked: CheckedRequest) -> Sequence[int]:
        engine = self.options.engine
        if not engine.enable_prefix_caching:
            return ()
        images = [(offset, image.tokens, int(image.hash[:12], 16)) for offset, image in checked.images]
        names = filter(None, (checked.adapter, checked.cache_salt))
        whole = [(0, len(checked.ids), zlib.crc32(name.encode())) for name in names]
        return tokenizer.block_hashes(checked.ids, engine.block_size, [*images, *whole])
