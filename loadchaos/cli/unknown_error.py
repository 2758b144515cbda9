"""Detect error responses that no signature and no known refusal explains."""

from __future__ import annotations

from collections.abc import Iterator

from loadchaos.analysis.classify.normalise import normalise
from loadchaos.analysis.failure import Failure, evidence
from loadchaos.core.foreign_json import json_value
from loadchaos.core.outcome_rules import ErrorObject, error_object, matches
from loadchaos.server.dialects import DIALECTS

_TITLE = 200
_NO_SUCH_ROUTE = frozenset({"Not Found", "Method Not Allowed"})  # FastAPI's own words


def unknown(text: str) -> Failure | None:
    """Find the first unexplained error in a response body, JSON or a stream."""
    for line_no, error in _errors(text):
        if error.text in _NO_SUCH_ROUTE or any(
            matches((*d.validation, *d.shed), error.text) for d in DIALECTS.values()
        ):
            continue
        code = f" {error.code}" if error.code is not None else ""
        return Failure(
            id="unknown_error_answer",
            severity="request",
            title=f"error response{code} with an unknown text: {normalise(error.text)[:_TITLE]}",
            evidence=evidence("", error.text, line_no),
            layer="http",
            remedy="look at the server log for the time of this request. Treat a 4xx with this text as a server "
            "failure until the request is known to be wrong",
        )
    return None


def _errors(text: str) -> Iterator[tuple[int, ErrorObject]]:
    whole = _error(text)
    if whole is not None:
        yield 1, whole
        return
    for n, line in enumerate(text.splitlines(), 1):
        if line.startswith("data:") and (error := _error(line[5:])) is not None:
            yield n, error


def _error(text: str) -> ErrorObject | None:
    if text.strip() == "Internal Server Error":  # Starlette's whole answer to an unhandled exception
        return ErrorObject(text.strip(), 500, "")
    return error_object(json_value(text))
