"""Send single requests to a server and keep the responses."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from loadchaos.core import http_client
from loadchaos.core.errors import OptionError, TargetError, UnreachableError
from loadchaos.core.field_changes import FieldChanges, change_for
from loadchaos.core.http_answer import HttpAnswer, web_page
from loadchaos.core.units import describe_duration
from loadchaos.core.urls import CHAT_PATH, MODELS_PATH, V1, ApiPaths, host_port
from loadchaos.server.answer import ANSWER_LIMIT_S, SMALL_QUESTION, Answer, Asker, chat_body
from loadchaos.server.dialects import Dialect
from loadchaos.server.dialects.gateways import HEALTH_PATH, LIVENESS_PATH, is_litellm
from loadchaos.server.discovery.local_tokenizer import LocalTokenizer
from loadchaos.server.memory import DiscoveryMemory, Key

_READ_LIMIT_S = 10.0
_TOTAL_LIMIT_S = 1800.0
_MOST_INCOMPLETE = 3
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "record layer failure")
"""Texts of OpenSSL for an answer that is no TLS, by its version."""


def parse_target(text: str) -> str:
    """Return the base URL without a trailing `/v1`. Raises OptionError if it is no http(s) URL."""
    clean = text.strip()
    if not clean:
        raise OptionError("--target is empty: give the server's URL, e.g. http://127.0.0.1:8000")
    if "://" not in clean:
        clean = f"http://{clean}"
    try:
        parts = urlsplit(clean)
        port = parts.port
    except ValueError as e:
        raise OptionError(f"--target {text!r}: {e}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OptionError(f"--target {text!r} is no URL: give one such as http://127.0.0.1:8000")
    if parts.username or parts.password:
        raise OptionError(
            "--target contains a user or password; give secrets by --api-key-env or --header NAME=env:VAR"
        )
    path = parts.path.rstrip("/")
    path = path.removesuffix("/v1")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return urlunsplit((parts.scheme, host if port is None else host_port(parts.hostname, port), path, "", ""))


@dataclass(frozen=True)
class DiscoveryResponse(HttpAnswer):
    """One response. `answer`: of a generation."""

    answer: Answer | None = None

    @property
    def is_completion(self) -> bool:
        return self.answer is not None and self.answer.is_completion

    @property
    def prompt_tokens(self) -> int | None:
        return None if self.answer is None else self.answer.prompt_tokens

    @property
    def refusal(self) -> str:
        """Say how it was refused, as the source of a fact."""
        return f"refused with {self.status}: {self.text[:160]}"

    @property
    def lacks_path(self) -> bool:
        """True when the server has no such path. An unknown model has the status 404, too."""
        return self.status in (404, 405, 501) and "does not exist" not in self.text


_NO_NAME = ("Name or service not known", "Temporary failure in name resolution", "nodename nor servname")
_NO_ANSWER = "Server disconnected without sending a response"


def how_to_reach(error: str) -> str:
    """Next step for a server that gave no usable answer, by the error; "" where it says nothing of the reason."""
    if "CERTIFICATE_VERIFY_FAILED" in error:
        return "its certificate is not trusted; give its CA with --ca FILE, or skip the check with --insecure"
    if any(sign in error for sign in _NO_NAME):
        return "check the host name in --target"
    if "ConnectError" in error:
        return "check that it runs and that this is its port"
    if "Not Found" in error:
        return "it has neither /health nor /v1/models: name its model with --model, or add its path prefix to --target"
    if _NO_ANSWER in error:
        return "see the log of the program that listens there: it ended, or does not use HTTP"
    if "RemoteProtocolError" in error or "InvalidHTTP" in error or "illegal" in error.lower():
        return "the program that listens there does not use HTTP; check the port"
    return ""


def connection_error(error: str) -> str:
    """Translate the usual errors of a connection into words; others stay as they are."""
    if any(sign in error for sign in _NO_NAME):
        return "its host name is not known"
    if _NO_ANSWER in error:
        return "it closed the connection without an answer"
    refused = "ConnectError" in error and ("refused" in error.lower() or "All connection attempts failed" in error)
    return "connection refused" if refused else error


async def refuse_plain_http(client: DiscoveryClient, answer: DiscoveryResponse) -> None:
    """Raise UnreachableError where the port of an https URL answers http. The question has no headers of the user:
    no key may be sent in the clear.
    """
    if not any(sign in answer.text for sign in _NO_TLS):
        return
    url = f"http{client.base_url.removeprefix('https')}"
    with contextlib.suppress(*http_client.FAILURES):
        async with http_client.client() as http:
            await http_client.request(http, "GET", f"{url}/v1/models", limit_s=3.0)
        raise UnreachableError(f"{client.base_url}: this port speaks plain http; give {url}")


def refuse_web_page(url: str, answer: HttpAnswer) -> None:
    """Raise TargetError where a page of an API is a web page."""
    if (words := web_page(answer.status, answer.text)) is not None:
        raise TargetError(
            f"{url} answered 200 with a web page: {words!r}. This is no OpenAI-compatible API: give its address "
            "with the right path prefix, and see what stands before the server (a gateway, a login of the network)"
        )


@dataclass
class DiscoveryClient:
    """Sends single requests, with the headers of run/discovery_client.py and core/http_client.py; a failed
    connection is a response with status 0. `admin_url`: root of /health and /metrics. `api`: its paths.
    `pages`: last response to each GET; `absent`: of endpoints that do not exist. `failures`: generations with status 0
    or 5xx, `failed`: the last such error. `began_s`: 30 minutes from there all requests must be done. `incomplete`:
    answers that did not end. `memory`: answers to earlier runs, of which `remembered` were used. `field_changes`: as
    the server asked for in refusals.
    """

    asker: Asker
    base_url: str
    admin_url: str
    generations: int = 0
    reads: int = 0
    pages: dict[str, DiscoveryResponse] = field(default_factory=dict)
    absent: dict[str, DiscoveryResponse] = field(default_factory=dict)
    failures: int = 0
    failed: str | None = None
    model: str | None = None
    health_path: str | None = None
    began_s: float = field(default_factory=time.monotonic)
    incomplete: int = 0
    memory: DiscoveryMemory | None = None
    remembered: int = 0
    api: ApiPaths = V1
    field_changes: FieldChanges = ()

    async def find_health_path(self) -> None:
        """Find the page to ask for health: /health, or LiteLLM's liveness page. Without an answer it stays unknown."""
        if self.health_path is None:
            answer = await self.ask("GET", LIVENESS_PATH, admin=True, limit_s=3.0)
            if 0 < answer.status < 500:  # a 502 may come from a gateway in front of it
                litellm = is_litellm(answer.status, answer.headers, answer.text)
                self.health_path = LIVENESS_PATH if litellm else HEALTH_PATH

    async def ask(
        self, method: str, path: str, body: Any = None, *, admin: bool = False, limit_s: float = _READ_LIMIT_S
    ) -> DiscoveryResponse:
        url = self.admin_url + path if admin else self.base_url + self.api.path(path)
        key = (method, url, b"" if body is None else json.dumps(body).encode())
        answer = self._remembered(key, process=method == "GET")
        if answer is None:
            self.reads += 1
            answer = await self._send(method, url, body, limit_s)
            if self.memory is not None:
                self.memory.keep(key, answer, process=method == "GET")
        if method == "GET":
            self.pages[path] = answer
        return answer

    def _remembered(self, key: Key, *, process: bool) -> DiscoveryResponse | None:
        answer = None if self.memory is None else self.memory.answer(key, process=process)
        self.remembered += answer is not None
        return answer

    async def models(self, limit_s: float = _READ_LIMIT_S) -> DiscoveryResponse:
        return await self._find_api(lambda: self.ask("GET", MODELS_PATH, limit_s=limit_s))

    async def ask_named(self, model: str) -> DiscoveryResponse:
        """Ask a model that no list has for a token."""
        return await self._find_api(lambda: self.generate(model, SMALL_QUESTION))

    async def _find_api(self, ask: Callable[[], Awaitable[DiscoveryResponse]]) -> DiscoveryResponse:
        """Find where the API begins: below a base URL such as .../api/v3 there may be no /v1."""
        given = self.api
        for self.api in dict.fromkeys((given, V1, ApiPaths(""))):
            answer = await ask()
            if not answer.lacks_path:
                return answer
        self.api = given
        return answer

    async def post_optional(self, path: str, body: Any, *, admin: bool = False) -> DiscoveryResponse:
        """POST to an endpoint that not every server has. After 403, 404 or 405 it is not called again."""
        if path in self.absent:
            return self.absent[path]
        answer = await self.ask("POST", path, body, admin=admin)
        if answer.status in (403, 404, 405):
            self.absent[path] = answer
        return answer

    def _time_left_s(self) -> float:
        left_s = self.began_s + _TOTAL_LIMIT_S - time.monotonic()
        if left_s <= 0:
            raise TargetError(
                f"{self.base_url} was not identified within {describe_duration(_TOTAL_LIMIT_S)} "
                f"({self.reads + self.generations} requests): the server is too slow or does not answer; see its log"
            )
        return left_s

    def _count_incomplete(self, limit_s: float) -> None:
        self.incomplete += 1
        if self.incomplete >= _MOST_INCOMPLETE:
            raise TargetError(
                f"{self.base_url}: {self.incomplete} answers began and did not end within {describe_duration(limit_s)}: "
                "no load is sent to it; check the server and what stands before it"
            )

    async def _send(self, method: str, url: str, body: Any, limit_s: float) -> DiscoveryResponse:
        limit_s = min(limit_s, self._time_left_s())
        try:
            response = await http_client.request(self.asker.http, method, url, limit_s=limit_s, json=body)
        except http_client.IncompleteError as e:
            self._count_incomplete(limit_s)
            reason = f"{e} within {describe_duration(limit_s)}"
        except http_client.TooLargeError as e:
            reason = str(e)
        except TimeoutError:
            reason = f"no answer within {describe_duration(limit_s)}"
        except (httpx.HTTPError, httpx.InvalidURL, OSError, LookupError) as e:
            reason = f"{type(e).__name__}: {e}" if str(e) else type(e).__name__
        else:
            return DiscoveryResponse(response.status, response.headers, response.text)
        return DiscoveryResponse(0, text=reason)

    async def generate(self, model: str, content: Any, *, process: bool = False) -> DiscoveryResponse:
        """Request a chat completion of one token."""
        return await self.chat(model, content, process=process)

    async def chat(self, model: str, content: Any, *, process: bool = False, **options: Any) -> DiscoveryResponse:
        """As `generate`, with `options` in the body. Learns from refusals which fields the server takes."""
        while True:
            body = chat_body(model, content, 1, self.field_changes, **options)
            answer = await self.post(self.api.path(CHAT_PATH), body, process=process)
            change = change_for(answer.status, answer.text)
            if not change or change[0] in self.field_changes:
                return answer
            self.field_changes += change

    async def post(
        self, path: str, body: bytes, *, process: bool = False, stream: bool = False, dialect: Dialect | None = None
    ) -> DiscoveryResponse:
        """Send a request that runs the model to a path as it is; `process`: each process of the server is asked anew."""
        url = self.base_url + path
        key = ("POST", url, body)
        if (known := self._remembered(key, process=process)) is not None:
            return known
        self.generations += 1
        limit_s = min(ANSWER_LIMIT_S, self._time_left_s())
        answer = await self.asker.ask(url, body, limit_s=limit_s, stream=stream, dialect=dialect)
        response = DiscoveryResponse(
            answer.status, answer.headers, answer.body if answer.status else answer.error, answer
        )
        if answer.outcome == "timeout" and answer.head_ns is not None:
            self._count_incomplete(limit_s)
        if answer.is_fault:
            self.failures += 1
            self.failed = f"{answer.status}: {answer.error[:160]}" if answer.status else answer.error[:160]
        elif self.memory is not None:
            self.memory.keep(key, response, process=process)
            self.memory.generated = self.memory.generated or answer.is_completion
        return response


@dataclass(frozen=True)
class CalibrationRequest:
    """Properties of the profile's traffic; only they are measured. `videos`: kinds, each with a content part (JSON and
    a comma). `quick`: no load follows, so 3 words instead of 60. `chat`: the traffic uses the chat template.
    """

    image_sizes: Sequence[tuple[int, int]] = ()
    images_per_request: int = 0
    videos: Sequence[tuple[str, bytes]] = ()
    dialect: str = "auto"
    model: str | None = None
    api_key_env: str | None = None
    quick: bool = False
    tokenizer: LocalTokenizer | None = None
    chat: bool = True
