"""Which kind of server is this, and of what version? A pure function over what it answered; the caller does the asking.

The signs, strongest first: a version page of its own shape, who owns the models, the prefix of the metrics, admin paths.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadchaos.server.dialects.base import Dialect
from loadchaos.server.dialects.lmdeploy import LMDEPLOY
from loadchaos.server.dialects.openai import OPENAI
from loadchaos.server.dialects.sglang import SGLANG
from loadchaos.server.dialects.vllm import VLLM

PATHS = (
    "/v1/models", "/version", "/health", "/metrics", "/openapi.json", "/distserve/engine_info", "/get_model_info",
    "/reset_mm_cache",
)  # fmt: skip
"""What to GET, each harmless everywhere: /reset_mm_cache acts on POST only, its 405 or 404 is the sign."""


@dataclass(frozen=True)
class ProbedPage:
    """One answer; header names in lower case. A path that gave none is left out of what `detect` gets."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Detected:
    """`version` where the server says it, else `at_least` and `below` as its paths allow; `signs` say why.

    `dialect` is already the one of that version. `development_endpoints` None: it could not be seen.
    """

    dialect: Dialect
    version: str | None = None
    at_least: str | None = None
    below: str | None = None
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    development_endpoints: bool | None = None
    signs: tuple[str, ...] = ()


_OWNERS = {"vllm": VLLM, "lmdeploy": LMDEPLOY, "sglang": SGLANG}
_METRICS = ((b"vllm:", VLLM), (b"lmdeploy:", LMDEPLOY), (b"sglang:", SGLANG))


def detect(pages: Mapping[str, ProbedPage]) -> Detected:
    """Decide by a count of signs; a server that shows none is plain `openai`. Never raises for what a page holds."""
    votes: dict[str, int] = {}
    signs: list[str] = []

    def vote(dialect: Dialect, weight: int, sign: str) -> None:
        votes[dialect.name] = votes.get(dialect.name, 0) + weight
        signs.append(f"{dialect.title}: {sign}")

    models = _models(pages)
    for owner in sorted({str(model.get("owned_by")) for model in models}):
        if owner in _OWNERS:
            vote(_OWNERS[owner], 3, f"/v1/models is owned_by {owner}")
    for prefix, dialect in _METRICS:
        if _status(pages, "/metrics") == 200 and re.search(rb"^" + prefix, pages["/metrics"].body, re.MULTILINE):
            vote(dialect, 3, f"metrics named {prefix.decode()}")
    version = _object(pages, "/version").get("version")
    version = version if isinstance(version, str) else None
    if version is not None:
        vote(VLLM, 1, f"/version says {version}")
    if _status(pages, "/distserve/engine_info") in (200, 500):
        vote(LMDEPLOY, 2, "/distserve/engine_info is there")
    if _status(pages, "/get_model_info") == 200:
        vote(SGLANG, 2, "/get_model_info is there")
    if _status(pages, "/reset_mm_cache") == 405:
        vote(VLLM, 1, "/reset_mm_cache is there")
    if not votes:
        return Detected(
            OPENAI, models=_names(models), max_model_len=_length(models), signs=("no sign of a known server",)
        )
    found = {d.name: d for d in _OWNERS.values()}[max(votes, key=lambda name: votes[name])]
    at_least, below = _lmdeploy_era(pages) if found is LMDEPLOY else (None, None)
    return Detected(
        dialect=found.at(_era_version(version, at_least, below)),
        version=version if found is not LMDEPLOY else None,
        at_least=at_least,
        below=below,
        models=_names(models),
        max_model_len=_length(models),
        development_endpoints=_development(pages) if found is VLLM else None,
        signs=tuple(signs),
    )


def _lmdeploy_era(pages: Mapping[str, ProbedPage]) -> tuple[str | None, str | None]:
    """LMDeploy tells its version nowhere; its paths changed with 0.9, 0.11, 0.14 and 0.16, its /health with 0.14."""
    paths = _object(pages, "/openapi.json").get("paths")
    if isinstance(paths, dict) and paths:
        if "/v1/chat/interactive" not in paths:
            return "0.16", None
        for path, version, next_one in (
            ("/v1/responses", "0.14", "0.16"),
            ("/generate", "0.11", "0.14"),
            ("/distserve/engine_info", "0.9", "0.11"),
        ):
            if path in paths:
                return version, next_one
        return None, "0.9"
    health = pages.get("/health")
    if health is not None and health.status in (200, 503):
        return ("0.14", None) if b'"status"' in health.body else (None, "0.14")
    return None, None


def _era_version(version: str | None, at_least: str | None, below: str | None) -> str | None:
    """A version that lies in the era, for Dialect.at: the lowest that is sure, else one below the bound."""
    if version is not None or at_least is not None:
        return version or at_least
    return "0.0" if below is not None else None


def _development(pages: Mapping[str, ProbedPage]) -> bool | None:
    """405 is there, 404 is not: the development endpoints come all together (`/reset_mm_cache` since 0.11.2)."""
    status = _status(pages, "/reset_mm_cache")
    if status in (405, 404):
        return status == 405
    paths = _object(pages, "/openapi.json").get("paths")
    return "/reset_prefix_cache" in paths if isinstance(paths, dict) and paths else None


def _status(pages: Mapping[str, ProbedPage], path: str) -> int | None:
    return pages[path].status if path in pages else None


def _object(pages: Mapping[str, ProbedPage], path: str) -> Mapping[str, Any]:
    """The page's JSON object; empty where it is none."""
    if _status(pages, path) != 200:
        return {}
    try:
        data = json.loads(pages[path].body)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _models(pages: Mapping[str, ProbedPage]) -> list[Mapping[str, Any]]:
    data = _object(pages, "/v1/models").get("data")
    return [model for model in data if isinstance(model, dict)] if isinstance(data, list) else []


def _names(models: list[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(str(model["id"]) for model in models if "id" in model)


def _length(models: list[Mapping[str, Any]]) -> int | None:
    lengths = [model["max_model_len"] for model in models if isinstance(model.get("max_model_len"), int)]
    return lengths[0] if lengths else None
