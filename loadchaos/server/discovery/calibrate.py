"""Once, before the load: what is this server, what are its limits, how does it count tokens -> Facts.

Reads and tokenizer calls first; at most a handful of one-token generations where counting leaves something open. What
the server answers is data for the Facts; only what makes a run impossible (401, wrong model, not HTTP) is an error.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from loadchaos.core.errors import TargetError
from loadchaos.core.model import Facts
from loadchaos.server.dialects import DIALECTS, Dialect, version_key
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
    values.update(_vllm_capacity(pages["/metrics"].text, sources))
    values.update(_lmdeploy_capacity(pages["/distserve/engine_info"], facts.version, sources))
    # Only vLLM's page tells: it has the counters where it drafts; LMDeploy has them always.
    if facts.dialect == "vllm" and pages["/metrics"].status == 200:
        drafts = re.search(r"^vllm:spec_decode_num_drafts(?:_total)?\{", pages["/metrics"].text, re.MULTILINE)
        values["speculative_decoding"] = drafts is not None
        sources["speculative_decoding"] = f"/metrics has {'its counters' if drafts else 'no counters of it'}"
    return replace(facts, **values, sources=sources)


def _vllm_capacity(metrics: str, sources: dict[str, str]) -> dict[str, int]:
    """vllm:cache_config_info carries block_size and num_gpu_blocks as labels (facts of every V1 version)."""
    line = re.search(r"^vllm:cache_config_info\{(.*)\}", metrics, re.MULTILINE)
    if line is None:
        return {}
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line[1]))
    try:
        blocks, block_size = int(labels["num_gpu_blocks"]), int(labels["block_size"])
    except (KeyError, ValueError):
        return {}
    sources["capacity_tokens"] = "vllm:cache_config_info"
    return {"kv_blocks": blocks, "kv_block_size": block_size, "capacity_tokens": blocks * block_size}


def _lmdeploy_capacity(page: DiscoveryResponse, version: str | None, sources: dict[str, str]) -> dict[str, int]:
    """/distserve/engine_info is a JSON text inside a JSON text."""
    info = page.json() if page.status == 200 else None
    if isinstance(info, str):
        try:
            info = json.loads(info)
        except ValueError:
            return {}
    if not isinstance(info, dict) or not info.get("num_gpu_blocks") or not info.get("block_size"):
        return {}
    limits = _lmdeploy_limits(int(info["num_gpu_blocks"]), int(info["block_size"]), version)
    sources.update(dict.fromkeys(limits, "/distserve/engine_info"))
    return limits


def _lmdeploy_limits(blocks: int, block_size: int, version: str | None) -> dict[str, int]:
    """The longest prompt by version: `_get_max_session_len` of lmdeploy/pytorch/engine/engine.py.

    All blocks up to 0.9.1, all but one in 0.9.2 to 0.11, all but two (one is reserved) since 0.12; the context may be
    shorter, which LMDeploy tells nowhere.
    """
    capacity = {"kv_blocks": blocks, "kv_block_size": block_size, "capacity_tokens": blocks * block_size}
    key = version_key(version) or (99,)
    if version is not None and version.endswith("earlier") and key > (0, 9):
        return capacity  # the formula changed in between: which one holds is not known
    kept = 0 if key < (0, 9, 2) else 1 if key < (0, 12) else 2
    return {**capacity, "input_limit": (blocks - kept) * block_size}


_BLOCKS_IN_LOG = re.compile(r"num_gpu_blocks=(\d+)|\bblock num: (\d+)|Initialize cache engine with (\d+) gpu blocks")
_SESSION_IN_LOG = re.compile(r"\bsession_len=(\d+)")
_BLOCK_SIZE_IN_LOG = re.compile(r"\bblock_size=(\d+)")


def with_log(facts: Facts, log: str) -> Facts:
    """What the head of the log tells and no endpoint does: LMDeploy's context and KV capacity (--log-level INFO)."""
    if facts.dialect != "lmdeploy":
        return facts
    if facts.max_model_len is None and (told := _SESSION_IN_LOG.findall(log)):
        sources = {**facts.sources, "max_model_len": "the server's log"}
        facts = replace(
            facts, max_model_len=int(told[-1]), sources=sources
        )  # the last one is after its own adjustments
    if facts.kv_blocks is not None:
        return facts
    blocks, size = _BLOCKS_IN_LOG.search(log), _BLOCK_SIZE_IN_LOG.search(log)
    if blocks is None or size is None:
        return facts
    n = int(next(group for group in blocks.groups() if group))
    limits: dict[str, Any] = _lmdeploy_limits(n, int(size[1]), facts.version)
    return replace(facts, **limits, sources={**facts.sources, **dict.fromkeys(limits, "the server's log")})


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
