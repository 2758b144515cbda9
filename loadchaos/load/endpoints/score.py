"""The score endpoint of vLLM and SGLang: similarity of a query and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from loadchaos.core.model import Facts
from loadchaos.load.endpoints.base import ModelEndpoint
from loadchaos.load.endpoints.rerank import PAYLOADS, query
from loadchaos.load.wire.answer_reader import list_of
from loadchaos.load.wire.request import Request
from loadchaos.load.wire.results import Results


def _body(request: Request, facts: Facts) -> bytes:
    texts = [request.text, *request.more_texts]
    return orjson.dumps({"model": request.model or facts.model, "text_1": query(request, facts), "text_2": texts})


class ScoreAnswer(Results):
    """An answer of /score."""

    __slots__ = ()

    def read_results(self, data: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
        results = list_of(data, "data")
        for result in results:
            self.check_number(result.get("score"), "a score")
        return results


ENDPOINT = ModelEndpoint(
    path="/v1/score", body=_body, payloads=PAYLOADS, answer=ScoreAnswer, streams=False, generates=False
)
