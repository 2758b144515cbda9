"""`loadchaos probe URL`: what a server is, what it can take, and which shipped profiles fit it; nothing of it does harm.

At most 20 reads and tokenizer calls and 3 generations of one token each, none longer than a quarter of the context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadchaos.core.errors import TargetError
from loadchaos.core.model import Facts
from loadchaos.load.payloads.image_tokens import qwen
from loadchaos.profile.profile import Profile
from loadchaos.server.dialects import DIALECTS, UNKNOWN, Dialect, version_key
from loadchaos.server.discovery.calibrate import (
    CalibrationRequest,
    DiscoveryClient,
    DiscoveryResponse,
    calibrate,
    identify_server,
)
from loadchaos.server.discovery.max_length import longest_prompt
from loadchaos.server.discovery.server_config import configuration

MOST_READS = 20
MOST_GENERATIONS = 3
_SIZES = (1024, 512, 256)
_SMALL_IMAGE_TOKENS = 66  # what the small images cost that are sent to find how many a prompt may have
_MOST_IMAGES_ASKED = 9


@dataclass(frozen=True)
class Fit:
    """Whether a profile fits this server: `lacks` make its run impossible or prove nothing, `notes` are told only."""

    name: str
    about: str
    lacks: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Probed:
    """A probed server. `configured` are facts beyond Facts (value, where it was learned); `unknown` says what and why."""

    facts: Facts
    configured: Mapping[str, tuple[Any, str]]
    fits: Sequence[Fit]
    unknown: Sequence[str]
    reads: int
    generations: int
    trouble: str | None = None
    models: Sequence[str] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """A mapping that `json` takes."""
        facts = self.facts.to_json()
        return {
            "schema": 1,
            "facts": facts,
            "models": list(self.models),
            "configured": {name: {"value": v, "source": s} for name, (v, s) in self.configured.items()},
            "profiles": [
                {"name": f.name, "applies": not f.lacks, "lacks": list(f.lacks), "notes": list(f.notes)}
                for f in self.fits
            ],
            "unknown": list(self.unknown),
            "trouble": self.trouble,
            "asked": {"reads": self.reads, "generations": self.generations},
        }


async def probe(
    asker: DiscoveryClient, wanted: CalibrationRequest, profiles: Mapping[str, Profile], *, lengths: bool = False
) -> Probed:
    """Ask the server. Raises TargetError where nothing can be learned (unreachable, 401, no OpenAI-compatible server).

    `lengths` searches the longest prompt, too, which is no small thing to ask: the caller has authorisation for it.
    """
    facts = await identify_server(asker, wanted)
    configured, _ = await configuration(asker, facts)
    trouble = None
    size, most = _images_to_send(facts)
    try:
        facts = await calibrate(
            asker, facts, replace(wanted, quick=True, image_sizes=[(size, size)], images_per_request=most)
        )
    except TargetError as e:  # it is up and does not generate: what the reads told is still worth a page
        trouble = str(e)
    if lengths and trouble is None:
        facts = await longest_prompt(asker, facts)
    facts = _limit_from_configuration(facts, configured)
    return Probed(
        facts,
        configured,
        [fit(p, facts, configured) for p in profiles.values()],
        _unknown(facts, configured),
        asker.reads,
        asker.generations,
        trouble,
        _models(asker.pages.get("/v1/models")),
    )


def _images_to_send(facts: Facts) -> tuple[int, int]:
    """(side of the image to measure, small images in one request), none above a quarter of what a prompt may have."""
    limits = [n for n in (facts.max_model_len, facts.input_limit) if n is not None]
    quarter = min(limits, default=4096) // 4
    side = next((s for s in _SIZES if qwen(s, s) <= quarter), _SIZES[-1])
    return side, max(1, min(_MOST_IMAGES_ASKED, quarter // _SMALL_IMAGE_TOKENS))


def _limit_from_configuration(facts: Facts, configured: Mapping[str, tuple[Any, str]]) -> Facts:
    if facts.max_images is not None or "max_images" not in configured:
        return facts
    value, source = configured["max_images"]
    return replace(facts, max_images=value, sources={**facts.sources, "max_images": source})


def _models(page: DiscoveryResponse | None) -> tuple[str, ...]:
    data = page.json() if page is not None else None
    entries = data.get("data") if isinstance(data, dict) else None
    return tuple(str(m["id"]) for m in entries or () if isinstance(m, dict) and "id" in m)


def _unknown(facts: Facts, configured: Mapping[str, tuple[Any, str]]) -> list[str]:
    """What could not be learned, each with what would tell it."""
    told = []
    if facts.dialect == UNKNOWN.name:
        *others, last = (dialect.title for dialect in DIALECTS.values() if dialect is not UNKNOWN)
        told.append(f"what kind of server this is: it shows no sign of {', '.join(others)} or {last}")
    if facts.version is None:
        told.append("its version: it does not say it")
    if facts.max_model_len is None and facts.input_limit is None:
        told.append("its context length: /v1/models has no max_model_len (a near-limit payload needs limit: N)")
    if facts.capacity_tokens is None:
        told.append("the capacity of its KV cache: neither /metrics nor /distserve/engine_info tells it")
    if facts.text is None:
        told.append("how it counts tokens: no tokenizer endpoint, no usage; prompt lengths will be estimates")
    if facts.images is None:
        told.append(f"whether it takes images{_because(facts, 'image_tokens')}")
    if facts.speculative_decoding is None:
        told.append("whether it decodes speculatively: its metrics do not tell")
    if facts.development_endpoints is None and DIALECTS[facts.dialect].development_path is not None:
        told.append(f"whether its admin endpoints are on{_because(facts, 'development_endpoints')}")
    if "prefix_caching" not in configured:
        told.append("whether prefix caching is on")
    return told


def _because(facts: Facts, name: str) -> str:
    why = facts.sources.get(name)
    return f" ({why})" if why else ""


# --- profiles ---------------------------------------------------------------------------------------------------------


def fit(profile: Profile, facts: Facts, configured: Mapping[str, tuple[Any, str]]) -> Fit:
    """What the profile needs and this server lacks, and what its user should know. Pure."""
    dialect = DIALECTS[facts.dialect]
    lacks: list[str] = []
    if profile.target.dialect not in ("auto", facts.dialect):
        lacks.append(f"it is about {DIALECTS[profile.target.dialect].title}, this is {dialect.title}")
    lacks += _mechanisms(profile, facts, configured)
    for attack in profile.attacks:
        if attack.admin is not None:
            lacks += _operation(attack.admin, dialect, facts)
    if any("near_limit" in t.payload and _asks_for_limit(t.payload["near_limit"], facts) for t in profile.traffic):
        lacks.append("its ladder needs the context length, which this server does not tell: set limit: N")
    return Fit(profile.name, profile.about, list(dict.fromkeys(lacks)), _notes(profile, facts))


def _asks_for_limit(options: Mapping[str, Any], facts: Facts) -> bool:
    return options.get("limit") is None and facts.max_model_len is None and facts.input_limit is None


def _mechanisms(profile: Profile, facts: Facts, configured: Mapping[str, tuple[Any, str]]) -> list[str]:
    lacks = []
    if "images" in profile.requires and facts.images is False:
        lacks.append(f"images: the model {facts.model} takes none")
    if "speculative_decoding" in profile.requires and facts.speculative_decoding is False:
        lacks.append("speculative decoding: start the server with --speculative-config")
    if "development_endpoints" in profile.requires and facts.development_endpoints is False:
        lacks.append(f"development endpoints: {DIALECTS[facts.dialect].development_gate}")
    if "prefix_caching" in profile.requires and configured.get("prefix_caching", (None, ""))[0] is False:
        lacks.append("prefix caching: start the server with --enable-prefix-caching")
    if "mm_cache" in profile.requires and configured.get("mm_processor_cache_gb", (None, ""))[0] == 0:
        lacks.append("the processor cache: --mm-processor-cache-gb is 0")
    return lacks


def _operation(name: str, dialect: Dialect, facts: Facts) -> list[str]:
    operation = dialect.admin.get(name)
    if operation is None:
        return [f"the attack {name}: {dialect.title} has none"]
    since, version = version_key(operation.since), version_key(facts.version)
    if since is not None and version is not None and version < since:
        return [f"the attack {name}: it came with {operation.since}, this is {facts.version}"]
    if operation.gate == dialect.development_gate and facts.development_endpoints is False:
        return [f"development endpoints: {operation.gate}"]
    return []


def _notes(profile: Profile, facts: Facts) -> list[str]:
    notes = []
    most = profile.image_sizes()[1]
    if facts.max_images is not None and most > facts.max_images:
        notes.append(f"its {most} images a request become {facts.max_images}")
    limit = facts.input_limit or facts.max_model_len
    lengths = [
        high
        for t in profile.traffic
        for o in t.payload_options.values()
        if (high := getattr(getattr(o, "tokens", None), "high", None)) is not None
    ]
    if limit is not None and max(lengths, default=0) > limit:
        notes.append(f"its texts of up to {max(lengths)} tokens are cut to fit {limit}")
    if harms := profile.dangers():
        notes.append(f"needs --authorize HOST:PORT, for {'; '.join(harms)}")
    return notes


# --- the page ---------------------------------------------------------------------------------------------------------

_LABEL = 22


def page(probed: Probed) -> str:
    """One page for a terminal: what it is, what it can take, how it is set up, which profiles fit, what is not known."""
    facts = probed.facts
    lines = [*_identity(probed), "", *_limits(facts), "", *_setup(probed), "", "shipped profiles"]
    width = max((len(f.name) for f in probed.fits), default=0)
    for one in probed.fits:
        lines.append(f"  {'-' if one.lacks else '+'} {one.name:{width}}  {'; '.join(one.lacks) or 'fits'}")
        lines += [f"    {'':{width}}  ({note})" for note in one.notes if not one.lacks]
    if probed.unknown:
        lines += ["", "not learned", *(f"  {text}" for text in probed.unknown)]
    if probed.trouble:
        lines += ["", f"TROUBLE: {probed.trouble}"]
    return "\n".join([*lines, "", f"asked: {probed.reads} reads and tokenizer calls, {probed.generations} generations"])


def _row(label: str, value: object, source: str | None = None) -> str:
    told = "not known" if value is None else "yes" if value is True else "no" if value is False else str(value)
    return f"{label:{_LABEL}}{told}" + (f"   [{source}]" if source and value is not None else "")


def _identity(probed: Probed) -> list[str]:
    facts = probed.facts
    more = f" (of {len(probed.models)}: {', '.join(probed.models)})" if len(probed.models) > 1 else ""
    return [
        _row("server", facts.base_url),
        _row("dialect", DIALECTS[facts.dialect].title, facts.sources.get("dialect")),
        _row("version", facts.version, facts.sources.get("version")),
        _row("model", f"{facts.model}{more}"),
    ]


def _limits(facts: Facts) -> list[str]:
    sources = facts.sources
    blocks = f" = {facts.kv_blocks} blocks x {facts.kv_block_size}" if facts.kv_blocks else ""
    capacity = None if facts.capacity_tokens is None else f"{facts.capacity_tokens} tokens{blocks}"
    text = facts.text
    template = None if text is None else f"the chat template adds {text.overhead} tokens to a user message"
    lines = [
        _row("context", None if facts.max_model_len is None else f"{facts.max_model_len} tokens",
             sources.get("max_model_len")),
        _row("KV cache", capacity, sources.get("capacity_tokens")),
        _row("text", template, text.source if text is not None else None),
        _row("images", facts.images, sources.get("images")),
    ]  # fmt: skip
    if facts.input_limit is not None:
        lines.insert(1, _row("longest prompt", f"{facts.input_limit} tokens", sources.get("input_limit")))
    if facts.images:
        source = sources.get("max_images")
        unmet = facts.max_images is None and source is not None
        lines.append(_row("images a request", "no limit met" if unmet else facts.max_images, source))
    lines += [_row(f"an image {size}", f"{cost} tokens", "usage") for size, cost in facts.image_tokens.items()]
    return lines


def _setup(probed: Probed) -> list[str]:
    facts, configured = probed.facts, probed.configured

    def told(label: str, name: str) -> str:
        value, source = configured.get(name, (None, ""))
        return _row(label, value, source)

    drafts = facts.speculative_decoding
    if drafts and "speculative_method" in configured:
        tokens = configured.get("speculative_tokens", ("?", ""))[0]
        shown: object = f"yes: {configured['speculative_method'][0]}, {tokens} tokens"
    else:
        shown = drafts
    gated = DIALECTS[facts.dialect].development_path is not None
    mode = facts.development_endpoints if gated else "it has none"
    lines = [
        _row("development mode", mode, facts.sources.get("development_endpoints")),
        _row("speculative decoding", shown, facts.sources.get("speculative_decoding")),
        told("prefix caching", "prefix_caching"),
        _row("/metrics", facts.metrics),
    ]
    # What only development mode tells is left out where it is not told, rather than listed as not known.
    for label, name in (
        ("processor cache GB", "mm_processor_cache_gb"),
        ("batched tokens a step", "max_num_batched_tokens"),
        ("sequences a step", "max_num_seqs"),
        ("async scheduling", "async_scheduling"),
        ("chunked prefill", "chunked_prefill"),
        ("sleep mode", "sleep_mode"),
    ):
        if name in configured:
            lines.append(told(label, name))
    return lines
