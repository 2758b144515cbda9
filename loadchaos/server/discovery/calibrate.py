"""Identify a server and calibrate token counts, once, before the load: first reads and tokenizer calls, then a few
one-token generations. Responses become facts; only what makes a run impossible (401, wrong model, not HTTP) is an
error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace

from loadchaos.core.errors import TargetError
from loadchaos.core.model import Facts
from loadchaos.server.dialects import DIALECTS, UNKNOWN, Dialect
from loadchaos.server.dialects.detect import detect, probed_paths
from loadchaos.server.dialects.gateways import HEALTH_PATH, LIVENESS_PATH
from loadchaos.server.discovery.client import (
    CalibrationRequest,
    DiscoveryClient,
    DiscoveryResponse,
    connection_error,
    how_to_reach,
    refuse_plain_http,
    refuse_web_page,
)
from loadchaos.server.discovery.media_tokens import measure_images, measure_videos
from loadchaos.server.discovery.text_tokens import measure_text

_CHECK_ADDRESS = "check that the server runs and that this is its address"
_FIRST_READ_S = 30.0  # the first read of a server that has just started on a busy machine is slow


async def identify_server(client: DiscoveryClient, request: CalibrationRequest) -> Facts:
    """Read dialect, version, model and limits; nothing is generated. Raises TargetError where no run is possible."""
    await client.find_health_path()
    own = {"/v1/models"} | ({HEALTH_PATH} if client.health_path == LIVENESS_PATH else set())
    paths = [path for path in probed_paths() if path not in own]  # LiteLLM's /health sends a request to every model
    models, *answers = await asyncio.gather(
        client.models(_FIRST_READ_S), *(client.ask("GET", path, admin=True) for path in paths)
    )
    pages = {"/v1/models": models, **dict(zip(paths, answers, strict=True))}
    if request.model is not None and (models.status not in (0, 200, 401, 403) or _lists_nothing(models)):
        models = await _named_model(client, request.model, models)
    await refuse_plain_http(client, models)
    _refuse_impossible(client, models, request)
    found = detect(pages)
    name = found.dialect.name if request.dialect == "auto" else request.dialect
    model, entry = _choose_model(models, request.model)
    if "max_model_len" not in entry and client.admin_url != client.base_url:
        entry = _with_length_of(await client.ask("GET", "/v1/models", admin=True), entry)
    sources = {"dialect": "; ".join(found.signs) if request.dialect == "auto" else "the profile"}
    version = found.version or _describe_bounds(found.at_least, found.below)
    sources["version"] = (found.dialect.version_page or ("",))[0] if found.version else "its paths"
    facts = Facts(
        base_url=client.base_url,
        admin_url=client.admin_url,
        dialect=name,
        model=model,
        version=version,
        metrics=pages["/metrics"].status == 200,
        own_pages=found.own_pages,
        api=client.api,
        lora_adapters=_adapters(models, model),
        sources=sources,
    )
    return await _development(client, DIALECTS[name], _limits(facts, entry, pages))


def _adapters(models: DiscoveryResponse, base: str) -> tuple[str, ...]:
    return tuple(str(m["id"]) for m in models.models if m.get("id") not in (None, base) and m.get("parent") == base)


def _with_length_of(behind: DiscoveryResponse, entry: Mapping[str, object]) -> Mapping[str, object]:
    """Add the context length that the server at --admin-url tells: LiteLLM leaves it out."""
    entries = [m for m in behind.models if isinstance(m.get("max_model_len"), int)]
    named = [m for m in entries if m.get("id") == entry.get("id")] or (entries if len(entries) == 1 else [])
    return {**entry, "max_model_len": named[0]["max_model_len"]} if named else entry


def _lists_nothing(models: DiscoveryResponse) -> bool:
    return models.fields.get("data") == []


async def _named_model(client: DiscoveryClient, model: str, models: DiscoveryResponse) -> DiscoveryResponse:
    """Ask the named model, which no list has, for a token: a list with it, or what says why it cannot be tested."""
    answer = await client.ask_named(model)
    if answer.is_completion:
        return DiscoveryResponse(200, {}, json.dumps({"data": [{"id": model}]}))
    if _lists_nothing(models) and 400 <= answer.status < 500 and answer.status not in (401, 403):
        raise TargetError(
            f"the server lists no model at /v1/models, and refused {model!r} with {answer.status} {answer.text[:200]!r} "
            "(--model chooses)"
        )
    return answer if answer.status in (0, 401, 403) else models


def _describe_bounds(at_least: str | None, below: str | None) -> str | None:
    """Describe a version range. The text begins with a number, which `Dialect.at` can read."""
    if below is None:
        return f"{at_least} or later" if at_least else None
    major, minor = (int(n) for n in below.split(".")[:2])
    last = f"{major}.{minor - 1}"
    return f"{at_least} to {last}" if at_least else f"{last} or earlier"


def _refuse_impossible(client: DiscoveryClient, models: DiscoveryResponse, request: CalibrationRequest) -> None:
    url = client.base_url
    if models.status == 0:
        raise TargetError(f"{url}: {connection_error(models.text)}; {how_to_reach(models.text) or _CHECK_ADDRESS}")
    if models.status in (401, 403):
        variable = request.api_key_env or "OPENAI_API_KEY"
        state = "its key was refused" if request.api_key_env else "no key was given"
        raise TargetError(
            f"{url} answered {models.status}: {state}. Set the key in a variable and name it: "
            f"export {variable}=... and --api-key-env {variable}"
        )
    refuse_web_page(f"{url}/v1/models", models)
    if models.status != 200 or not isinstance(models.json(), dict):
        raise TargetError(
            f"{url}/v1/models answered {models.status} {models.text[:120]!r}: this is not an OpenAI-compatible server; if "
            "its API has a path prefix, add it to --target; if only that page is missing, name the model with --model"
        )


def _choose_model(models: DiscoveryResponse, request: str | None) -> tuple[str, Mapping[str, object]]:
    entries = [m for m in models.models if "id" in m]
    names = [str(m["id"]) for m in entries]
    if request is not None:
        if request not in names:
            raise TargetError(
                f"the server does not serve the model {request!r}; it has: {', '.join(names) or 'none'} (--model chooses)"
            )
        return request, entries[names.index(request)]
    if not names:
        raise TargetError("the server lists no model at /v1/models; name one with --model")
    return names[0], entries[0]


def _limits(facts: Facts, entry: Mapping[str, object], pages: Mapping[str, DiscoveryResponse]) -> Facts:
    sources = dict(facts.sources)
    values: dict[str, int] = {}
    if isinstance(length := entry.get("max_model_len"), int):
        values["max_model_len"] = length
        sources["max_model_len"] = "/v1/models"
    for dialect in DIALECTS.values():
        page = pages.get(dialect.limits_page)
        limits = dialect.limits(page.text, facts.version) if page is not None and page.status == 200 else {}
        values.update(limits)
        sources.update(dict.fromkeys(limits, dialect.limits_source or dialect.limits_page))
    counter = DIALECTS.get(facts.dialect, UNKNOWN).draft_counter
    if counter is not None and pages["/metrics"].status == 200:
        drafts = counter.search(pages["/metrics"].text)
        values["speculative_decoding"] = drafts is not None
        sources["speculative_decoding"] = f"/metrics has {'its counters' if drafts else 'no counters of it'}"
    return replace(facts, **values, sources=sources)  # type: ignore[arg-type]  # names of `Limits`


def with_log(facts: Facts, log: str) -> Facts:
    """Add the limits that only the first lines of the log tell. What is known already stays."""
    limits = DIALECTS.get(facts.dialect, UNKNOWN).log_limits(log, facts.version)
    alone = ("max_model_len", "step_tokens")  # the others belong together
    kept = {n: value for n, value in limits.items() if getattr(facts, n if n in alone else "kv_blocks") is None}
    sources = {**facts.sources, **dict.fromkeys(kept, "the server's log")}
    return replace(facts, **kept, sources=sources)  # type: ignore[arg-type]  # names of `Limits`


async def _development(client: DiscoveryClient, dialect: Dialect, facts: Facts) -> Facts:
    """Look for the admin endpoints. GET on a POST route gives 405 if it exists and 404 if not."""
    if dialect.development_path is None:
        return facts
    answer = client.pages.get(dialect.development_path)
    if answer is None:
        answer = await client.ask("GET", dialect.development_path, admin=True)
    there = answer.status in (200, 405) if answer.status in (200, 404, 405) else None
    sources = {**facts.sources, "development_endpoints": f"GET {dialect.development_path} answered {answer.status}"}
    return replace(facts, development_endpoints=there, sources=sources)


async def calibrate(client: DiscoveryClient, facts: Facts, request: CalibrationRequest) -> Facts:
    facts = await measure_text(client, facts, request)
    if request.images_per_request:
        facts = await measure_images(client, facts, request)
    if request.videos:
        facts = await measure_videos(client, facts, request)
    return replace(facts, field_changes=client.field_changes)
