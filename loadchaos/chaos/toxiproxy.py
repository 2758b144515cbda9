"""A toxiproxy that somebody runs, driven through its HTTP API: a proxy of ours in it, with its own toxics, gone at the end.

API as in Shopify/toxiproxy 2: POST /proxies, POST and DELETE /proxies/NAME/toxics, POST and DELETE /proxies/NAME.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import subprocess
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from loadchaos.chaos.network import added_delay_s, address_of
from loadchaos.chaos.toxics import Toxic
from loadchaos.chaos.undo_guard import guard
from loadchaos.core.errors import OptionError, TargetError

_CALL_S = 5.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
# No proxy out of the environment: it goes where our other calls go.
_DELETE = (
    "import sys,urllib.request as u;"
    "u.build_opener(u.ProxyHandler({})).open(u.Request(sys.argv[1],method='DELETE'),timeout=5)"
)


class ToxiproxyPath:
    """One proxy in somebody's toxiproxy, in the path: see network.WholePath.

    Where toxiproxy runs on this machine it listens on the loopback, elsewhere on all its addresses. It reaches the server
    by the name that we reach it by.
    """

    def __init__(self, api: str, url: str) -> None:
        self._target = url
        self._upstream = address_of(url)
        self._api = api.rstrip("/")
        self._host = urlsplit(api).hostname or ""
        if self._host not in _LOOPBACK and self._upstream[0] in _LOOPBACK:
            raise OptionError(
                f"{url} is on this machine's loopback: the toxiproxy at {api} cannot reach it: give an address both can"
            )
        self._name = f"loadchaos-{secrets.token_hex(4)}"  # a pid is 1 in each container that shares a toxiproxy
        self._client = httpx.AsyncClient(timeout=_CALL_S, trust_env=False, headers={"User-Agent": "loadchaos"})
        self._guard: subprocess.Popen[bytes] | None = None
        self.address = ("", 0)
        self.what = "toxiproxy"

    async def open(self) -> None:
        """Have it listen; TargetError where it cannot be asked, or will not."""
        host, port = self._upstream
        upstream = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        listen = "127.0.0.1:0" if self._host in _LOOPBACK else "0.0.0.0:0"
        body = {"name": self._name, "listen": listen, "upstream": upstream, "enabled": True}
        try:
            version = (await self._call("GET", "/version")).get("version", "of an unknown version")
            made = await self._call("POST", "/proxies", body)
        except OSError as e:
            await self._client.aclose()
            raise TargetError(f"the toxiproxy at {self._api}: {e}; is it up, and is that its API's address?") from None
        self.what = f"toxiproxy {version}"
        self._guard = guard('"$1" -c "$2" "$3" 2>/dev/null', sys.executable, _DELETE, self._proxy)
        self.address = (self._host, int(str(made.get("listen", "")).rpartition(":")[2] or 0))

    async def added_delay_s(self, path: str, tls: ssl.SSLContext) -> float | None:
        """See network.added_delay_s."""
        return await added_delay_s(self._target, self.address, path, tls)

    async def add(self, one: Toxic) -> None:
        """See Path (_attack.py); which connections it hits is toxiproxy's to choose, and it does not tell."""
        if one.type == "down":
            await self._call("POST", f"/proxies/{self._name}", {"enabled": False})
            return
        body = {
            "name": one.name, "type": one.type, "stream": one.stream, "toxicity": one.share,
            "attributes": {name: int(value) for name, value in one.attributes.items()},
        }  # fmt: skip
        await self._call("POST", f"/proxies/{self._name}/toxics", body)

    async def remove(self, name: str) -> None:
        """See Path (_attack.py)."""
        if name == "network_down":
            await self._call("POST", f"/proxies/{self._name}", {"enabled": True})
        else:
            await self._call("DELETE", f"/proxies/{self._name}/toxics/{name}")

    async def close(self) -> None:
        """Take our proxy out; connections through it end with it."""
        await self._client.aclose()
        if self._guard is not None:
            await asyncio.to_thread(self._guard.communicate, b"\n")  # it takes it out itself, and ends

    @property
    def _proxy(self) -> str:
        return f"{self._api}/proxies/{self._name}"

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Raises OSError with what it said, where that is no success."""
        try:
            answer = await self._client.request(method, self._api + path, json=body)
        except httpx.HTTPError as e:
            raise ConnectionError(f"no answer ({type(e).__name__}: {e})") from None
        try:
            said = answer.json() if answer.content else {}
        except ValueError:
            said = {}
        if not answer.is_success:
            why = said.get("error") or said.get("title") if isinstance(said, dict) else None
            raise OSError(f"{method} {path} was answered {answer.status_code}: {why or answer.text[:200]}")
        return said if isinstance(said, dict) else {}
