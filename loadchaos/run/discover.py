"""Discover a server for a Locust that the user runs: reads a `RunPlan` from stdin, prints the Facts as JSON. A process of
its own, because asyncio does not work in Locust's, which gevent has patched.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from loadchaos.chaos import authorization
from loadchaos.core.errors import LoadchaosError
from loadchaos.core.model import Facts
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.load import registry
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.profile.run_plan import RunPlan
from loadchaos.run import requirements
from loadchaos.run.discovery_client import discovery_client
from loadchaos.run.endpoint_check import api_paths
from loadchaos.server.discovery import calibrate
from loadchaos.server.discovery.client import parse_target
from loadchaos.server.discovery.local_tokenizer import LocalTokenizer

AUTHORIZE = "LOADCHAOS_AUTHORIZE"
"""Comma-separated HOST:PORT of servers that may be attacked: Locust's command line has no --authorize."""


async def discover_server(plan: RunPlan) -> Facts:
    """Identify the server of a plan and measure how it counts tokens. Raises TargetError, AuthorizationError and
    OptionError.
    """
    profile = from_mapping(plan.profile, registry.traffic_registry())
    tokenizer = LocalTokenizer.load(profile.target.tokenizer) if profile.target.tokenizer else None
    calibration = requirements.calibration_request(profile, plan.model, plan.api_key_env, tokenizer)
    base = parse_target(plan.base_url)
    _require_authorization(profile, base)
    async with discovery_client(base, headers=plan.headers, tls=plan.tls.context()) as client:
        client.api = api_paths(profile)
        facts, _ = await requirements.discover(
            client, profile, await calibrate.identify_server(client, calibration), calibration, ()
        )
        return facts


def _require_authorization(profile: Profile, base: str) -> None:
    given = [text.strip() for text in os.environ.get(AUTHORIZE, "").split(",") if text.strip()]
    authorization.check(base, profile.load_dangers(), given, f"export {AUTHORIZE}=")


def main() -> int:
    try:
        print(json.dumps(to_json(asyncio.run(discover_server(from_json(RunPlan, json.load(sys.stdin)))))))
    except LoadchaosError as e:
        print(f"loadchaos: {e}", file=sys.stderr)
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
