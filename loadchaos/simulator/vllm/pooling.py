"""/v1/embeddings, /score and /rerank of the embedded server. A real vLLM serves them with a pooling model, and then no
chat; this one serves all at once. Prompts have the special tokens of a BERT: one at the begin and one behind each text.
The results depend on the texts alone.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING

from loadchaos.simulator.body import Body
from loadchaos.simulator.engine.answers import AnswerText
from loadchaos.simulator.engine.types import EngineRequest, RequestOutput
from loadchaos.simulator.http.server import HttpExchange
from loadchaos.simulator.vllm import errors, requests
from loadchaos.simulator.vllm.errors import VllmRefusal, missing, validation

if TYPE_CHECKING:
    from loadchaos.simulator.vllm.api import VllmApi

_BEGIN, _END = 257, 258
_DIMENSIONS = 64
PATHS = ("/v1/embeddings", "/score", "/v1/score", "/rerank", "/v1/rerank")


class PoolingRequest:
    """One request being answered. Each of its prompts is a request of the engine."""

    def __init__(self, server: VllmApi, exchange: HttpExchange) -> None:
        self._server, self._exchange = server, exchange
        data = server.body(exchange)
        if server.engine.dead:
            raise errors.dead(server.release)
        self._prompts, self._body = _KINDS[exchange.path.rpartition("/")[2]](data)
        limit = server.options.engine.max_model_len
        for prompt in self._prompts:
            if len(prompt) > limit:
                raise errors.too_long(len(prompt), limit, server.release)
        self.answer = AnswerText(0)  # the engine may swap answers
        self._left = len(self._prompts)
        self._finished = False
        self._ids = [f"pool-{uuid.uuid4().hex[:16]}-{n}" for n in range(len(self._prompts))]
        exchange.on_disconnect = self._end

    def submit(self) -> None:
        for request_id, prompt in zip(self._ids, self._prompts, strict=True):
            self._server.engine.add(EngineRequest(request_id, len(prompt), 1), self)

    def output(self, output: RequestOutput) -> None:
        if output.error is not None:
            self.fail(VllmRefusal("Internal server error", "InternalServerError", None, 500))
        elif output.finish_reason is not None and not self._finished:
            self._left -= 1
            if not self._left:
                self._answer()

    def engine_died(self) -> None:
        self.fail(errors.dead(self._server.release))

    def fail(self, refusal: VllmRefusal) -> None:
        if not self._finished:
            self._end()
            errors.send(self._exchange, refusal, self._server.release)

    def _answer(self) -> None:
        self._finished = True
        tokens = sum(map(len, self._prompts))
        self._server.metrics.prompt_tokens += tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}
        head = {"id": f"embd-{uuid.uuid4().hex[:16]}", "object": "list", "created": int(time.time())}
        self._exchange.send_json({**head, "model": self._server.model, **self._body, "usage": usage})

    def _end(self) -> None:
        self._finished = True
        self._server.engine.abort(self._ids)


Prompt = tuple[int, ...]
Answer = tuple[list[Prompt], Body]
"""Prompts of a request, and what its answer has beside the usual fields."""


def _texts(data: Body, *names: str) -> list[str]:
    name = next((n for n in names if n in data), None)
    if name is None:
        raise missing(names[0], data)
    value = data[name]
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise validation("string_type", f"body.{name}", "Input should be a valid string", type(value).__name__)
    return texts


def _embeddings(data: Body) -> Answer:
    prompts = [_prompt(text) for text in _texts(data, "input")]
    vectors = [{"index": n, "object": "embedding", "embedding": _vector(p)} for n, p in enumerate(prompts)]
    return prompts, {"data": vectors}


def _score(data: Body) -> Answer:
    one, two = _texts(data, "text_1", "queries", "data_1"), _texts(data, "text_2", "documents", "data_2")
    if len(one) not in {1, len(two)}:
        raise VllmRefusal("Input lengths must be either 1:1, 1:N or N:N")
    prompts = [_prompt(q, d) for q, d in zip(one * len(two) if len(one) == 1 else one, two, strict=True)]
    return prompts, {"data": [{"index": n, "object": "score", "score": _relevance(p)} for n, p in enumerate(prompts)]}


def _rerank(data: Body) -> Answer:
    (query, *_), documents = _texts(data, "query"), _texts(data, "documents")
    prompts = [_prompt(query, document) for document in documents]
    best_first = sorted(enumerate(prompts), key=lambda item: -_relevance(item[1]))
    results = [
        {"index": n, "document": {"text": documents[n]}, "relevance_score": _relevance(prompt)}
        for n, prompt in best_first
    ]
    return prompts, {"results": results}


_KINDS: Mapping[str, Callable[[Body], Answer]] = {"embeddings": _embeddings, "score": _score, "rerank": _rerank}


def _prompt(*texts: str) -> Prompt:
    return (_BEGIN, *(token for text in texts for token in (*requests.encode(text), _END)))


def _vector(prompt: Prompt) -> list[float]:
    rng = Random(hash(prompt))
    values = [rng.gauss(0, 1) for _ in range(_DIMENSIONS)]
    norm = math.sqrt(sum(value * value for value in values))
    return [value / norm for value in values]


def _relevance(prompt: Prompt) -> float:
    return Random(hash(prompt)).random()
