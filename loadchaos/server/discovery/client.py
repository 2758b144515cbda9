"""Asks a server one thing at a time: where it is, what is asked of it, and what it answered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from loadchaos.core.errors import OptionError
from loadchaos.server.discovery.local_tokenizer import Folder

_READ_LIMIT_S = 10.0
_FIRST_GENERATION_LIMIT_S = 120.0  # a first request may compile for 15 s, on a loaded machine for longer


def parse_target(text: str) -> str:
    """The base URL without a trailing `/v1`, path prefix kept. Raises OptionError for what is no http(s) URL."""
    clean = text.strip()
    if not clean:
        raise OptionError("--target is empty: give the server's URL, e.g. http://127.0.0.1:8000")
    if "://" not in clean:
        clean = f"http://{clean}"
    parts = urlsplit(clean)
    try:
        port = parts.port
    except ValueError as e:
        raise OptionError(f"--target {text!r}: {e}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OptionError(f"--target {text!r}: a URL such as http://127.0.0.1:8000 was expected")
    if parts.username or parts.password:
        raise OptionError(
            "--target holds a user or password; give secrets through --api-key-env or --header NAME=env:VAR"
        )
    path = parts.path.rstrip("/")
    path = path.removesuffix("/v1")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return urlunsplit((parts.scheme, host if port is None else f"{host}:{port}", path, "", ""))


@dataclass(frozen=True)
class DiscoveryResponse:
    """One answer of the server, or why there was none (`status` 0, `text` the reason)."""

    status: int
    headers: Mapping[str, str]
    text: str

    def json(self) -> Any:
        """The body as JSON, None when it is not."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None


@dataclass
class DiscoveryClient:
    """Asks the server one thing at a time; a failed connection is an Answer with status 0.

    `reads` and `generations` count what was asked so far, `pages` keeps the last answer to each GET by its path, `absent`
    those of endpoints that are not there; `failed` says how the last generation went wrong that got no answer, or that of
    a broken server.
    """

    client: httpx.AsyncClient
    base_url: str
    admin_url: str
    generations: int = 0
    reads: int = 0
    pages: dict[str, DiscoveryResponse] = field(default_factory=dict)
    absent: dict[str, DiscoveryResponse] = field(default_factory=dict)
    failed: str | None = None

    async def ask(
        self, method: str, path: str, body: Any = None, *, admin: bool = False, limit_s: float = _READ_LIMIT_S
    ) -> DiscoveryResponse:
        """Send one request and read the whole answer."""
        self.reads += 1
        answer = await self._send(method, (self.admin_url if admin else self.base_url) + path, body, limit_s)
        if method == "GET":
            self.pages[path] = answer
        return answer

    async def ask_if_there(self, path: str, body: Any, *, admin: bool = False) -> DiscoveryResponse:
        """POST to an endpoint that only some servers have: one that is not there, or is off, is asked once."""
        if path in self.absent:
            return self.absent[path]
        answer = await self.ask("POST", path, body, admin=admin)
        if answer.status in (403, 404, 405):
            self.absent[path] = answer
        return answer

    async def _send(self, method: str, url: str, body: Any, limit_s: float) -> DiscoveryResponse:
        try:
            response = await self.client.request(method, url, json=body, timeout=limit_s)
            text = response.text
        except httpx.TimeoutException:
            return DiscoveryResponse(0, {}, f"no answer within {limit_s:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as e:
            return DiscoveryResponse(0, {}, f"{type(e).__name__}: {e}" if str(e) else type(e).__name__)
        return DiscoveryResponse(response.status_code, {k.lower(): v for k, v in response.headers.items()}, text)

    async def generate(self, model: str, content: Any) -> DiscoveryResponse:
        """A one-token chat completion, counted in `generations`."""
        body = {
            "model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0,
        }  # fmt: skip
        return await self.post("/v1/chat/completions", body)

    async def post(self, path: str, body: Any) -> DiscoveryResponse:
        """Any request that makes the model work, its answer read whole; counted in `generations`."""
        self.generations += 1
        self.reads -= 1  # counted by themselves
        answer = await self.ask("POST", path, body, limit_s=_FIRST_GENERATION_LIMIT_S)
        if answer.status == 0 or answer.status >= 500:
            self.failed = f"{answer.status}: {answer.text[:160]}" if answer.status else answer.text[:160]
        return answer


@dataclass(frozen=True)
class CalibrationRequest:
    """What the profile will send, so that only that is measured.

    `videos` are kinds of video, each with a content part to measure it by (JSON with a comma behind it). `tokenizer` is
    a folder that the user has named to count words by.
    `quick` is a look without a load to come: three words in place of sixty, and at most three generations.
    """

    image_sizes: Sequence[tuple[int, int]] = ()
    images_per_request: int = 0
    videos: Sequence[tuple[str, bytes]] = ()
    dialect: str = "auto"
    model: str | None = None
    api_key_env: str | None = None
    quick: bool = False
    tokenizer: Folder | None = None
