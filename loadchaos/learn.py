"""`python -m loadchaos.learn`: asks a server what a run asks before its load, for a Locust that is the user's own.

Reads `{"base_url", "model", "api_key_env", "headers", "profile"}` (a profile as JSON) from its input and prints the Facts
as JSON. A process of its own because Locust's is patched by gevent, in which asyncio has no place.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

import httpx

from loadchaos import calibrate, counting
from loadchaos.behaviours import BEHAVIOURS
from loadchaos.errors import LoadchaosError
from loadchaos.model import Facts
from loadchaos.payloads import PAYLOADS
from loadchaos.plan.profile import Shelves, from_mapping


async def learn(asked: Mapping[str, Any]) -> Facts:
    """What the server is and how it counts what the profile sends. TargetError where it cannot be asked."""
    shelves = Shelves({n: p.Options for n, p in PAYLOADS.items()}, {n: b.Options for n, b in BEHAVIOURS.items()})
    profile = from_mapping(asked["profile"], shelves)
    sizes, most = profile.image_sizes()
    wanted = calibrate.Wanted(
        image_sizes=sizes, images_per_request=most, videos=profile.video_kinds(), dialect=profile.target.dialect,
        model=asked.get("model"), api_key_env=asked.get("api_key_env"),
    )  # fmt: skip
    base = calibrate.parse_target(asked["base_url"])
    async with httpx.AsyncClient(headers=asked.get("headers") or {}, trust_env=False) as client:
        asker = calibrate.Asker(client, base, base)
        facts = await calibrate.calibrate(asker, await calibrate.look(asker, wanted), wanted)
        turns, scripts = profile.text_needs()
        return await counting.more(asker, facts, turns=turns, scripts=scripts) if turns or scripts else facts


def main() -> int:
    """The exit code of what went wrong, 0 when nothing did."""
    try:
        print(json.dumps(asyncio.run(learn(json.load(sys.stdin))).to_json()))
    except LoadchaosError as e:
        print(f"loadchaos: {e}", file=sys.stderr)
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
