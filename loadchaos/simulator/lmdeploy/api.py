"""LMDeploy's HTTP API: routes and bodies by era, from 0.6 to 0.18."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Awaitable, Iterable, Mapping, Sequence

import orjson

from loadchaos.simulator.body import Body, objects
from loadchaos.simulator.engine import tokenizer
from loadchaos.simulator.engine.answers import AnswerText, opening_of
from loadchaos.simulator.engine.client import EngineClient
from loadchaos.simulator.engine.guided import guided_answer
from loadchaos.simulator.engine.types import EngineRequest
from loadchaos.simulator.http import metrics_page
from loadchaos.simulator.http.api import Api, Refusal, Route
from loadchaos.simulator.http.logs import Log
from loadchaos.simulator.http.server import HttpExchange
from loadchaos.simulator.lmdeploy import errors
from loadchaos.simulator.lmdeploy.errors import LmdeployRefusal
from loadchaos.simulator.lmdeploy.metrics import LmdeployMetrics
from loadchaos.simulator.lmdeploy.streams import LmdeployGeneration
from loadchaos.simulator.media.processor import IMAGE_MARK, DecodedImage, ImageError, Placed, answer_seed, place_images
from loadchaos.simulator.options import Options

_BLACK = DecodedImage("0" * 64, 32, 32, 64)  # what an image that cannot be decoded silently became up to 0.12


class LmdeployApi(Api):
    """HTTP API of LMDeploy's api_server, in the configured era."""

    def __init__(self, options: Options, engine: EngineClient) -> None:
        super().__init__(options, engine)
        # The era of the planted bug refuses as later versions do, where the bug is not planted.
        self.refuses_cleanly = self.release < (0, 7, 0)
        self.metrics = LmdeployMetrics(options)
        engine.on_step = self.metrics.step_tokens.observe
        self.log = Log("lmdeploy", options.engine.era, "APIServer")
        self._sessions = itertools.count(1)

    @property
    def exit_code_on_death(self) -> int | None:
        """1 for 0.6, which calls exit(1) in the request's coroutine; else None. Later versions stay up and never
        restart the engine.
        """
        return 1 if self.release < (0, 7, 0) else None

    def _path(self, exchange: HttpExchange) -> str:
        return exchange.path.rstrip("/") or "/"

    def _refuse(self, exchange: HttpExchange, refusal: Refusal) -> None:
        exchange.send_json(refusal.error, refusal.status)

    def _routes(self) -> Iterable[Route]:
        return (
            Route("POST", "/v1/chat/completions", self._chat),
            Route("POST", "/v1/completions", self._completions),
            Route("GET", "/v1/models", self._models),
            Route("POST", "/v1/encode", self._encode),
            Route("GET", "/health", self._health),
            Route("GET", "/distserve/engine_info", self._engine_info, (0, 9, 0)),
            Route("GET", "/metrics", self._metrics, (0, 11, 0)),  # to 0.10 behind a flag, off by default
            Route("GET", "/is_sleeping", lambda exchange: exchange.send_json({"is_sleeping": False}), (0, 11, 0)),
        )

    def _health(self, exchange: HttpExchange) -> None:
        if self.release < (0, 14, 0):
            exchange.send(200, b"", None)  # always, even with a dead engine
        elif self.engine.dead:
            exchange.send_json({"status": "unhealthy", "message": "PyTorch ZMQ engine process is not alive."}, 503)
        else:
            exchange.send_json({"status": "healthy", "message": "Backend is healthy."})

    def _metrics(self, exchange: HttpExchange) -> None:
        exchange.send(200, self.metrics.page(self.engine.stats), metrics_page.CONTENT_TYPE)

    def _models(self, exchange: HttpExchange) -> None:
        card = self._model_card("lmdeploy", self.model)
        exchange.send_json({"object": "list", "data": [card]})

    def _engine_info(self, exchange: HttpExchange) -> None:
        engine = self.options.engine
        info = {
            "tp_size": 1, "ep_size": 1, "dp_size": 1, "pp_size": None, "dp_rank": 0, "block_size": engine.block_size,
            "num_cpu_blocks": 0, "num_gpu_blocks": engine.num_gpu_blocks,
        }  # fmt: skip
        exchange.send_json(orjson.dumps(info).decode())  # encoded twice, as the real one does

    def _encode(self, exchange: HttpExchange) -> None:
        data = self._body(exchange)
        value = data.get("input")
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise errors.invalid(self.release, "input", "Input should be a valid string", "string_type")
        if data.get("do_preprocess"):
            texts = [_template([{"role": "user", "content": text}], []) for text in texts]
        ids = [tokenizer.encode(text) for text in texts]
        lengths = [len(i) for i in ids]
        single = isinstance(value, str)
        exchange.send_json({"input_ids": ids[0] if single else ids, "length": lengths[0] if single else lengths})

    def _body(self, exchange: HttpExchange) -> Body:
        if self.release >= (0, 16, 0) and exchange.headers.get("content-type", "").split(";")[0] != "application/json":
            raise LmdeployRefusal("Unsupported Media Type: Only 'application/json' is allowed")
        try:
            data = orjson.loads(exchange.body)
        except orjson.JSONDecodeError as error:
            raise errors.invalid(self.release, str(error.pos), "JSON decode error", "json_invalid") from error
        if isinstance(data, dict):
            return data
        raise errors.invalid(self.release, "", "Input should be a valid dictionary", "model_attributes_type")

    def _chat(self, exchange: HttpExchange) -> Awaitable[None] | None:
        data = self._body(exchange)
        messages = data.get("messages")
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if not isinstance(messages, list):
            raise errors.invalid(self.release, "messages", "Field required", "missing")
        self._check(data)
        urls: list[str] = []
        text = _template(objects(messages), urls)
        if urls and not self.options.server.images:
            if self.release >= (0, 16, 0):
                raise LmdeployRefusal("Multimodal input is not supported by this model.")
            urls, text = [], text.replace(IMAGE_MARK, "")  # dropped silently
        if urls:
            return self._fit_images(exchange, data, text, urls)
        self._submit(exchange, data, tokenizer.encode(text), ())
        return None

    def _completions(self, exchange: HttpExchange) -> Awaitable[None] | None:
        data = self._body(exchange)
        self._check(data)
        prompt = data.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        if not isinstance(prompt, str):
            raise LmdeployRefusal("Request preprocessing failed.")  # it takes no token ids
        self._submit(exchange, {"max_tokens": 16, **data}, tokenizer.encode(prompt), ())
        return None

    def _check(self, data: Body) -> None:
        requested_model = data.get("model")
        new = self.release >= (0, 16, 0)
        if requested_model and requested_model != self.model:
            quote, kind = ("'", "not_found_error") if new else ("`", "invalid_request_error")
            raise LmdeployRefusal(f"The model {quote}{requested_model}{quote} does not exist.", 404, kind)
        max_tokens = data.get("max_tokens")
        if new and max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):
            raise LmdeployRefusal(f"The max_tokens {max_tokens!r} must be a positive integer.")

    async def _fit_images(self, exchange: HttpExchange, data: Body, text: str, urls: Sequence[str]) -> None:
        pieces = [tokenizer.encode(piece) for piece in text.split(IMAGE_MARK)]
        ids, images = place_images(pieces, await self._decoded(urls))
        if not exchange.done:  # else the client has left
            self._submit(exchange, data, ids, images)

    def _unreadable(self, error: ImageError) -> DecodedImage | Refusal:
        self.log.line("ERROR", "utils.py:48", f"{error}, image_url=data:image/...")
        return _BLACK if self.release < (0, 13, 0) else LmdeployRefusal("Request preprocessing failed.")

    def _submit(self, exchange: HttpExchange, data: Body, ids: Sequence[int], images: Sequence[Placed]) -> None:
        longest, count = self.options.engine.max_model_len, len(ids)
        if count >= longest and self.release >= (0, 16, 0):
            raise LmdeployRefusal(f"Input length ({count}) must be smaller than the model context length ({longest}).")
        if self.engine.dead and self.release >= (0, 16, 0):
            raise errors.engine_failed()
        session = next(self._sessions)
        # It has no guided tool calls: with tools the model answers in plain text.
        guided = guided_answer({k: v for k, v in data.items() if k != "tools"}, zlib.crc32(exchange.body))
        opening = opening_of(ids, [p.content for _, p in images], guided)
        given, seed = data.get("temperature"), data.get("seed")
        temperature = given if isinstance(given, int | float) else None
        seed = seed if temperature is not None and isinstance(seed, int) else None
        answer = AnswerText(
            answer_seed(ids, images, 1.0 if temperature is None else temperature, seed, self._random), opening
        )
        generation = LmdeployGeneration(self, exchange, data, answer, session=session, prompt_tokens=count)
        if count >= longest:
            self.log.line("ERROR", "async_engine.py:602", f"run out of tokens. session_id={session}.")
            generation.finish("length")  # up to 0.15: 200, empty, length
            return
        asked = _whole(data, "max_completion_tokens") or _whole(data, "max_tokens") or longest
        max_tokens = min(asked, longest - count)
        min_tokens = max_tokens if data.get("ignore_eos") else min(max_tokens, _whole(data, "min_new_tokens"))
        min_tokens = min_tokens if guided is None else min(min_tokens, len(opening))
        items, prefix, stop = self._items(images), self._prefix(ids), len(opening)
        added = EngineRequest(str(session), count, max(1, max_tokens), min_tokens, items, prefix, session, stop)
        self.engine.add(added, generation)


def _whole(data: Body, key: str) -> int:
    value = data.get(key)
    return int(value) if isinstance(value, int | float | str) and value else 0


def _template(messages: Sequence[Body], urls: list[str]) -> str:
    text = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(_part(part, urls) for part in objects(content))
        text.append(f"<|im_start|>{message.get('role', 'user')}\n{content or ''}<|im_end|>\n")
    return "".join(text) + "<|im_start|>assistant\n"


def _part(part: Body, urls: list[str]) -> str:
    if part.get("type") == "text":
        return str(part.get("text", "")).replace(IMAGE_MARK, "")
    if part.get("type") in {"image_url", "image"}:
        image = part.get("image_url", part.get("image"))
        urls.append(str(image.get("url", "")) if isinstance(image, Mapping) else str(image))
        return f"<|vision_start|>{IMAGE_MARK}<|vision_end|>"
    return ""  # unknown parts are dropped silently
