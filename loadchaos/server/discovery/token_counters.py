"""Ways to have a text or a chat counted in tokens without an answer being generated: the server's own, or a local folder.

Each gives None where it cannot tell (there is no such endpoint here, it refuses, it answers something else).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from loadchaos.core.model import Facts
from loadchaos.server.dialects import DIALECTS, UNKNOWN
from loadchaos.server.discovery.client import DiscoveryClient, DiscoveryResponse
from loadchaos.server.discovery.local_tokenizer import Folder

Messages = Sequence[Mapping[str, Any]]


class Counter(Protocol):
    """One way to count; `source` is its name in the facts."""

    source: str

    async def plain(self, text: str) -> int | None:
        """Tokens of a text by itself, nothing added."""

    async def chat(self, messages: Messages) -> int | None:
        """Tokens of a whole prompt, chat template included, up to where the answer begins."""


class ByTokenize:
    """vLLM's POST /tokenize, with a prompt or with messages. Newer versions count images in it, older ones do not."""

    source = "tokenize"

    def __init__(self, asker: DiscoveryClient, model: str) -> None:
        self._asker, self._model = asker, model

    async def plain(self, text: str) -> int | None:
        """See Counter."""
        return self.read(await self._ask({"prompt": text, "add_special_tokens": False}))

    async def chat(self, messages: Messages) -> int | None:
        """See Counter."""
        return self.read(await self.asked(messages))

    async def asked(self, messages: Messages) -> DiscoveryResponse:
        """What it says of a chat."""
        return await self._ask({"messages": messages, "add_generation_prompt": True})

    def read(self, answer: DiscoveryResponse) -> int | None:
        """The count in it."""
        return _number(answer, "count")

    async def _ask(self, body: Mapping[str, Any]) -> DiscoveryResponse:
        return await self._asker.ask_if_there("/tokenize", {"model": self._model, **body}, admin=True)


class ByRender:
    """vLLM's POST /v1/.../render (0.18; newer ones with --enable-scale-out): the prompt as the engine would get it.

    The same code as a real request's, images and videos included; nothing is computed on a GPU and no cache is touched.
    """

    source = "render"

    def __init__(self, asker: DiscoveryClient, model: str) -> None:
        self._asker, self._model = asker, model

    async def plain(self, text: str) -> int | None:
        """See Counter."""
        return self.read(await self._ask("completions", {"prompt": text, "add_special_tokens": False}))

    async def chat(self, messages: Messages) -> int | None:
        """See Counter."""
        return self.read(await self.asked(messages))

    async def asked(self, messages: Messages) -> DiscoveryResponse:
        """What it says of a chat; without the images' tensors, where it knows that option."""
        return await self._ask("chat/completions", {"messages": messages, "mm_payload": "none"})

    def read(self, answer: DiscoveryResponse) -> int | None:
        """The count in it."""
        data = answer.json() if answer.status == 200 else None
        if isinstance(data, list) and len(data) == 1:
            data = data[0]
        ids = data.get("token_ids") if isinstance(data, dict) else None
        return len(ids) if isinstance(ids, list) else None

    async def _ask(self, kind: str, body: Mapping[str, Any]) -> DiscoveryResponse:
        whole = {"model": self._model, "max_tokens": 1, **body}
        return await self._asker.ask_if_there(f"/v1/{kind}/render", whole)


class ByEncode:
    """LMDeploy's POST /v1/encode; `do_preprocess` puts the chat template around one message of a user."""

    source = "encode"

    def __init__(self, asker: DiscoveryClient) -> None:
        self._asker = asker

    async def plain(self, text: str) -> int | None:
        """See Counter."""
        return await self._encode(text, preprocess=False, bos=False)

    async def chat(self, messages: Messages) -> int | None:
        """See Counter."""
        text = messages[0]["content"]
        return await self._encode(text, preprocess=True, bos=True) if len(messages) == 1 else None

    async def _encode(self, text: str, *, preprocess: bool, bos: bool) -> int | None:
        body = {"input": text, "do_preprocess": preprocess, "add_bos": bos}
        return _number(await self._asker.ask_if_there("/v1/encode", body), "length")


class ByFolder:
    """A tokenizer in a local folder; its own chat template, which may not be the one that the server uses."""

    source = "tokenizer"

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    async def plain(self, text: str) -> int | None:
        """See Counter."""
        return self._folder.count(text)

    async def chat(self, messages: Messages) -> int | None:
        """See Counter."""
        return self._folder.chat(messages)


def server_counters(asker: DiscoveryClient, facts: Facts) -> list[Counter]:
    """The server's own, the likeliest first."""
    known: list[Counter] = [ByTokenize(asker, facts.model), ByRender(asker, facts.model), ByEncode(asker)]
    order = DIALECTS.get(facts.dialect, UNKNOWN).token_counters
    return sorted((c for c in known if c.source in order), key=lambda c: order.index(c.source))


def prompt_counters(asker: DiscoveryClient, facts: Facts) -> list[ByRender | ByTokenize]:
    """The server's counters of whole prompts with their images, the likeliest first."""
    known: list[ByRender | ByTokenize] = [ByRender(asker, facts.model), ByTokenize(asker, facts.model)]
    order = DIALECTS.get(facts.dialect, UNKNOWN).prompt_counters
    return sorted((c for c in known if c.source in order), key=lambda c: order.index(c.source))


def counter_used(asker: DiscoveryClient, facts: Facts, folder: Folder | None) -> Counter | None:
    """The one that the words of these facts were counted by; None where it was usage, or nothing."""
    source = facts.text.source if facts.text is not None else ""
    known = [*server_counters(asker, facts), *([ByFolder(folder)] if folder is not None else [])]
    return next((c for c in known if source.split(",")[0] == c.source), None)


def usage_of(answer: DiscoveryResponse) -> int | None:
    """The prompt tokens that an answer tells."""
    data = answer.json() if answer.status == 200 else None
    usage = data.get("usage") if isinstance(data, dict) else None
    return _whole(usage.get("prompt_tokens")) if isinstance(usage, dict) else None


def _number(answer: DiscoveryResponse, key: str) -> int | None:
    data = answer.json() if answer.status == 200 else None
    return _whole(data.get(key)) if isinstance(data, dict) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
