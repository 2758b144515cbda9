"""Endpoints of a query and texts: rerank orders them, in the form of Cohere and Jina; score of vLLM and SGLang does not."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from loadchaos.core.model import Facts
from loadchaos.core.rng import Rng, hash64
from loadchaos.load.endpoints.base import ModelEndpoint
from loadchaos.load.payloads.text import corpus_for
from loadchaos.load.wire.answer_reader import list_of
from loadchaos.load.wire.request import Request
from loadchaos.load.wire.results import Results

_PAYLOADS = frozenset({"text", "batch", "extra_body"})
_QUERY_TOKENS = 8
"""All queries have as many, so that a text's own tokens are known where each is read together with the query."""


def _body(request: Request, facts: Facts, query_key: str, texts_key: str) -> bytes:
    query = corpus_for(facts.text).text_of(_QUERY_TOKENS, Rng(hash64(request.step.seed, 41)))
    texts = [request.text, *request.more_texts]
    return orjson.dumps({"model": request.model or facts.model, query_key: query, texts_key: texts})


def _scores(answer: Results, results: Sequence[Mapping[str, object]], name: str) -> list[Any]:
    scores: list[Any] = [result.get(name) for result in results]
    for score in scores:
        answer.check_number(score, "a score")
    answer.set_digest(scores if answer.contradictions else sorted(set(scores)))
    return scores


class RerankAnswer(Results):
    """An answer of /v1/rerank: the best text comes first."""

    __slots__ = ()

    def read_results(self, data: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
        results = list_of(data, "results")
        scores = _scores(self, results, "relevance_score")
        if not self.contradictions and any(after > before for before, after in itertools.pairwise(scores)):
            self.add_wrong("the results are not in the order of their scores", scores)
        return results


class ScoreAnswer(Results):
    """An answer of /score."""

    __slots__ = ()

    def read_results(self, data: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
        results = list_of(data, "data")
        _scores(self, results, "score")
        return results


RERANK = ModelEndpoint(
    path="/v1/rerank",
    body=partial(_body, query_key="query", texts_key="documents"),
    payloads=_PAYLOADS,
    answer=RerankAnswer,
    streams=False,
    generates=False,
)
SCORE = replace(
    RERANK, path="/v1/score", body=partial(_body, query_key="text_1", texts_key="text_2"), answer=ScoreAnswer
)
