"""Endpoints at paths of their own: sent as they are, by the load and by every question beside it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadchaos.load import registry
from loadchaos.profile.profile import load
from tests.http_server import Asked, Handler, serving
from tests.invoking import output_of
from tests.warm_command import run_command

ROOT = "/api/v3"
LOAD = ("--users", "1", "--num-prompts", "4", "--random-input-len", "64", "--random-output-len", "4", "--no-live")


class _Served:
    """A server that has one chat endpoint and, with `lists`, a list of models beside it."""

    def __init__(self, chat: str, models: str) -> None:
        self.chat, self.models, self.posted = chat, models, list[str]()
        self.url = ""

    def handler(self) -> type[Handler]:
        served = self

        class Serving(Handler):
            def reply(self, asked: Asked) -> None:
                served.reply(self, asked)

        return Serving

    def reply(self, handler: Handler, asked: Asked) -> None:
        if asked.method == "POST":
            self.posted.append(asked.path)
        if asked.path == self.models:
            handler.answer(200, {"data": [{"id": "m", "max_model_len": 2048}]})
        elif asked.method == "POST" and asked.path == self.chat:
            words = 5 + len(str(asked.json()["messages"]).split())
            if not asked.json().get("stream"):
                usage = {"prompt_tokens": words, "completion_tokens": 1, "total_tokens": words + 1}
                choice = {"index": 0, "message": {"role": "assistant", "content": "red"}, "finish_reason": "length"}
                handler.answer(200, {"id": "1", "model": "m", "choices": [choice], "usage": usage})
                return
            handler.begin_stream()
            for n, word in enumerate((" red", " green", " blue", " white")):
                end = None if n < 3 else "length"
                handler.event({"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": end}]})
            handler.event({"choices": [], "usage": {"prompt_tokens": words, "completion_tokens": 4}})
            handler.end_stream()
        else:
            handler.answer(404, {"error": {"message": "no such page"}})


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[_Served]:
    found = _Served(*request.param)
    with serving(found.handler()) as found.url:
        yield found


AZURE = "/openai/deployments/m/chat/completions?api-version=2024-10-21"


@pytest.mark.parametrize(
    ("served", "base", "options"),
    [
        ((f"{ROOT}/chat/completions", f"{ROOT}/models"), "", ("--endpoint", f"{ROOT}/chat/completions")),
        pytest.param((f"{ROOT}/chat/completions", f"{ROOT}/models"), ROOT, (), marks=pytest.mark.slow),
        pytest.param((AZURE, ""), "", ("--endpoint", AZURE, "--model", "m"), marks=pytest.mark.slow),
    ],
    indirect=["served"],
    ids=["path", "base", "query"],
)
def test_all_requests_go_to_the_path_as_it_is(
    served: _Served, base: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    done = run_command("run", "--target", served.url + base, *LOAD, *options, cwd=tmp_path, NO_COLOR="1")
    assert "4 requests" in done.stdout or "4 of 4" in done.stdout, done.stdout + done.stderr
    assert "/metrics does not answer with 200" in done.stderr and "of the server itself as --admin-url" in done.stderr
    asked = [path for path in served.posted if path.endswith(served.chat)]
    assert len(asked) >= 4
    assert [p for p in served.posted if "completions" in p and p != served.chat and "render" not in p] == []


PROFILE = """\
name: own-path
traffic:
  - name: chat
    payload: {text: {tokens: 32}}
    endpoint: %s
load: [{users: 1, requests: 1}]
"""


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        (
            "{path: /api/v3/chat/completion}",
            r"5:\d+: traffic.0.endpoint.path: a path that ends with one of .*completions",
        ),
        ("/api/v3/embedding", r"5:\d+: traffic.0.endpoint: .* \(got '/api/v3/embedding'\); did you mean embeddings"),
        ("{path: chat/completions}", r"5:\d+: traffic.0.endpoint.path: a path such as /api/v3/chat/completions"),
        (
            "{path: /v1/chat/completions, query: {api_key: x}}",
            "api_key in a query is a secret: give it by --api-key-env",
        ),
        ("/v2/rerank\n    output: {max: 4}", "the endpoint rerank generates no text"),
    ],
)
def test_a_path_that_cannot_be_sent_is_refused(endpoint: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(PROFILE % endpoint)
    assert re.search(said, output_of("check", file, code=2))


def test_a_path_and_its_query_are_kept_in_the_plan(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(PROFILE % "{path: /openai/chat/completions, query: {api-version: 2024-10-21}}")
    profile = load(file, registry.full_registry())
    assert profile.traffic[0].endpoint == "chat"
    assert profile.traffic[0].sent_to.sent == "/openai/chat/completions?api-version=2024-10-21"
    assert json.loads(json.dumps(profile.to_json()))["traffic"][0]["endpoint"]["path"] == "/openai/chat/completions"
