"""The embeddings endpoint, /v1/embeddings: an answer has one vector for each text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from loadchaos.core.model import Facts
from loadchaos.load.endpoints.base import ModelEndpoint, all_sampling_but
from loadchaos.load.wire.answer_reader import WrongShapeError, list_of
from loadchaos.load.wire.request import Request
from loadchaos.load.wire.results import Results

_COMPARED = 32
"""Values of a vector that tell it from those of other texts."""


def _body(request: Request, facts: Facts) -> bytes:
    texts: object = [request.text, *request.more_texts] if request.more_texts else request.text
    return orjson.dumps({"model": request.model or facts.model, "input": texts})


class EmbeddingsAnswer(Results):
    """An answer of /v1/embeddings."""

    __slots__ = ()

    def read_results(self, data: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
        results = list_of(data, "data")
        vectors = [self._vector(result) for result in results]
        lengths = {len(vector) for vector in vectors}
        if len(lengths) > 1:
            self.add_wrong("the vectors of one answer differ in length", sorted(lengths))
        elif len(vectors) > 1 and self.rules.texts_differ and all(vector == vectors[0] for vector in vectors):
            self.add_wrong(f"all {len(vectors)} vectors of one answer are equal, and its texts differ", vectors[0][:8])
        self.set_digest(vectors[0][:_COMPARED] if vectors else ())
        return results

    def _vector(self, result: Mapping[str, object]) -> list[object]:
        vector = result.get("embedding")
        if not isinstance(vector, list) or not vector:
            raise WrongShapeError("embedding is not a list of numbers")
        for value in vector:
            if type(value) is not float:
                self.check_number(value, "a value of a vector")
        if not any(vector):
            self.add_wrong("all values of a vector are 0")
        return vector


ENDPOINT = ModelEndpoint(
    path="/v1/embeddings",
    body=_body,
    payloads=frozenset({"text", "batch", "sampling", "extra_body"}),
    answer=EmbeddingsAnswer,
    streams=False,
    generates=False,
    lacks=all_sampling_but("models", "adapters"),
)
