"""Count the tokens of a text or chat without a generation; None: this counter cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from loadchaos.core.model import Facts
from loadchaos.server.dialects import DIALECTS, UNKNOWN
from loadchaos.server.discovery.client import DiscoveryClient, DiscoveryResponse
from loadchaos.server.discovery.local_tokenizer import LocalTokenizer

Messages = Sequence[Mapping[str, object]]


class TokenCounter(Protocol):
    """A way to count tokens; `source` is its name in the facts."""

    source: str

    async def plain(self, text: str) -> int | None: ...

    async def chat(self, messages: Messages) -> int | None:
        """Tokens with the template, up to the answer."""


T = TypeVar("T", bound=TokenCounter)


class TokenizeCounter:
    """Count by vLLM's POST /tokenize. Newer versions count images, older ones do not."""

    source = "tokenize"

    def __init__(self, client: DiscoveryClient, model: str) -> None:
        self._client, self._model = client, model

    async def plain(self, text: str) -> int | None:
        return self.read(await self._send("completions", {"prompt": text, "add_special_tokens": False}))

    async def chat(self, messages: Messages) -> int | None:
        return self.read(await self.send_chat(messages))

    async def send_chat(self, messages: Messages) -> DiscoveryResponse:
        return await self._send("chat/completions", {"messages": messages, "add_generation_prompt": True})

    def read(self, answer: DiscoveryResponse) -> int | None:
        return _number(answer, "count")

    async def _send(self, endpoint: str, body: Mapping[str, object]) -> DiscoveryResponse:  # noqa: ARG002 - /tokenize is for both
        return await self._client.post_optional("/tokenize", {"model": self._model, **body}, admin=True)


class RenderCounter(TokenizeCounter):
    """vLLM's POST /v1/.../render (0.18, newer with --enable-scale-out): the code of a real request, without GPU, cache."""

    source = "render"

    async def send_chat(self, messages: Messages) -> DiscoveryResponse:
        """Send a chat to /render, without image tensors if it knows that option."""
        return await self._send("chat/completions", {"messages": messages, "mm_payload": "none"})

    def read(self, answer: DiscoveryResponse) -> int | None:
        data = answer.json() if answer.status == 200 else None
        if isinstance(data, list) and len(data) == 1:
            data = data[0]
        ids = data.get("token_ids") if isinstance(data, dict) else None
        return len(ids) if isinstance(ids, list) else None

    async def _send(self, endpoint: str, body: Mapping[str, object]) -> DiscoveryResponse:
        whole = {"model": self._model, "max_tokens": 1, **body}
        return await self._client.post_optional(f"/v1/{endpoint}/render", whole)


class EncodeCounter:
    """Count by LMDeploy's POST /v1/encode. `do_preprocess` adds the chat template to one user message."""

    source = "encode"

    def __init__(self, client: DiscoveryClient) -> None:
        self._client = client

    async def plain(self, text: str) -> int | None:
        return await self._encode(text, preprocess=False, bos=False)

    async def chat(self, messages: Messages) -> int | None:
        text = messages[0]["content"]
        return await self._encode(text, preprocess=True, bos=True) if len(messages) == 1 else None

    async def _encode(self, text: object, *, preprocess: bool, bos: bool) -> int | None:
        body = {"input": text, "do_preprocess": preprocess, "add_bos": bos}
        return _number(await self._client.post_optional("/v1/encode", body), "length")


class LocalCounter:
    """Count by a local tokenizer. Its chat template may differ from the server's."""

    source = "tokenizer"

    def __init__(self, folder: LocalTokenizer) -> None:
        self._folder = folder

    async def plain(self, text: str) -> int | None:
        return self._folder.count(text)

    async def chat(self, messages: Messages) -> int | None:
        return self._folder.chat(messages)


def server_counters(client: DiscoveryClient, facts: Facts) -> list[TokenCounter]:
    known: list[TokenCounter] = [*_prompt_counters(client, facts), EncodeCounter(client)]
    return _in_order(known, DIALECTS.get(facts.dialect, UNKNOWN).token_counters)


def prompt_counters(client: DiscoveryClient, facts: Facts) -> list[TokenizeCounter]:
    return _in_order(_prompt_counters(client, facts), DIALECTS.get(facts.dialect, UNKNOWN).prompt_counters)


def _prompt_counters(client: DiscoveryClient, facts: Facts) -> list[TokenizeCounter]:
    return [TokenizeCounter(client, facts.model), RenderCounter(client, facts.model)]


def _in_order(known: Sequence[T], order: Sequence[str]) -> list[T]:
    return sorted((c for c in known if c.source in order), key=lambda c: order.index(c.source))


def counter_used(client: DiscoveryClient, facts: Facts, folder: LocalTokenizer | None) -> TokenCounter | None:
    """The counter that counted the words of these facts; None if it was usage or nothing."""
    source = facts.text.source if facts.text is not None else ""
    known = [*server_counters(client, facts), *([LocalCounter(folder)] if folder is not None else [])]
    return next((c for c in known if source.split(",")[0] == c.source), None)


def _number(answer: DiscoveryResponse, key: str) -> int | None:
    value = answer.fields.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
