"""A network that is slow, narrow, torn or gone, between our clients and the server: toxics of a proxy in the path."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

import httpx

from loadchaos.chaos.base import ActResult, AttackedReplica, TrafficProxy
from loadchaos.chaos.toxics import TYPES, Toxic, toxic
from loadchaos.core.errors import TargetError
from loadchaos.core.ledger.rows import AttackDetail
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects import Dialect

_START_S = 10.0
_ORDER_S = 5.0
_MEASURED = 9


class WholePath(TrafficProxy, Protocol):
    """A path as the run has it: laid before the load, taken up at the end; `what` it is, in words.

    Clients connect to `address` in place of the server's, and speak to the server all the same: by its name, in TLS, too.
    """

    address: tuple[str, int]
    what: str

    async def open(self) -> None:
        """Have clients pass it from now on; TargetError where it does not come up."""
        ...

    async def added_delay_s(self, path: str, tls: ssl.SSLContext) -> float | None:
        """What it adds by itself."""
        ...

    async def close(self) -> None:
        """Take it away."""
        ...


def address_of(url: str) -> tuple[str, int]:
    """Where a server listens."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


async def added_delay_s(target: str, through: tuple[str, int], path: str, tls: ssl.SSLContext) -> float | None:
    """What the proxy at `through` adds: medians of 9 requests through it and past it; None where none was answered."""
    parts, (host, port) = urlsplit(target), through
    there = urlunsplit((parts.scheme, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", path, "", ""))
    direct = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
    took: dict[str, list[float]] = {direct: [], there: []}
    async with httpx.AsyncClient(
        trust_env=False, verify=tls, headers={"Host": parts.netloc.rpartition("@")[2]}
    ) as client:
        for _ in range(_MEASURED + 1):
            for url, times in took.items():
                begin = time.monotonic()
                with contextlib.suppress(httpx.HTTPError):
                    await client.get(url, timeout=_ORDER_S, extensions={"sni_hostname": parts.hostname})
                    times.append(time.monotonic() - begin)
    past, passed = (times[1:] for times in took.values())  # the first of each opens its connection
    return max(0.0, statistics.median(passed) - statistics.median(past)) if past and passed else None


class ProxyPath:
    """Our own proxy as a child in the path: see WholePath."""

    def __init__(self, url: str) -> None:
        self._target = url
        self._child: asyncio.subprocess.Process | None = None
        self._order = asyncio.Lock()
        self.address = ("", 0)
        self.what = "a proxy"

    async def open(self) -> None:
        """Start it; TargetError when it does not come up."""
        host, port = address_of(self._target)
        self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "loadchaos.chaos.proxy",
            host,
            str(port),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            said = await asyncio.wait_for(self._answer(), _START_S)
        except (TimeoutError, ValueError):
            raise TargetError("the network proxy did not start: has this machine processes and ports left?") from None
        self.address = ("127.0.0.1", int(said["port"]))

    async def added_delay_s(self, path: str, tls: ssl.SSLContext) -> float | None:
        """See the function."""
        return await added_delay_s(self._target, self.address, path, tls)

    async def add(self, one: Toxic) -> tuple[int, int]:
        """See Path (_attack.py)."""
        said = await self._obey({"what": "add", "toxic": asdict(one)})
        return said["hit"], said["there"]

    async def remove(self, name: str) -> None:
        """See Path (_attack.py)."""
        await self._obey({"what": "remove", "name": name})

    async def close(self) -> None:
        """End it; connections through it end with it."""
        if self._child is None or self._child.returncode is not None:
            return
        self._child.kill()
        await self._child.wait()

    async def _obey(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Raises OSError when the proxy is gone or could not do it."""
        async with self._order:
            if self._child is None or self._child.stdin is None:
                raise ConnectionError("the network proxy was not started")
            self._child.stdin.write(json.dumps(order).encode() + b"\n")
            await self._child.stdin.drain()
            try:
                said = await asyncio.wait_for(self._answer(), _ORDER_S)
            except ValueError:
                raise ConnectionError("the network proxy is gone") from None
        if said["what"] != "done":
            raise OSError(said.get("why"))
        return said

    async def _answer(self) -> dict[str, Any]:
        assert self._child is not None
        assert self._child.stdout is not None
        said: dict[str, Any] = json.loads(await self._child.stdout.readline())
        return said


def make(
    spec: Any,
    params: Mapping[str, Any],
    _dialect: Dialect,
    _client: httpx.AsyncClient,
    _redactor: Redactor,
    _version: str | None,
) -> NetworkAttack:
    """The attack that `{network: latency, params: {latency: 200}}` means. OptionError where that is none."""
    return NetworkAttack(toxic(f"network_{spec}", spec, params))


class NetworkAttack:
    """One toxic, in force from begin to undo."""

    holds = True
    undone_by: str | None = None

    def __init__(self, one: Toxic) -> None:
        self._toxic = one
        self.name, self.effects = one.name, TYPES[one.type].effects

    def about(self, replica: AttackedReplica) -> AttackDetail:  # noqa: ARG002 - the protocol's; a path needs no aim
        """See Attack."""
        return {"toxic": asdict(self._toxic)}

    async def begin(self, replica: AttackedReplica) -> ActResult:
        """See Attack."""
        if replica.path is None:
            return ActResult(ok=False, text="there is no proxy in the path")
        begin = time.monotonic_ns()
        try:
            hits = await replica.path.add(self._toxic)
        except OSError as e:
            return ActResult(ok=False, text=str(e))
        share = f" for {self._toxic.share:.0%} of the connections" if self._toxic.share < 1 else ""
        values = ", ".join(f"{k} {v:g}" for k, v in self._toxic.attributes.items())
        hit = "" if hits is None else f"; {hits[0]} of {hits[1]} connections hit at once"
        text = f"{self._toxic.stream}{share}{': ' if values else ''}{values}{hit}"
        return ActResult(ok=True, text=text, took_ns=time.monotonic_ns() - begin)

    async def undo(self, replica: AttackedReplica) -> ActResult:
        """See Attack."""
        if replica.path is None:
            return ActResult(ok=True, text="nothing to undo")
        try:
            await replica.path.remove(self._toxic.name)
        except OSError as e:
            return ActResult(ok=False, text=str(e))
        return ActResult(ok=True, text="the network is as it was")

    async def preflight(self, replica: AttackedReplica) -> ActResult:
        """Whether there is a proxy in the path."""
        there = replica.path is not None
        return ActResult(ok=there, text="a proxy is in the path" if there else "there is no proxy in the path")
