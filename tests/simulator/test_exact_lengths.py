import asyncio
from itertools import islice
from pathlib import Path

import httpx
import pytest

from loadchaos.core.model import Facts
from loadchaos.load.registry import traffic_registry
from loadchaos.load.request_builder import build
from loadchaos.load.wire.request import Request
from loadchaos.profile.profile import Profile, load
from loadchaos.profile.steps import steps
from loadchaos.run.asker import HttpAsker
from loadchaos.server.discovery import calibrate, chat_tokens
from loadchaos.server.discovery.client import CalibrationRequest, DiscoveryClient

TEXTS = """
  - {name: text, payload: {text: {tokens: 20..900}}, output: {max: 4}}
  - {name: long, payload: {text: {tokens: 2000..4000}}, output: {max: 1}}
  - {name: shared, payload: {text: {tokens: 150..400, shared_prefix: {tokens: 128, groups: 2}}}, output: {max: 2}}
  - {name: scripts, weight: 2, payload: {text: {tokens: 30..300, script: mixed}}, output: {max: 2}}
  - {name: talk, weight: 2, payload: {conversation: {turns: 5, tokens: 300..800, parallel: 2}}, output: {max: 2}}
  - {name: several, payload: {text: {tokens: 30..60}, sampling: {n: 2}}, output: {exact: 3}}
"""
IMAGES = """
  - {name: png, weight: 2, payload: {images: {size: 64x64, count: 1..2, aspect: ["1:1", "3:1"], near_duplicates: 20%},
     text: {tokens: 30..200}}, output: {max: 2}}
  - {name: jpeg, payload: {images: {size: 100x60, format: jpeg, uuid: content}, text: {tokens: 30..90}}, output: {max: 2}}
  - {name: photo, payload: {images: {size: 300x200, format: photo}, text: {tokens: 30..90}}, output: {max: 2}}
  - {name: avi, payload: {video: {size: 64x48, frames: 6, count: 1..2}, text: {tokens: 30..90}}, output: {max: 2}}
  - {name: frames, payload: {video: {size: 64x64, frames: 3, format: frames}, images: {size: 64x64}, text: {tokens: 30..90}},
     output: {max: 2}}
"""
LADDER = """
  - {name: edge, weight: 2, payload: {near_limit: {band: -200..-1, step: 40, output: [one]}}}
"""
HEAD = "name: exact\nload: [{users: 1, requests: 90}]\ntraffic:"


def profile(path: Path, text: str) -> Profile:
    path.write_text(HEAD + text)
    return load(path, traffic_registry())


async def counted(url: str, asked: Profile) -> tuple[Facts, list[tuple[Request, int | None]]]:
    async with httpx.AsyncClient(trust_env=False, timeout=30, limits=httpx.Limits(max_connections=8)) as client:
        asker = DiscoveryClient(HttpAsker(client), url, url)
        sizes, most = asked.image_sizes()
        wanted = CalibrationRequest(sizes, most, asked.video_kinds())
        facts = await calibrate.calibrate(asker, await calibrate.identify_server(asker, wanted), wanted)
        turns, scripts = asked.text_needs()
        facts = await chat_tokens.with_chat_tokens(asker, facts, turns=turns, scripts=scripts)
        found = []
        for step in islice(steps(asked, seed=5), 90):
            request = build(step, facts)
            body = request.body.replace(b',"stream":true,"stream_options":{"include_usage":true}', b"")
            answer = await client.post(url + request.path, content=body, headers={"Content-Type": "application/json"})
            usage = answer.json().get("usage") if answer.status_code == 200 else None
            assert usage or request.edge is not None, answer.text
            found.append((request, usage["prompt_tokens"] if usage else None))
        return facts, found


@pytest.mark.parametrize(
    ("embedded", "text"),
    [
        (["--flag", "speed=50"], TEXTS + IMAGES),
        (["--dialect", "lmdeploy", "--era", "0.18", "--flag", "speed=50"], TEXTS),
        (["--flag", "speed=50", "--flag", "max_model_len=2048"], LADDER),
    ],
    indirect=["embedded"],
    ids=["vllm", "lmdeploy", "vllm at its limit"],
)
def test_prompt_tokens_are_those_of_the_plan(embedded: str, text: str, tmp_path: Path) -> None:
    facts, found = asyncio.run(counted(embedded, profile(tmp_path / "p.yaml", text)))
    answered = [(request.tokens, used) for request, used in found if used is not None]
    assert len(answered) > 0.6 * len(found)
    assert [pair for pair in answered if pair[0] != pair[1]] == []
    refused = [r.edge for r, used in found if used is None]
    assert all(edge is not None and edge >= 0 for edge in refused)
    longest = max(r.tokens or 0 for r, used in found if used is not None)
    if text is LADDER:
        assert (longest, facts.max_model_len) == (2047, 2048)
