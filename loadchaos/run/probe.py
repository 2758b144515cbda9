"""Probe a server: what it is, its limits, the profiles that fit it. Harmless: at most 20 reads and 4 generations of one
token, with prompts of at most a quarter of the context.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadchaos.analysis.advisories.advisory import ENGINES
from loadchaos.chaos import authorization
from loadchaos.core import typed_json
from loadchaos.core.errors import TargetError
from loadchaos.core.model import Facts
from loadchaos.load.endpoints import DEFAULT
from loadchaos.load.payloads.image_tokens import qwen
from loadchaos.profile.profile import Profile
from loadchaos.report.formatting import plural
from loadchaos.server.dialects import DIALECTS, UNKNOWN
from loadchaos.server.discovery.calibrate import calibrate, identify_server
from loadchaos.server.discovery.client import CalibrationRequest, DiscoveryClient
from loadchaos.server.discovery.max_length import longest_prompt
from loadchaos.server.discovery.preflight import lacks_operation
from loadchaos.server.discovery.server_config import configuration, with_configuration
from loadchaos.server.discovery.text_tokens import NoChatError

MOST_GENERATIONS = 4
_SIZES = (1024, 512, 256)
_SMALL_IMAGE_TOKENS = 66  # what the small images cost that are sent to find how many a prompt may have
_MOST_IMAGES_ASKED = 9


@dataclass(frozen=True)
class ProfileFit:
    """Fit of a profile to this server. Each of `lacks` makes a run impossible or meaningless."""

    name: str
    about: str
    lacks: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class ProbeResult:
    """Result of a probe. `configured`: further settings, each with its source; `unknown`: what could not be found out,
    and why; `trouble`: why the server does not generate.
    """

    facts: Facts
    configured: Mapping[str, tuple[Any, str]]
    fits: Sequence[ProfileFit]
    unknown: Sequence[str]
    reads: int
    generations: int
    trouble: str | None = None
    models: Sequence[str] = field(default_factory=tuple)

    def to_json(self) -> dict[str, object]:
        facts = typed_json.to_json(self.facts)
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
    client: DiscoveryClient,
    request: CalibrationRequest,
    profiles: Mapping[str, Profile],
    *,
    lengths: bool = False,
    quick: bool = True,
) -> ProbeResult:
    """Probe a server. `lengths`: search the longest prompt, too (the caller has checked the authorization); `quick`
    False: runs with the same memory follow, so words are measured as they need them. Raises TargetError.
    """
    facts = await identify_server(client, request)
    configured, _ = await configuration(client, facts)
    trouble, chat = None, True
    size, most = _images_to_send(facts)
    try:
        facts = await calibrate(
            client, facts, replace(request, quick=quick, image_sizes=[(size, size)], images_per_request=most)
        )
    except TargetError as e:  # it does not generate, but the reads have found something
        trouble, chat = str(e), not isinstance(e, NoChatError)
    if lengths and trouble is None:
        facts = await longest_prompt(client, facts)
    facts = with_configuration(facts, configured)
    no_tools = ""
    if trouble is None and any(_sends_tools(profile) for profile in profiles.values()):
        no_tools = await _why_no_tools(client, facts)
    fits = [profile_fit(p, facts, configured, chat=chat, no_tools=no_tools) for p in profiles.values()]
    unknown = _unknown(facts, configured, asked=trouble is None)
    models = [str(m["id"]) for m in client.pages["/v1/models"].models if "id" in m]
    return ProbeResult(facts, configured, fits, unknown, client.reads, client.generations, trouble, models)


def _sends_tools(profile: Profile) -> bool:
    offered = (t.payload["tools"] for t in profile.traffic if t.weight and "tools" in t.payload)
    return any(tools.get("choice") != "none" for tools in offered)


async def _why_no_tools(client: DiscoveryClient, facts: Facts) -> str:
    """Ask for one token with a tool to choose. Returns how it was refused; empty where it was answered, or failed."""
    tool = {"type": "function", "function": {"name": "noop", "parameters": {"type": "object", "properties": {}}}}
    answer = await client.chat(facts.model, "Hi", tools=[tool], tool_choice="auto")
    return answer.refusal if 400 <= answer.status < 500 else ""


def _images_to_send(facts: Facts) -> tuple[int, int]:
    """Sizes of the image requests: (side in pixels, small images). Both stay within a quarter of the longest prompt."""
    limits = [n for n in (facts.max_model_len, facts.input_limit) if n is not None]
    quarter = min(limits, default=4096) // 4
    side = next((s for s in _SIZES if qwen(s, s) <= quarter), _SIZES[-1])
    return side, max(1, min(_MOST_IMAGES_ASKED, quarter // _SMALL_IMAGE_TOKENS))


def _unknown(facts: Facts, configured: Mapping[str, tuple[Any, str]], *, asked: bool) -> list[str]:
    """Without `asked`, the trouble explains what only requests would show."""
    unknown = []
    if facts.dialect == UNKNOWN.name:
        *others, last = (dialect.title for dialect in DIALECTS.values() if dialect is not UNKNOWN)
        unknown.append(f"kind of server: no sign of {', '.join(others)} or {last}")
    if facts.version is None:
        unknown.append("version: the server does not report it")
    if facts.max_model_len is None and facts.input_limit is None:
        unknown.append("context length: /v1/models has no max_model_len (set limit: N in a near_limit payload)")
    if facts.capacity_tokens is None:
        unknown.append("KV cache capacity: neither /metrics nor /distserve/engine_info reports it")
    if facts.text is None and asked:
        unknown.append("token counts: no tokenizer endpoint and no usage (prompt lengths will be estimates)")
    if facts.images is None and asked:
        unknown.append(f"image input{_because(facts, 'image_tokens')}")
    if facts.speculative_decoding is None:
        unknown.append("speculative decoding: /metrics does not report it")
    if facts.development_endpoints is None and DIALECTS[facts.dialect].development_path is not None:
        unknown.append(f"development endpoints{_because(facts, 'development_endpoints')}")
    if "prefix_caching" not in configured:
        unknown.append("prefix caching: the server does not report it")
    return unknown


def _because(facts: Facts, name: str) -> str:
    why = facts.sources.get(name)
    return f": {why}" if why else ""


def profile_fit(
    profile: Profile, facts: Facts, configured: Mapping[str, tuple[Any, str]], *, chat: bool = True, no_tools: str = ""
) -> ProfileFit:
    """Compare what a profile needs with what the server has. `chat`: the server has a chat endpoint. `no_tools`: how it
    refused a request with tools.
    """
    dialect = DIALECTS[facts.dialect]
    lacks: list[str] = []
    if not chat and any(t.endpoint == DEFAULT for t in profile.traffic if t.weight):
        lacks.append("the server has no chat endpoint")
    if profile.target.dialect not in ("auto", facts.dialect):
        lacks.append(f"it targets {DIALECTS[profile.target.dialect].title}; this server is {dialect.title}")
    if no_tools and _sends_tools(profile):
        how = "; start the server with --enable-auto-tool-choice --tool-call-parser" if facts.dialect == "vllm" else ""
        lacks.append(f"tool calls: a request with a tool was {no_tools}{how}")
    lacks += _mechanisms(profile, facts, configured)
    for attack in profile.attacks:
        if attack.admin is not None and (why := lacks_operation(attack.admin, dialect, facts)):
            lacks.append(f"attack {attack.admin}: {why}")
    asks = any("near_limit" in t.payload and t.payload["near_limit"].get("limit") is None for t in profile.traffic)
    if asks and facts.max_model_len is None and facts.input_limit is None:
        lacks.append("near_limit needs the context length, which this server does not report: set limit: N")
    return ProfileFit(profile.name, profile.about, list(dict.fromkeys(lacks)), _notes(profile, facts))


def _mechanisms(profile: Profile, facts: Facts, configured: Mapping[str, tuple[Any, str]]) -> list[str]:
    lacks = []

    def setting(name: str) -> object:
        return configured.get(name, (None, ""))[0]

    if "images" in profile.requires and facts.images is False:
        lacks.append(f"images: the model {facts.model} takes none")
    if "speculative_decoding" in profile.requires and facts.speculative_decoding is False:
        lacks.append("speculative decoding: start the server with --speculative-config")
    if "lora_adapters" in profile.requires and not facts.lora_adapters:
        lacks.append("LoRA adapters: /v1/models lists none; start the server with --enable-lora --lora-modules")
    if "development_endpoints" in profile.requires and facts.development_endpoints is False:
        lacks.append(f"development endpoints: {DIALECTS[facts.dialect].development_gate}")
    if {"prefix_caching", "prefix_cache_hits"} & set(profile.requires) and setting("prefix_caching") is False:
        lacks.append("prefix caching: start the server with --enable-prefix-caching")
    if "preemption" in profile.requires and (most := _most_tokens(profile)) <= (facts.capacity_tokens or 0):
        lacks.append(
            f"preemption: the KV cache holds {facts.capacity_tokens:,} tokens and this load at most {most:,}: start the "
            "server with a smaller one (vLLM: --num-gpu-blocks-override), or run the profile with more users (-u)"
        )
    if "replicas" in profile.requires and len(profile.target.replicas) < 2:
        lacks.append("several replicas: name the servers behind the router with --set target.replicas=[...]")
    if any(a.admin == "sleep" for a in profile.attacks) and setting("sleep_mode") is False:
        lacks.append("attack sleep: start the server with --enable-sleep-mode")
    if "mm_cache" in profile.requires and setting("mm_processor_cache_gb") == 0:
        lacks.append("the processor cache: --mm-processor-cache-gb is 0")
    return lacks


def _most_tokens(profile: Profile) -> int:
    users = max(phase.slots for phase in profile.load)
    each = [
        options.longest_text + traffic.output.bounds.high
        for traffic in profile.traffic
        for options in traffic.payload_options.values()
    ]
    return int(users * max(each, default=0))


def _notes(profile: Profile, facts: Facts) -> list[str]:
    notes = []
    most = profile.image_sizes()[1]
    if facts.max_images is not None and most > facts.max_images:
        notes.append(f"{most} images per request become {facts.max_images}")
    limit = facts.input_limit or facts.max_model_len
    longest = max(options.longest_text for traffic in profile.traffic for options in traffic.payload_options.values())
    if limit is not None and longest > limit:
        notes.append(f"texts of up to {longest} tokens are cut to {limit}")
    if harms := profile.dangers():
        address, missing = authorization.address(facts.base_url), authorization.is_missing(facts.base_url, harms, ())
        notes.append(f"can harm the server: {'; '.join(harms)}{f' (needs --authorize {address})' if missing else ''}")
    return notes


_LABEL = 22


def page(probed: ProbeResult) -> str:
    facts = probed.facts
    lines = [*_identity(probed), "", *_limits(facts), "", *_setup(probed), ""]
    lines.append("shipped profiles (+ fits, - does not fit)")
    width = max((len(f.name) for f in probed.fits), default=0)
    for one in probed.fits:
        lines.append(f"  {'-' if one.lacks else '+'} {one.name:{width}}  {'; '.join(one.lacks) or 'fits'}")
        lines += [f"    {'':{width}}  ({note})" for note in one.notes if not one.lacks]
    if probed.unknown:
        lines += ["", "unknown", *(f"  {text}" for text in probed.unknown)]
    if probed.trouble:
        lines += ["", f"PROBLEM: {probed.trouble}"]
    sent = f"sent: {plural(probed.reads, 'read or tokenizer call', 'reads and tokenizer calls')}, "
    known = [f"known bugs: {shlex.join(['loadchaos', 'doctor', facts.base_url])}"] if facts.dialect in ENGINES else []
    return "\n".join([*lines, "", sent + plural(probed.generations, "generation"), *known])


def _row(label: str, value: object, source: str | None = None) -> str:
    text = "unknown" if value is None else "yes" if value is True else "no" if value is False else str(value)
    return f"{label:{_LABEL}}{text}" + (f"   [{source}]" if source and value is not None else "")


def _identity(probed: ProbeResult) -> list[str]:
    facts = probed.facts
    others = f" (one of {len(probed.models)}: {', '.join(probed.models)})" if len(probed.models) > 1 else ""
    return [
        _row("server", facts.base_url),
        _row("dialect", DIALECTS[facts.dialect].title, facts.sources.get("dialect")),
        _row("version", facts.version, facts.sources.get("version")),
        _row("model", f"{facts.model}{others}"),
    ]


def _limits(facts: Facts) -> list[str]:
    sources = facts.sources
    blocks = f" = {facts.kv_blocks} blocks x {facts.kv_block_size}" if facts.kv_blocks else ""
    capacity = None if facts.capacity_tokens is None else f"{facts.capacity_tokens} tokens{blocks}"
    text = facts.text
    template = None if text is None else f"chat template adds {text.overhead} tokens to a user message"
    lines = [
        _row("context", None if facts.max_model_len is None else f"{facts.max_model_len} tokens",
             sources.get("max_model_len")),
        _row("KV cache", capacity, sources.get("capacity_tokens")),
        _row("token counts", template, text.source if text is not None else None),
        _row("image input", facts.images, sources.get("images")),
    ]  # fmt: skip
    if facts.input_limit is not None:
        lines.insert(1, _row("longest prompt", f"{facts.input_limit} tokens", sources.get("input_limit")))
    if facts.images:
        source = sources.get("max_images")
        unlimited = facts.max_images is None and source is not None
        lines.append(_row("images per request", "no limit found" if unlimited else facts.max_images, source))
    lines += [_row(f"image {size}", f"{cost} tokens", "usage") for size, cost in facts.image_tokens.items()]
    return lines


def _setup(probed: ProbeResult) -> list[str]:
    facts, configured = probed.facts, probed.configured

    def setting(label: str, name: str) -> str:
        value, source = configured.get(name, (None, ""))
        return _row(label, value, source)

    drafts = facts.speculative_decoding
    if drafts and "speculative_method" in configured:
        tokens = configured.get("speculative_tokens", ("?", ""))[0]
        shown: object = (
            f"yes: {configured['speculative_method'][0]}, {tokens} {'token' if tokens == 1 else 'tokens'} per step"
        )
    else:
        shown = drafts
    gated = DIALECTS[facts.dialect].development_path is not None
    mode = facts.development_endpoints if gated else "does not exist"
    lines = [
        _row("development mode", mode, facts.sources.get("development_endpoints")),
        _row("speculative decoding", shown, facts.sources.get("speculative_decoding")),
        setting("prefix caching", "prefix_caching"),
        _row("/metrics", facts.metrics),
    ]
    # Settings that only development mode reports are left out where they are unknown.
    for label, name in (
        ("processor cache (GB)", "mm_processor_cache_gb"),
        ("tokens per step", "max_num_batched_tokens"),
        ("sequences per step", "max_num_seqs"),
        ("async scheduling", "async_scheduling"),
        ("chunked prefill", "chunked_prefill"),
        ("sleep mode", "sleep_mode"),
    ):
        if name in configured:
            lines.append(setting(label, name))
    return lines
