"""`python -m loadchaos.runner.discover`: asks a server what a run asks before its load, for a Locust that is the user's own.

Reads `{"base_url", "model", "api_key_env", "headers", "tls", "profile"}` (a profile as JSON) from its input and prints the
Facts as JSON. A process of its own because Locust's is patched by gevent, in which asyncio has no place.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import httpx

from loadchaos.chaos import authorization
from loadchaos.core.errors import LoadchaosError
from loadchaos.core.model import Facts
from loadchaos.core.tls import TlsSettings
from loadchaos.load import registry
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.runner import requirements
from loadchaos.server.discovery import calibrate
from loadchaos.server.discovery.local_tokenizer import Folder

AUTHORIZE = "LOADCHAOS_AUTHORIZE"
"""HOST:PORT of servers that may be harmed, with commas between them: Locust's command line has no --authorize."""


async def learn(asked: Mapping[str, Any]) -> Facts:
    """What the server is and how it counts what the profile sends, its limit where a ladder needs it.

    Raises TargetError where it cannot be asked or the profile does not fit it, AuthorizationError where it can be harmed
    and nobody said that it may, OptionError for a `ca` that holds no certificate.
    """
    profile = from_mapping(asked["profile"], registry.of_traffic())
    folder = Folder.load(profile.target.tokenizer) if profile.target.tokenizer else None
    wanted = requirements.calibration_request(profile, asked.get("model"), asked.get("api_key_env"), folder)
    base = calibrate.parse_target(asked["base_url"])
    _require_authority(profile, base)
    tls = TlsSettings.from_json(asked.get("tls")).context()
    async with httpx.AsyncClient(headers=asked.get("headers") or {}, verify=tls, trust_env=False) as client:
        asker = calibrate.DiscoveryClient(client, base, base)
        facts, _ = await requirements.discover(
            asker, profile, await calibrate.identify_server(asker, wanted), wanted, ()
        )
        return facts


def _require_authority(profile: Profile, base: str) -> None:
    """For what is sent: the profile's attacks are not made here."""
    harms = profile.model_copy(update={"attacks": ()}).dangers()
    given = [text.strip() for text in os.environ.get(AUTHORIZE, "").split(",") if text.strip()]
    authorization.check(base, harms, given, f"export {AUTHORIZE}=")


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
