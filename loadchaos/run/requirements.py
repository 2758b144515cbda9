"""Discover what a profile needs to know of a server."""

from __future__ import annotations

from collections.abc import Sequence

from loadchaos.core.model import Facts
from loadchaos.profile.profile import Profile
from loadchaos.run import compatibility, endpoint_check
from loadchaos.server.discovery import calibrate, chat_tokens, max_length, preflight
from loadchaos.server.discovery.client import CalibrationRequest, DiscoveryClient
from loadchaos.server.discovery.local_tokenizer import LocalTokenizer


def calibration_request(
    profile: Profile, model: str | None, api_key_env: str | None, tokenizer: LocalTokenizer | None
) -> CalibrationRequest:
    sizes, most_images = profile.image_sizes()
    return CalibrationRequest(
        image_sizes=sizes,
        images_per_request=most_images,
        videos=profile.video_kinds(),
        dialect=profile.target.dialect,
        model=model,
        api_key_env=api_key_env,
        tokenizer=tokenizer,
        chat=endpoint_check.uses_chat_template(profile),
    )


async def discover(
    client: DiscoveryClient, profile: Profile, facts: Facts, request: CalibrationRequest, admin_attacks: Sequence[str]
) -> tuple[Facts, list[str]]:
    """Measure what the profile needs; returns notes for the user as well. The search of the longest prompt is an
    attack: the caller has checked the authorization. Raises TargetError where the profile does not fit the server.
    """
    preflight.require(facts, profile.requires, admin_attacks, ())
    compatibility.require_models(client, profile)
    if all("recorded" in traffic.payload for traffic in profile.traffic):
        return facts, []  # nothing of it is fitted to the server, so no length has to be known
    facts = await calibrate.calibrate(client, facts, request)
    facts = await endpoint_check.require_endpoints(client, profile, facts)
    if profile.searches_context_limit() and max_length.prompt_limit_unknown(facts):
        facts = await max_length.longest_prompt(client, facts)
    turns, scripts = profile.text_needs()
    if turns or scripts:
        facts = await chat_tokens.with_chat_tokens(
            client, facts, turns=turns, scripts=scripts, tokenizer=request.tokenizer
        )
    compatibility.require_image_room(profile, facts)
    await compatibility.require_payloads(client, profile, facts)
    image_traffic = [t.name for t in profile.traffic if {"images", "image_positions"} & t.payload.keys()]
    return facts, preflight.require(facts, profile.requires, admin_attacks, image_traffic)
