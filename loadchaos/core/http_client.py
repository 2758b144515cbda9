"""Requests that are not load (discovery, questions, attacks): the client that sends them, with its headers, and limits for
the whole time and size of one. httpx limits only the time between two pieces, and reads and unpacks a body of any size.
"""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
import zlib
from collections.abc import Mapping
from typing import Any

import httpx

from loadchaos.core.content_encoding import PACKED, inflater
from loadchaos.core.http_answer import HttpAnswer
from loadchaos.core.limits import MOST_ANSWER_BYTES
from loadchaos.core.redact import Redactor
from loadchaos.core.secret_patterns import is_secret_header

NON_LOAD_HEADERS = {"accept-encoding": "identity"}
"""Headers of every request that is not load: of discovery, questions, monitoring and attacks; names in lower case. Those
of the load are `DEFAULT_HEADERS` of load/wire/request.py."""


class IncompleteError(Exception):
    """The answer began, but did not end in time."""


class TooLargeError(Exception):
    """The answer is larger than the limit."""


FAILURES = (httpx.HTTPError, TimeoutError, IncompleteError, TooLargeError)
"""Exceptions of `request` where no complete answer came."""


def client(
    headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | bool = True, *, used_once: bool = False
) -> httpx.AsyncClient:
    """Make a client with `headers` of the user and ours. It takes no proxy out of the environment, so that all requests
    go to the same server. `used_once`: each request opens a connection of its own, as a server closes idle ones.
    """
    limits = httpx.Limits(max_connections=512, max_keepalive_connections=0 if used_once else 20)
    return httpx.AsyncClient(headers=with_own_headers(headers or {}), limits=limits, verify=tls, trust_env=False)


def with_own_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers of the user with those of every request that is not load, which win."""
    return {name: value for name, value in headers.items() if name.lower() not in NON_LOAD_HEADERS} | NON_LOAD_HEADERS


async def request(http: httpx.AsyncClient, method: str, url: str, *, limit_s: float, **options: Any) -> HttpAnswer:
    """Send a request and read its answer within `limit_s` for the whole exchange. `options` go to
    `httpx.AsyncClient.stream`. Raises one of `FAILURES`: TimeoutError where no headers came in time, IncompleteError
    where the body did not, TooLargeError for a body of more than `MOST_ANSWER_BYTES`, packed or not, and
    httpx.HTTPError where the connection failed. Keys of the client are hidden in the text: facts are made of it.
    """
    began = False
    hidden = _redactor(tuple(value for name, value in http.headers.items() if is_secret_header(name))).known
    body: list[bytes] = []
    size = 0
    try:
        async with (
            asyncio.timeout(limit_s),
            http.stream(method, url, timeout=limit_s, **options) as response,
        ):
            began = True
            if response.is_stream_consumed:  # of a transport in memory
                return HttpAnswer(response.status_code, _lower(response.headers), hidden(response.text))
            async for piece in response.aiter_raw():
                body.append(piece)
                size += len(piece)
                if size > MOST_ANSWER_BYTES:
                    raise TooLargeError(f"the answer has more than {MOST_ANSWER_BYTES >> 20} MiB")
    except (TimeoutError, httpx.TimeoutException) as e:
        if began:
            raise IncompleteError(f"the answer began but did not end ({size} bytes of its body came)") from e
        raise TimeoutError from e
    headers = _lower(response.headers)
    data = _unpacked(b"".join(body), headers.get("content-encoding", ""))
    return HttpAnswer(response.status_code, headers, hidden(data.decode(response.encoding or "utf-8", "replace")))


@functools.lru_cache(maxsize=16)
def _redactor(keys: tuple[str, ...]) -> Redactor:
    redactor = Redactor.from_environment(os.environ)  # a launched server knows more than a request tells it
    for key in keys:
        redactor.add(key.split(" ")[-1])  # without `Bearer`
    return redactor


def _lower(headers: httpx.Headers) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _unpacked(data: bytes, encoding: str) -> bytes:
    if encoding.strip().lower() not in PACKED:
        return data
    try:
        found = inflater().decompress(data, MOST_ANSWER_BYTES + 1)
    except zlib.error as e:
        raise httpx.DecodingError(f"no {encoding} data: {e}") from e
    if len(found) > MOST_ANSWER_BYTES:
        raise TooLargeError(f"the answer has more than {MOST_ANSWER_BYTES >> 20} MiB unpacked")
    return found
