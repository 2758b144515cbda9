"""An error answer that no signature knows: a refusal that some server words so is right, anything else is flagged."""

from __future__ import annotations

import json
from collections.abc import Iterator

from loadchaos.analysis.classify.normalise import normalise
from loadchaos.analysis.failure import Failure
from loadchaos.load.wire.outcome import ErrorObject, error_object, matches
from loadchaos.server.dialects import DIALECTS

_TITLE = 200
_NO_SUCH_ROUTE = frozenset({"Not Found", "Method Not Allowed"})  # FastAPI's own words


def unknown(text: str) -> Failure | None:
    """The first error in a body (JSON, or the events of a stream) whose text is no known refusal; None if there is none."""
    for line_no, error in _errors(text):
        if error.text in _NO_SUCH_ROUTE or any(
            matches((*d.validation, *d.shed), error.text) for d in DIALECTS.values()
        ):
            continue
        code = f" {error.code}" if error.code is not None else ""
        return Failure(
            id="unknown_error_answer",
            severity="request",
            title=f"an error answer{code} that is no known refusal: {normalise(error.text)[:_TITLE]}",
            evidence={"source": "", "line": line_no, "text": error.text},
            layer="http",
            remedy="look into the server's log of that moment for what it says of this request; a 4xx of this text is "
            "the server's failure until somebody shows that the request was wrong",
        )
    return None


def _errors(text: str) -> Iterator[tuple[int, ErrorObject]]:
    """The errors in a whole body, or in the `data:` lines of a stream, with the number of the line."""
    whole = _error(text)
    if whole is not None:
        yield 1, whole
        return
    for n, line in enumerate(text.splitlines(), 1):
        if line.startswith("data:") and (error := _error(line[5:])) is not None:
            yield n, error


def _error(text: str) -> ErrorObject | None:
    if text.strip() == "Internal Server Error":  # all that Starlette says of an exception nobody handled
        return ErrorObject(text.strip(), 500, "")
    try:
        return error_object(json.loads(text))
    except (ValueError, RecursionError):  # no JSON
        return None
