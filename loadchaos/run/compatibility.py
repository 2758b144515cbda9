"""Check that the server accepts the profile's special requests: models by name, tools, schemas, sampling options,
more fields of the body, audio. A server that rejects these is correct and the profile does not fit it: a TargetError
says what to change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from loadchaos.core.errors import OptionError, TargetError
from loadchaos.core.model import Facts, Step, is_unlike
from loadchaos.load import request_builder
from loadchaos.load.payloads import images, sampling
from loadchaos.load.sequence_limits import sequence_limits
from loadchaos.profile.profile import Profile
from loadchaos.profile.steps import steps
from loadchaos.profile.traffic import Traffic
from loadchaos.run.endpoint_check import active_traffic, small_step
from loadchaos.server.dialects import DIALECTS
from loadchaos.server.discovery.client import DiscoveryClient

_TRIED = ("audio", "extra_body", "sampling", "structured", "tools")
_SHORT = 16
_FIRST_STEPS = 64
_BUILT_OF_EACH = 4
_NOT_FOUND = frozenset({404})
"""Before the load a 404 means a model that the server does not serve; during the load it means a lost resource."""
_LOADS_MODELS = "load_lora_adapter"
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")


def require_models(client: DiscoveryClient, profile: Profile) -> None:
    """Raise TargetError where /v1/models lacks a model that the profile names."""
    if any(a.admin == _LOADS_MODELS for a in profile.attacks):
        return  # attacks load and unload models during the run
    page = client.pages["/v1/models"]
    if page.status != 200:
        return  # a server without that page, whose model the user named
    served = [str(m.get("id")) for m in page.models]
    for number, traffic in active_traffic(profile):
        options = traffic.payload_options.get("sampling")
        named = options.models if isinstance(options, sampling.Options) else {}
        if missing := [name for name, weight in named.items() if weight and name not in served]:
            raise TargetError(
                f"traffic.{number}.payload.sampling.models (traffic {traffic.name}): the server does not serve "
                f"{', '.join(missing)} (it serves: {', '.join(served) or 'none'}). Load the model there, or change the "
                "names with --set"
            )


def require_image_room(profile: Profile, facts: Facts) -> None:
    """Raise TargetError where one image of a traffic does not fit the server's context. Several are sent as fewer."""
    for number, traffic in active_traffic(profile):
        options = traffic.payload_options.get("images")
        if not isinstance(options, images.Options) or options.count.low < 1 or "rejected" in traffic.expect:
            continue
        for size in map(str, options.sizes()):
            tokens = facts.image_tokens.get(size)
            if size in facts.long_images:
                told = "is longer than the context of the server, which refused it"
            elif tokens is not None and not images.room_for_images(facts, tokens):
                told = (
                    f"has {tokens:,} tokens, and a prompt with its text has {sequence_limits(facts).prompt:,} at most"
                )
            else:
                continue
            raise TargetError(
                f"traffic.{number}.payload.images.size (traffic {traffic.name}): an image of {size} {told}. The profile "
                f"does not fit the server: send smaller images, for instance --set "
                f"traffic.{number}.payload.images.size=256x256, or start the server with a longer context"
            )


def require_room(profile: Profile, facts: Facts, seed: int) -> None:
    """Raise OptionError where no request of a traffic can have the length that is asked for. The first ones are built, as
    the load builds them.
    """
    tried: dict[str, list[str]] = {
        t.name: [] for _, t in active_traffic(profile) if not {"recorded", "requests"} & t.payload.keys()
    }
    for step in islice(steps(profile, seed), _FIRST_STEPS):
        notes = tried.get(step.traffic)
        if notes is not None and len(notes) < _BUILT_OF_EACH:
            notes.append(request_builder.build(step, facts).fitted)
    for number, traffic in active_traffic(profile):
        notes = tried.get(traffic.name) or [""]
        if all(_is_unlike_in_tokens(note) for note in notes):
            raise OptionError(
                f"traffic.{number} (traffic {traffic.name}) does not fit the server: {notes[0]}. Ask for what the server "
                f"takes (--random-input-len, --random-output-len, or --set traffic.{number}.payload.text.tokens=N), or "
                "start it with a longer context"
            )


def _is_unlike_in_tokens(fitted: str) -> bool:
    return any(" tokens" in part and is_unlike(part) for part in fitted.split("; "))


async def require_payloads(client: DiscoveryClient, profile: Profile, facts: Facts) -> None:
    """Send one small request for each special payload of the profile, and for each other one if the server answered none
    that could be counted: it may refuse what all requests have. Raises TargetError where the server rejects one.
    """
    dialect = DIALECTS[facts.dialect].at(facts.version)
    if dialect.refusal_statuses:
        dialect = replace(dialect, refusal_statuses=dialect.refusal_statuses | _NOT_FOUND)
    tried: set[str] = set()
    for number, traffic in active_traffic(profile):
        options = {name: o for name, o in traffic.payload_options.items() if name in _TRIED}
        kind = f"{traffic.endpoint} {traffic.streams} {sorted((n, o.model_dump_json()) for n, o in options.items())}"
        if not (options or facts.text is None) or kind in tried or "rejected" in traffic.expect:
            continue
        tried.add(kind)
        request = request_builder.build(_step(traffic, options), facts)
        response = await client.post(request.path, bytes(request.body), stream=request.stream, dialect=dialect)
        if (answer := response.answer) is not None and answer.outcome == "rejected":
            error = f"{answer.status} {answer.error}" if answer.status >= 400 else answer.error
            names = " and ".join(f"traffic.{number}.payload.{name}" for name in options) or f"traffic.{number}"
            raise TargetError(
                f"{names} (traffic {traffic.name}): the server rejects such requests: {_hint(error, number)}"
            )


def _step(traffic: Traffic, options: Mapping[str, object]) -> Step:
    """Streams end early. Other answers keep their length, as half a tool call may be an error."""
    cap = traffic.output.max or traffic.output.exact
    longest = int(cap.low) if cap is not None else _SHORT
    return small_step(traffic, options, min(longest, _SHORT) if traffic.streams else longest)


def _hint(error: str, number: int) -> str:
    text = " ".join(error.split())[:300].rstrip(". ")
    options = list(dict.fromkeys(_OPTION.findall(text)))
    start = f"start the server with {' and '.join(options)}" if options else "change the payload"
    leave_out = f"leave this traffic out with --set traffic.{number}.weight=0"
    return f"{text}. The profile does not fit the server: {start}, or {leave_out}"
