"""Recognise gateways whose /health must not be asked. LiteLLM's /health sends a request to every model that it serves."""

from __future__ import annotations

from collections.abc import Mapping

HEALTH_PATH = "/health"
ABSENT = (404, 405)
"""Statuses of a page that a server does not have."""
"""Page of every known server; 200 means healthy."""
LIVENESS_PATH = "/health/liveliness"
"""LiteLLM's page that only says that it runs. Other servers answer 404."""
_HEADER = "x-litellm-"
_LIVENESS_TEXT = "I'm alive!"


def is_litellm(status: int | None, headers: Mapping[str, str], body: str) -> bool:
    """True for LiteLLM's answer to `LIVENESS_PATH`. Header names are in lower case."""
    return status == 200 and (_LIVENESS_TEXT in body or any(name.startswith(_HEADER) for name in headers))
