"""Tell tries without a failure from tries that prove nothing. A refused request does not reach the code that fails.
Where the failure kills no server, a refusal may be its cure: a prompt that is too long has to be refused. So the same
request with hardly any text is asked. Where that is refused as well, the server refuses the kind of request: an unknown
model, an option that it does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson

from loadchaos.campaigns.campaign import server_of
from loadchaos.campaigns.replay.one_try import TryResult
from loadchaos.campaigns.replay.servers import ServerChoice
from loadchaos.core.foreign_json import json_object
from loadchaos.load.payloads.recorded import with_model
from loadchaos.load.wire.contract import OUTPUT_LIMITS
from loadchaos.profile.request_trace import RequestTrace
from loadchaos.run.discovery_client import discovery_client
from loadchaos.run.options import Options, headers_of_options

_TEXTS = frozenset({"messages", "prompt", "input", "query", "documents", "text_1", "text_2"})
_KEPT_CHARS = 16
_SHOWN_CHARS = 160


async def why_unproved(
    result: TryResult, trace: RequestTrace, server: ServerChoice, options: Options, *, kills: bool
) -> str:
    """Say why a try without the failure proves no cure; "" if it may. `kills`: the failure ends the server."""
    if result.reproduced is not False:
        return ""
    found = doubt(result, kills=kills)
    if found or server.launch is None or not refuses_some(result):
        return found
    return await refusal(result, trace, server.launch.url, options)


def doubt(result: TryResult, *, kills: bool) -> str:
    """Say why a try without the failure proves nothing; "" if it may."""
    if result.reproduced:
        return ""
    if result.other:
        return f"the server dies of {result.failure} instead"
    if not kills or 2 * result.answered >= result.sent - result.left:
        return ""
    return f"the server answers only {result.answered} of {result.sent} requests: {result.outcomes}"


def refuses_some(result: TryResult) -> bool:
    """True for a survived try that had refusals, or no answer at all."""
    nothing = result.answered == 0 and result.sent > result.left
    return not result.reproduced and (nothing or "rejected" in result.outcomes)


async def refusal(result: TryResult, trace: RequestTrace, url: str, options: Options) -> str:
    model = server_of(Path(result.folder)).model or ""
    tls = options.tls.context()
    async with discovery_client(url, headers=headers_of_options(options), tls=tls) as client:
        for send in {send.traffic: send for send in reversed(trace.sends)}.values():
            body = _short_body(with_model(trace.body_file(send).read_bytes(), trace.header.model, model))
            answer = await client.post(send.path, body, stream=b'"stream":true' in body)
            if not answer.is_completion:
                said = " ".join(answer.text.split())[:_SHOWN_CHARS]
                counts = f"the server answers {result.answered} of {result.sent} requests"
                return f"{counts}, and refuses also a short one: {answer.status or 'no answer'} {said}"
    return ""


def _short_body(body: bytes) -> bytes:
    data = json_object(body)
    return orjson.dumps(shortened(data)) if data else body


def shortened(body: Mapping[str, object]) -> dict[str, object]:
    """Shorten a body to hardly any text and one token; its options stay."""
    found = {key: _short(value) if key in _TEXTS else value for key, value in body.items()}
    found.update({key: 1 for key in OUTPUT_LIMITS if isinstance(body.get(key), int)})
    if isinstance(body.get("min_tokens"), int):
        found["min_tokens"] = 1
    return found


def _short(value: object) -> object:
    if isinstance(value, str):
        return value[:_KEPT_CHARS]
    if isinstance(value, list):
        ids = bool(value) and all(isinstance(v, int) for v in value)
        return value[:1] if ids else [_short(v) for v in value]
    if isinstance(value, dict):
        return {key: _short(v) if key in ("content", "text") else v for key, v in value.items()}
    return value
