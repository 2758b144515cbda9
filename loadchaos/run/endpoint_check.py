"""Check that the server has the endpoints of the profile, with small requests. Their usage shows the tokens that an
endpoint adds, such as a chat template or special tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import orjson

from loadchaos.core.errors import TargetError
from loadchaos.core.model import Facts, Output, Step
from loadchaos.core.urls import ApiPaths
from loadchaos.load import request_builder
from loadchaos.load.endpoints import DEFAULT, ENDPOINTS, api_of_path, path_at
from loadchaos.load.registry import traffic_registry
from loadchaos.profile.profile import Profile
from loadchaos.profile.traffic import Traffic
from loadchaos.server.discovery.client import DiscoveryClient, DiscoveryResponse

_TEMPLATED = (DEFAULT, "responses", "messages")
"""Endpoints whose prompts go through the chat template of the model."""
ENDPOINTS_BESIDE_CHAT = ("completions", "responses", "messages")
"""Endpoints that answer a prompt with text, as chat does."""
_METHOD_NOT_ALLOWED = 405
_UNSUPPORTED = ("does not support", "Unsupported by", "not supported for")
_ONE = ((48, 1), (96, 1))
_MANY = (*_ONE, (48, 3))
"""Tokens of a text, and number of texts, of each small request."""
_ANSWER_TOKENS = 2
_RUN_SEED = 1 << 62
"""Seed of a run that nobody makes: the load does not send the files of these requests again."""


def uses_chat_template(profile: Profile) -> bool:
    return any(traffic.endpoint in _TEMPLATED for _, traffic in active_traffic(profile))


def api_paths(profile: Profile) -> ApiPaths:
    """Return the paths of the API that the first traffic is sent to; those of /v1 if it names its endpoint."""
    return api_of_path(next(traffic.sent_to.sent for _, traffic in active_traffic(profile)))


async def routed_endpoints(client: DiscoveryClient, facts: Facts) -> list[str]:
    """Endpoints beside chat that the server has: GET on a POST route gives 405. Nothing is generated."""
    paths = {name: path_at(name, facts.dialect) for name in ENDPOINTS_BESIDE_CHAT}
    return [name for name, path in paths.items() if (await client.ask("GET", path)).status == _METHOD_NOT_ALLOWED]


async def require_endpoints(client: DiscoveryClient, profile: Profile, facts: Facts) -> Facts:
    """Add the tokens that each endpoint other than chat adds. Raises TargetError where the server lacks one."""
    found: dict[str, tuple[int, int] | None] = {}
    for number, traffic in active_traffic(profile):
        if (name := traffic.endpoint) != DEFAULT and name not in found:
            found[name] = await _added_tokens(client, facts, traffic, number)
    return replace(facts, endpoints=found) if found else facts


def active_traffic(profile: Profile) -> list[tuple[int, Traffic]]:
    return [(number, traffic) for number, traffic in enumerate(profile.traffic) if traffic.weight]


async def _added_tokens(client: DiscoveryClient, facts: Facts, traffic: Traffic, number: int) -> tuple[int, int] | None:
    """Tokens added to each request and to each text; None if they are not told, or depend on the text."""
    bare = replace(facts, endpoints={traffic.endpoint: (0, 0)})
    many = ENDPOINTS[traffic.endpoint].carries("batch")
    added = []
    for words, texts in _MANY if many else _ONE:
        request = request_builder.build(_step(traffic, words, texts), bare)
        answer = await client.post(request.path, request.body)
        _refuse_lacking(client, answer, traffic, number, request.path)
        if answer.prompt_tokens is None or request.tokens is None:
            return None
        added.append(answer.prompt_tokens - request.tokens)
    one, same, *several = added
    if one < 0 or one != same:
        return None
    if not several:
        return 0, one
    a_text, rest = divmod(several[0] - one, _MANY[2][1] - 1)
    return (one - a_text, a_text) if not rest and 0 <= a_text <= one else None


def _step(traffic: Traffic, words: int, texts: int) -> Step:
    known = traffic_registry().payloads
    needed = ENDPOINTS[traffic.endpoint].needs
    options: dict[str, object] = {"text": known["text"].model_validate({"tokens": words})}
    if needed:
        options = {needed: known[needed].model_validate({})}
    if texts > 1:
        options["batch"] = known["batch"].model_validate({"count": texts})
    return replace(small_step(traffic, options, _ANSWER_TOKENS), stream=False, seed=words)


def small_step(traffic: Traffic, payload: Mapping[str, object], most_tokens: int) -> Step:
    """The step of a small request outside of any load."""
    return Step(
        index=0,
        phase=0,
        round=0,
        due_s=None,
        traffic=traffic.name,
        seed=1,
        payload=payload,
        behaviour="plain",
        behaviour_options=None,
        output=Output(max=most_tokens),
        stream=traffic.streams,
        endpoint=traffic.endpoint,
        path=traffic.sent_to.sent,
        run_seed=_RUN_SEED,
    )


def _refuse_lacking(
    client: DiscoveryClient, answer: DiscoveryResponse, traffic: Traffic, number: int, path: str
) -> None:
    if not answer.lacks_path and not (answer.status >= 400 and any(text in answer.text for text in _UNSUPPORTED)):
        return
    text = " ".join(_message(answer).split())[:160]
    raise TargetError(
        f"traffic.{number}.endpoint {traffic.endpoint} (traffic {traffic.name}): the server {client.base_url} has no such "
        f"endpoint: POST {path} answered {answer.status} {text}. Serve a model that has it, choose another endpoint with "
        f"--set traffic.{number}.endpoint=NAME ({', '.join(ENDPOINTS)}), or leave this traffic out with --set "
        f"traffic.{number}.weight=0"
    )


def _message(answer: DiscoveryResponse) -> str:
    data = answer.json()
    error = data.get("error", data) if isinstance(data, dict) else None
    text = error.get("message") or error.get("detail") if isinstance(error, dict) else None
    return str(text) if text else orjson.dumps(answer.text[:160]).decode()
