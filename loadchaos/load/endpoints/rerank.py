"""The rerank endpoint: texts in the order of a query, in the form of Cohere and Jina."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from loadchaos.core.model import Facts
from loadchaos.core.rng import Rng, hash64
from loadchaos.load.endpoints.base import ModelEndpoint
from loadchaos.load.payloads.text import corpus_for
from loadchaos.load.wire.answer_reader import list_of
from loadchaos.load.wire.request import Request
from loadchaos.load.wire.results import Results

PAYLOADS = frozenset({"text", "batch"})
_QUERY_TOKENS = 8
"""All queries have as many, so that a text's own tokens are known where each is read together with the query."""


def query(request: Request, facts: Facts) -> str:
    return corpus_for(facts.text).text_of(_QUERY_TOKENS, Rng(hash64(request.step.seed, 41)))


def _body(request: Request, facts: Facts) -> bytes:
    texts = [request.text, *request.more_texts]
    return orjson.dumps({"model": request.model or facts.model, "query": query(request, facts), "documents": texts})


class RerankAnswer(Results):
    """An answer of /v1/rerank: the best text comes first."""

    __slots__ = ()

    def read_results(self, data: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
        results = list_of(data, "results")
        scores: list[Any] = [result.get("relevance_score") for result in results]
        for score in scores:
            self.check_number(score, "a score")
        if not self.contradictions and any(after > before for before, after in itertools.pairwise(scores)):
            self.add_wrong("the results are not in the order of their scores", scores)
        return results


ENDPOINT = ModelEndpoint(
    path="/v1/rerank", body=_body, payloads=PAYLOADS, answer=RerankAnswer, streams=False, generates=False
)
