"""An example of each kind of plugin of loadchaos."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import httpx

from loadchaos import api

api.require(1)


class BannedToken(api.Payload):
    """`payload: {text: {tokens: 100}, banned_token: {id: 9}}`: the model must not write a token."""

    ORDER: ClassVar[int] = 33
    id: int

    def add(self, request: api.Request, facts: api.Facts, rng: api.Rng) -> None:
        request.extra["logit_bias"] = {str(self.id): -100}


class Late(api.Behaviour):
    """`behaviour: {late: {wait: 0.5}}`: connects, waits, and only then sends."""

    wait: float = 1.0

    def act(self, exchange: api.Exchange) -> api.EndRow:
        exchange.slowed = True
        if exchange.connect():
            exchange.pause(self.wait)
            if exchange.send():
                exchange.receive_all()
        return exchange.end_row()


def _body(request: api.Request, facts: api.Facts) -> bytes:
    """The whole body: what is left out here, such as the length of the answer, is not asked for."""
    body: dict[str, object] = {"model": facts.model, "prompt": request.text, "max_tokens": request.output_tokens}
    if request.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps({**body, **request.extra}).encode()


TINY = api.ModelEndpoint(path="/tiny/generate", payloads=frozenset({"text", "banned_token"}), body=_body)

TINYSERVE = api.Dialect(
    name="tinyserve",
    title="TinyServe",
    signs=(api.DetectionSign("/tiny/info"),),
    command_word="tinyserve",
    shed=api.patterns("queue is full"),
    admin={"tiny_reload": api.AdminOperation("tiny_reload", "POST", "/tiny/reload", effects=("http_error",))},
)


class Shouting(api.Oracle):
    """Finds answers in capitals, among those to the questions of `keyed`."""

    name = "shouting"
    detects = "answers in capitals"
    false_alarms = "an answer without a letter is in no case"
    asked_by = "keyed"
    check = "no shouting"
    compares = False
    expected = "small letters"

    def judge(self, row: api.QuestionRow) -> None:
        self.answers += 1
        if row["text"].isupper():
            self.report("shouting", row, row["text"].lower(), "it is in capitals")


class ManyModels(api.Attack):
    """`attacks: [{plugin: many_models, every: 10s, params: {requests: 50}}]`: asks for the list of models many times."""

    effects = ("http_error",)
    holds = False

    def __init__(self, params: Mapping[str, object], context: api.AttackContext) -> None:
        self._requests, self._client = int(str(params.get("requests", 50))), context.client

    async def begin(self, replica: api.AttackedReplica) -> api.ActResult:
        return await self._ask(replica, self._requests)

    async def undo(self, replica: api.AttackedReplica) -> api.ActResult:
        return api.NOTHING_TO_UNDO

    async def preflight(self, replica: api.AttackedReplica) -> api.ActResult:
        return await self._ask(replica, 1)

    async def _ask(self, replica: api.AttackedReplica, times: int) -> api.ActResult:
        url = f"{replica.admin_url}/v1/models"
        try:
            answers = [await self._client.get(url) for _ in range(times)]
        except httpx.HTTPError as e:
            return api.ActResult(ok=False, text=f"{type(e).__name__}: {e}")
        refused = [answer.status_code for answer in answers if answer.status_code != 200]
        return api.ActResult(
            ok=not refused, status=answers[-1].status_code, text=f"{times} asked, {len(refused)} refused"
        )


MINUTES = api.TraceFormat(
    about="minute, prompt and answer",
    fields=frozenset({"minute", "prompt", "answer"}),
    arrivals=lambda row: [
        api.Arrival(60_000 * float(str(row["minute"])), int(str(row["prompt"])), int(str(row["answer"])), ())
    ],
    is_csv=True,
)


def append_to_file(to: str, content: Mapping[str, object]) -> str:
    """`--notify file:///path`: add a line to a file."""
    with Path(to.removeprefix("file://")).open("a", encoding="utf-8") as file:
        file.write(json.dumps(content) + "\n")
    return ""
