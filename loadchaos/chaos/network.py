"""Network attacks: toxics on a proxy before the server, and our own proxy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from loadchaos.chaos.base import NOTHING_TO_UNDO, ActResult, Attack, AttackContext, AttackedReplica
from loadchaos.chaos.toxics import TOXICS, ProxyAnswer, Toxic, parse_toxic
from loadchaos.core import http_client
from loadchaos.core.errors import TargetError
from loadchaos.core.lifetime import PYTHON_MODULE
from loadchaos.core.units import counted
from loadchaos.core.urls import host_and_port, host_port

_START_S = 10.0
_ORDER_S = 5.0
_MEASURED = 9
_NO_PROXY = ActResult(ok=False, text="there is no proxy between the clients and the server")


class LocalProxy:
    """Our own proxy (proxy.py) as a child process. A run opens it before the load and closes it at the
    end. Clients connect to `address` instead of the server's, and still name the server in Host and in TLS.
    """

    def __init__(self, url: str) -> None:
        self._target = url
        self._child: asyncio.subprocess.Process | None = None
        self._order = asyncio.Lock()
        self.address = ("", 0)

    async def open(self) -> None:
        """Start the child. TargetError where it does not listen within 10 s."""
        host, port = host_and_port(self._target)
        self._child = await asyncio.create_subprocess_exec(
            *PYTHON_MODULE,
            "loadchaos.chaos.proxy",
            host,
            str(port),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_START_S):
                answer = await self._answer()
        except (TimeoutError, ValueError):
            raise TargetError(
                "the network proxy did not start: check that this machine has free processes and ports"
            ) from None
        self.address = ("127.0.0.1", answer.port)

    async def added_delay_s(self, path: str, tls: ssl.SSLContext) -> float | None:
        """Measure the delay that the proxy adds to a request for `path` of the server. Returns the difference of the
        medians of 9 requests through the proxy and 9 directly, with fewer once one is not answered in time; None where
        none was answered.
        """
        parts = urlsplit(self._target)
        proxied = urlunsplit((parts.scheme, host_port(*self.address), path, "", ""))
        direct = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
        durations: dict[str, list[float]] = {direct: [], proxied: []}
        async with http_client.client({"Host": parts.netloc.rpartition("@")[2]}, tls) as client:
            with contextlib.suppress(*http_client.FAILURES):
                for url in [direct, proxied] * (_MEASURED + 1):
                    begin = time.monotonic()
                    sni = {"sni_hostname": parts.hostname}
                    await http_client.request(client, "GET", url, limit_s=_ORDER_S, extensions=sni)
                    durations[url].append(time.monotonic() - begin)
        past, through = (times[1:] for times in durations.values())  # the first of each opens its connection
        return max(0.0, statistics.median(through) - statistics.median(past)) if past and through else None

    async def add(self, toxic: Toxic) -> tuple[int, int]:
        """Lay a toxic. Returns how many open connections it hits, of how many. Raises OSError, as `remove` does."""
        answer = await self._obey({"what": "add", "toxic": asdict(toxic)})
        return answer.hit, answer.total

    async def remove(self, toxic: Toxic) -> int:
        """Remove a toxic. Returns how many connections had data, or an end, that met it."""
        return (await self._obey({"what": "remove", "name": toxic.name})).hit

    async def accepts(self) -> bool:
        """True if it takes a new connection now."""
        try:
            async with asyncio.timeout(_ORDER_S):
                _, writer = await asyncio.open_connection(*self.address)
        except OSError:  # and TimeoutError
            return False
        writer.close()
        return True

    async def close(self) -> None:
        if self._child is None or self._child.returncode is not None:
            return
        self._child.kill()
        await self._child.wait()

    async def _obey(self, order: Mapping[str, object]) -> ProxyAnswer:
        """Send an order to the child. Raises OSError when the child is gone or could not do it."""
        async with self._order:
            if self._child is None or self._child.stdin is None:
                raise ConnectionError("the network proxy was not started")
            self._child.stdin.write(json.dumps(order).encode() + b"\n")
            await self._child.stdin.drain()
            try:
                async with asyncio.timeout(_ORDER_S):
                    answer = await self._answer()
            except ValueError:
                raise ConnectionError("the network proxy is gone") from None
        if answer.what != "done":
            raise OSError(answer.why)
        return answer

    async def _answer(self) -> ProxyAnswer:
        assert self._child is not None
        assert self._child.stdout is not None
        return ProxyAnswer(**json.loads(await self._child.stdout.readline()))


def make(spec: Any, params: Mapping[str, object], _context: AttackContext) -> NetworkAttack:
    return NetworkAttack(parse_toxic(f"network_{spec}", spec, params))


class NetworkAttack(Attack):
    """One toxic, in force from `begin` to `undo`."""

    def __init__(self, toxic: Toxic) -> None:
        self._toxic = toxic
        self.name, self.effects = toxic.name, TOXICS[toxic.type].effects
        self.fields = {"toxic": asdict(toxic)}
        self._met: dict[str, int] = {}

    async def begin(self, replica: AttackedReplica) -> ActResult:
        if replica.proxy is None:
            return _NO_PROXY
        try:
            hits = await replica.proxy.add(self._toxic)
        except OSError as e:
            return ActResult(ok=False, text=str(e))
        text = self._describe(hits)
        if TOXICS[self._toxic.type].refuses and await replica.proxy.accepts():
            return ActResult(ok=None, text=f"{text}; new connections are accepted all the same")
        return ActResult(ok=True, text=text)

    async def undo(self, replica: AttackedReplica) -> ActResult:
        if replica.proxy is None:
            return NOTHING_TO_UNDO
        try:
            met = await replica.proxy.remove(self._toxic)
        except OSError as e:
            return ActResult(ok=False, text=str(e))
        if TOXICS[self._toxic.type].refuses:  # a client that is refused reaches no proxy that counts it
            return ActResult(ok=True, text="the network fault was removed")
        self._met[replica.name] = met
        return ActResult(ok=True, text=f"the network fault was removed; it met {counted(met, 'connection')}")

    def without_effect(self, replica: AttackedReplica) -> str:
        return "no connection had data while the fault was in force" if self._met.pop(replica.name, None) == 0 else ""

    async def preflight(self, replica: AttackedReplica) -> ActResult:
        if replica.proxy is None:
            return _NO_PROXY
        return ActResult(ok=True, text="a proxy is between the clients and the server")

    def _describe(self, hits: tuple[int, int]) -> str:
        known = TOXICS[self._toxic.type].attributes
        text = self._toxic.stream
        if self._toxic.share < 1:
            text += f", {self._toxic.share:.0%} of the connections"
        if self._toxic.attributes:
            text += ": " + ", ".join(f"{a.name} {self._toxic.attributes[a.name]:g} {a.unit}" for a in known)
        return f"{text}; hit {hits[0]} of {hits[1]} open connection{'' if hits[1] == 1 else 's'}"
