"""Once, before the load: what is this server, what are its limits, how does it count tokens -> Facts.

Reads and tokenizer calls first; at most a handful of one-token generations where counting leaves something open. What
the server answers is data for the Facts; only what makes a run impossible (401, wrong model, not HTTP) is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from loadchaos.core.errors import TargetError
from loadchaos.core.model import Facts
from loadchaos.server.dialects import DIALECTS, UNKNOWN, Dialect
from loadchaos.server.dialects.detect import PATHS, ProbedPage, detect
from loadchaos.server.discovery.client import CalibrationRequest, DiscoveryClient, DiscoveryResponse, parse_target
from loadchaos.server.discovery.media_tokens import image_facts, video_facts
from loadchaos.server.discovery.text_tokens import learn_text

__all__ = [
    "CalibrationRequest",
    "DiscoveryClient",
    "DiscoveryResponse",
    "calibrate",
    "identify_server",
    "parse_target",
    "with_log",
]

_FIRST_READ_S = 30.0  # a server that has just come up on a busy machine takes its time with the first one


async def identify_server(asker: DiscoveryClient, wanted: CalibrationRequest) -> Facts:
    """Reads only: dialect, version, model, limits, development endpoints. Raises TargetError where a run is impossible."""
    paths = tuple(path for path in PATHS if path != "/v1/models")
    answers = await asyncio.gather(
        asker.ask("GET", "/v1/models", limit_s=_FIRST_READ_S), *(asker.ask("GET", path, admin=True) for path in paths)
    )
    pages = dict(zip(("/v1/models", *paths), answers, strict=True))
    models = pages["/v1/models"]
    _refuse_impossible(asker, models, wanted)
    found = detect({path: ProbedPage(a.status, a.headers, a.text.encode()) for path, a in pages.items() if a.status})
    name = found.dialect.name if wanted.dialect == "auto" else wanted.dialect
    model, entry = _choose_model(models, wanted.model)
    sources = {"dialect": "; ".join(found.signs) if wanted.dialect == "auto" else "the profile"}
    version = found.version or _era_in_words(found.at_least, found.below)
    sources["version"] = "/version" if found.version else "its paths"
    facts = Facts(
        base_url=asker.base_url,
        admin_url=asker.admin_url,
        dialect=name,
        model=model,
        version=version,
        metrics=pages["/metrics"].status == 200,
        sources=sources,
    )
    return await _development(asker, DIALECTS[name], _limits(facts, entry, pages))


def _era_in_words(at_least: str | None, below: str | None) -> str | None:
    """A server that tells its version nowhere: what its paths allow, beginning with a number, as `Dialect.at` reads it."""
    if below is None:
        return f"{at_least} or later" if at_least else None
    major, minor = (int(n) for n in below.split(".")[:2])
    last = f"{major}.{minor - 1}"
    return f"{at_least} to {last}" if at_least else f"{last} or earlier"


def _refuse_impossible(asker: DiscoveryClient, models: DiscoveryResponse, wanted: CalibrationRequest) -> None:
    where = asker.base_url
    if models.status == 0:
        raise TargetError(f"{where}: {_why_unreachable(models.text)}")
    if models.status in (401, 403):
        variable = wanted.api_key_env or "OPENAI_API_KEY"
        state = "its key was refused" if wanted.api_key_env else "no key was given"
        raise TargetError(
            f"{where} answered {models.status}: {state}. Set the key in a variable and name it: "
            f"export {variable}=... and --api-key-env {variable}"
        )
    if models.status != 200 or not isinstance(models.json(), dict):
        raise TargetError(
            f"{where}/v1/models answered {models.status} {models.text[:120]!r}: this is no OpenAI-compatible server "
            "(a path prefix belongs into --target)"
        )


def _why_unreachable(text: str) -> str:
    if "ConnectError" in text and ("refused" in text.lower() or "All connection attempts failed" in text):
        return "connection refused: nothing listens there; is the server up, and is that its port?"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return (
            f"its certificate is not trusted here; --ca FILE names what to believe, --insecure checks nothing ({text})"
        )
    if "RemoteProtocolError" in text or "InvalidHTTP" in text:
        return f"something listens there, but it does not speak HTTP ({text})"
    return f"{text}; is the server up, and is that its address?"


def _choose_model(models: DiscoveryResponse, wanted: str | None) -> tuple[str, Mapping[str, Any]]:
    entries = [m for m in (models.json().get("data") or []) if isinstance(m, dict) and "id" in m]
    names = [str(m["id"]) for m in entries]
    if wanted is not None:
        if wanted not in names:
            raise TargetError(
                f"the server does not serve the model {wanted!r}; it has: {', '.join(names) or 'none'} (--model chooses)"
            )
        return wanted, entries[names.index(wanted)]
    if not names:
        raise TargetError("the server lists no model at /v1/models; name one with --model")
    return names[0], entries[0]


def _limits(facts: Facts, entry: Mapping[str, Any], pages: Mapping[str, DiscoveryResponse]) -> Facts:
    sources = dict(facts.sources)
    values: dict[str, Any] = {}
    if isinstance(entry.get("max_model_len"), int):
        values["max_model_len"] = entry["max_model_len"]
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
    return replace(facts, **values, sources=sources)


def with_log(facts: Facts, log: str) -> Facts:
    """Add the limits that only the first lines of the log tell; what is known already stays."""
    limits = DIALECTS.get(facts.dialect, UNKNOWN).log_limits(log, facts.version)
    kept = {
        name: value
        for name, value in limits.items()
        if (facts.max_model_len if name == "max_model_len" else facts.kv_blocks) is None
    }
    new: dict[str, Any] = kept
    return (
        replace(facts, **new, sources={**facts.sources, **dict.fromkeys(kept, "the server's log")}) if kept else facts
    )


async def _development(asker: DiscoveryClient, dialect: Dialect, facts: Facts) -> Facts:
    """Whether the admin endpoints are there: GET on a POST route is 405 where it exists and 404 where it does not."""
    if dialect.development_path is None:
        return facts
    answer = asker.pages.get(dialect.development_path)
    if answer is None:
        answer = await asker.ask("GET", dialect.development_path, admin=True)
    there = answer.status in (200, 405) if answer.status in (200, 404, 405) else None
    sources = {**facts.sources, "development_endpoints": f"GET {dialect.development_path} answered {answer.status}"}
    return replace(facts, development_endpoints=there, sources=sources)


async def calibrate(asker: DiscoveryClient, facts: Facts, wanted: CalibrationRequest) -> Facts:
    """How text and images become tokens here. Needs a healthy server; generates at most a few single tokens."""
    facts = await learn_text(asker, facts, wanted)
    if wanted.images_per_request:
        facts = await image_facts(asker, facts, wanted)
    if wanted.videos:
        facts = await video_facts(asker, facts, wanted)
    return facts
