"""What a profile has to know of a server before its load, and what the server must take of it: asked in this order."""

from __future__ import annotations

from collections.abc import Sequence

from loadchaos.core.model import Facts
from loadchaos.profile.profile import Profile
from loadchaos.runner import compatibility
from loadchaos.server.discovery import calibrate, chat_tokens, max_length, preflight
from loadchaos.server.discovery.client import CalibrationRequest, DiscoveryClient
from loadchaos.server.discovery.local_tokenizer import Folder


def calibration_request(
    profile: Profile, model: str | None, api_key_env: str | None, tokenizer: Folder | None
) -> CalibrationRequest:
    """What is measured for this profile."""
    sizes, most_images = profile.image_sizes()
    return CalibrationRequest(
        image_sizes=sizes,
        images_per_request=most_images,
        videos=profile.video_kinds(),
        dialect=profile.target.dialect,
        model=model,
        api_key_env=api_key_env,
        tokenizer=tokenizer,
    )


async def discover(
    asker: DiscoveryClient, profile: Profile, facts: Facts, asked: CalibrationRequest, attacks: Sequence[str]
) -> tuple[Facts, list[str]]:
    """How the server counts what the profile sends, its limit where a ladder needs it, and what else is to be told.

    Raises TargetError where the profile does not fit it. The search of a limit is an attack: the caller has the
    authorisation for what the profile sends.
    """
    preflight.require(facts, profile.requires, attacks, ())
    compatibility.require_models(asker, profile)
    facts = await calibrate.calibrate(asker, facts, asked)
    if profile.searches_context_limit() and max_length.open_question(facts):
        facts = await max_length.longest_prompt(asker, facts)
    turns, scripts = profile.text_needs()
    if turns or scripts:
        facts = await chat_tokens.with_chat_tokens(
            asker, facts, turns=turns, scripts=scripts, tokenizer=asked.tokenizer
        )
    await compatibility.require_payloads(asker, profile, facts)
    image_traffic = [t.name for t in profile.traffic if "images" in t.payload]
    return facts, preflight.require(facts, profile.requires, attacks, image_traffic)
