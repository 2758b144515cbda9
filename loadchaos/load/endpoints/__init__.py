"""Endpoints that requests are sent to; one file each.

A file makes a `ModelEndpoint` (base.py): path, body, the payloads that a body can hold, the reader of its answers, headers.
To add one, copy completions.py and enter it in `ENDPOINTS`. A reader is a subclass of `AnswerReader`
(wire/answer_reader.py), of `TypedEvents` (wire/typed_events.py), or of `Results` (wire/results.py).
"""

from __future__ import annotations

from loadchaos.core.plugins import PluginTable
from loadchaos.core.urls import V1, ApiPaths
from loadchaos.load.endpoints import chat, completions, embeddings, messages, rerank, responses, transcriptions
from loadchaos.load.endpoints.base import ModelEndpoint
from loadchaos.profile.endpoint_path import name_at
from loadchaos.server.dialects import DIALECTS

__all__ = [
    "DEFAULT",
    "ENDPOINTS",
    "ModelEndpoint",
    "api_of_path",
    "endpoint_of_path",
    "known_endpoint_of_path",
    "path_at",
]

DEFAULT = "chat"
ENDPOINTS = PluginTable[ModelEndpoint](
    "endpoints",
    ModelEndpoint,
    {
        DEFAULT: chat.ENDPOINT,
        "completions": completions.ENDPOINT,
        "responses": responses.ENDPOINT,
        "messages": messages.ENDPOINT,
        "embeddings": embeddings.ENDPOINT,
        "rerank": rerank.RERANK,
        "score": rerank.SCORE,
        "transcriptions": transcriptions.ENDPOINT,
    },
)


def path_at(name: str, dialect_name: str) -> str:
    dialect = DIALECTS.get(dialect_name)
    own = dialect.endpoint_paths.get(name) if dialect is not None else None
    return own or ENDPOINTS[name].path


def endpoint_of_path(path: str) -> str:
    """Return the endpoint of a path, for a recorded request; chat if unknown."""
    return known_endpoint_of_path(path) or DEFAULT


def api_of_path(path: str) -> ApiPaths:
    """Return the paths of the API that has this one; those of /v1 if its end is no known endpoint."""
    name = known_endpoint_of_path(path)
    return V1 if name is None else ApiPaths.of(path, ENDPOINTS[name].path)


def known_endpoint_of_path(path: str) -> str | None:
    return name_at(path, ENDPOINTS)
