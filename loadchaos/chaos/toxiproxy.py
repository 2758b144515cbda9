"""A proxy in an existing toxiproxy, driven through its HTTP API.

API as in Shopify/toxiproxy 2: POST /proxies, POST and DELETE /proxies/NAME/toxics, POST and DELETE /proxies/NAME.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
import subprocess
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from loadchaos.chaos.network import added_delay_s, address_of
from loadchaos.chaos.toxics import TOXICS, Toxic
from loadchaos.chaos.undo_guard import guard
from loadchaos.core import bounded_http
from loadchaos.core.errors import OptionError, TargetError

_CALL_S = 5.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
# No proxy out of the environment: it goes where our other calls go.
_DELETE = (
    "import sys,urllib.request as u;"
    "u.build_opener(u.ProxyHandler({})).open(u.Request(sys.argv[1],method='DELETE'),timeout=5)"
)


class ToxiproxyProxy:
    """A proxy of ours in an existing toxiproxy, a RunProxy.

    A toxiproxy on this machine listens on the loopback, any other on all its addresses. It reaches the server by the
    name that we reach it by.
    """

    def __init__(self, api: str, url: str) -> None:
        self._target = url
        self._upstream = address_of(url)
        self._api = api.rstrip("/")
        self._host = urlsplit(api).hostname or ""
        if self._host not in _LOOPBACK and self._upstream[0] in _LOOPBACK:
            raise OptionError(
                f"{url} is on this machine's loopback, and the toxiproxy at {api} cannot reach it: "
                "give the server's address as both can reach it"
            )
        self._name = f"loadchaos-{secrets.token_hex(4)}"  # a pid is 1 in each container that shares a toxiproxy
        self._client = httpx.AsyncClient(timeout=_CALL_S, trust_env=False, headers={"User-Agent": "loadchaos"})
        self._guard: subprocess.Popen[bytes] | None = None
        self.address = ("", 0)
        self.description = "toxiproxy"

    async def open(self) -> None:
        """Create the proxy.

        Raises:
            TargetError: where toxiproxy does not answer or refuses.
        """
        host, port = self._upstream
        upstream = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        listen = "127.0.0.1:0" if self._host in _LOOPBACK else "0.0.0.0:0"
        body = {"name": self._name, "listen": listen, "upstream": upstream, "enabled": True}
        try:
            version = (await self._call("GET", "/version")).get("version", "of an unknown version")
            made = await self._call("POST", "/proxies", body)
        except OSError as e:
            await self._client.aclose()
            raise TargetError(f"the toxiproxy at {self._api}: {e}; start it, or give the address of its API") from None
        self.description = f"toxiproxy {version}"
        self._guard = guard('"$1" -c "$2" "$3" 2>/dev/null', sys.executable, _DELETE, self._proxy)
        self.address = (self._host, int(str(made.get("listen", "")).rpartition(":")[2] or 0))

    async def added_delay_s(self, path: str, tls: ssl.SSLContext) -> float | None:
        """Measure the delay that the proxy adds."""
        return await added_delay_s(self._target, self.address, path, tls)

    async def add(self, toxic: Toxic) -> None:
        """Lay a toxic.

        toxiproxy chooses the connections it hits, and does not report them.
        """
        method, path, body = TOXICS[toxic.type](toxic).toxiproxy_add()
        await self._call(method, f"/proxies/{self._name}{path}", body)

    async def remove(self, toxic: Toxic) -> None:
        """Remove a toxic."""
        method, path, body = TOXICS[toxic.type](toxic).toxiproxy_remove()
        await self._call(method, f"/proxies/{self._name}{path}", body)

    async def close(self) -> None:
        """Delete our proxy; connections through it end with it."""
        await self._client.aclose()
        if self._guard is not None:
            await asyncio.to_thread(self._guard.communicate, b"\n")  # it deletes the proxy itself, and ends

    @property
    def _proxy(self) -> str:
        return f"{self._api}/proxies/{self._name}"

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call the API. OSError with its answer's text where the call fails."""
        try:
            response = await bounded_http.request(self._client, method, self._api + path, limit_s=_CALL_S, json=body)
        except TimeoutError:
            raise ConnectionError(f"no answer within {_CALL_S:g} s") from None
        except (httpx.HTTPError, bounded_http.IncompleteError, bounded_http.TooLargeError) as e:
            raise ConnectionError(f"no answer ({type(e).__name__}: {e})") from None
        try:
            answer = json.loads(response.text) if response.text else {}
        except ValueError:
            answer = {}
        if not 200 <= response.status < 300:
            why = answer.get("error") or answer.get("title") if isinstance(answer, dict) else None
            raise OSError(f"{method} {path} was answered {response.status}: {why or response.text[:200]}")
        return answer if isinstance(answer, dict) else {}
