"""Run the recording proxy until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from loadchaos.campaigns.recorder.channel import RecordingChannel
from loadchaos.campaigns.recorder.frames import RecordingSetup
from loadchaos.campaigns.recorder.freeze import FreezeWatch, says_dead
from loadchaos.campaigns.recorder.proxy import StreamingProxy, Upstream
from loadchaos.campaigns.recorder.ring import RingLimits
from loadchaos.campaigns.recorder.tap import ConnectionTap, TappedExchange
from loadchaos.core.errors import OptionError, next_step
from loadchaos.core.lifetime import ending_signals
from loadchaos.core.open_files import allow_many_open_files
from loadchaos.server.dialects.gateways import HEALTH_PATH
from loadchaos.server.monitor.http_get import Endpoint, get

DRAIN_S = 60.0
"""Maximum time of open answers after SIGTERM; a second signal ends at once."""
AFTER_S = 1.0
"""Time after a death whose rows are kept too: they hold the ends of the requests that it hit."""
TELL_AGAIN_S = 30.0
_ASKS_S = (0.0, 0.5, 1.0, 2.0)
_ASK_LIMIT_S = 3.0
_DEAD = {"refused": "refuses", "reset": "resets"}


@dataclass(frozen=True)
class RecordOptions:
    """Options of `loadchaos record`."""

    upstream: Upstream
    upstream_url: str
    host: str
    port: int
    out: Path
    limits: RingLimits
    bodies: bool = False
    most_failed: float | None = None


class RecordingSession:
    """Proxy, channel and rules to freeze, together."""

    def __init__(self, options: RecordOptions, tell: Callable[[str], None]) -> None:
        self._options, self._tell = options, tell
        setup = RecordingSetup(
            folder=str(options.out.absolute()),
            keep_s=options.limits.keep_s,
            max_bytes=options.limits.max_bytes,
            bodies=options.bodies,
            upstream=options.upstream_url,
            recording=secrets.token_hex(4),
            key=secrets.token_hex(32),
        )
        self.channel = RecordingChannel(setup, lambda notice: tell(describe_notice(notice)))
        self.channel.on_end = self._on_end
        self.proxy = StreamingProxy(options.upstream, lambda: ConnectionTap(self.channel))
        self.proxy.on_refused = self._on_refused
        self._watch = FreezeWatch(options.most_failed)
        self._told_s = -math.inf
        self._asking = False
        self._freezing: asyncio.TimerHandle | None = None
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Record until SIGINT or SIGTERM. Returns the exit code. Raises OptionError."""
        options = self._options
        allow_many_open_files()
        try:
            options.out.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise OptionError(f"{options.out}: {e.strerror}; {next_step(e)}") from e
        await self.channel.start()
        try:
            port = await self.proxy.listen(options.host, options.port)
        except OSError as e:
            await self.channel.close()
            raise OptionError(
                f"--listen {options.host}:{options.port}: {e.strerror or e}; choose another address or a free port"
            ) from e
        self._tell(f"listening on http://{options.host}:{port}, passing on to {options.upstream_url}")
        kind = "bodies without secrets" if options.bodies else "shapes of requests, no content"
        self._tell(f"recording {kind} in {options.out / 'ring'}; kill -USR1 keeps them")
        await self._until_stopped()
        await self.channel.close()
        return 0

    async def _until_stopped(self) -> None:
        loop = asyncio.get_running_loop()
        for number in ending_signals():
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGUSR1, lambda: self._freeze("signal", 0.0))
        running = asyncio.create_task(self.channel.run())
        await self._stop.wait()
        self._stop.clear()
        self._tell("ending after the open answers; a second signal ends at once")
        closing = asyncio.create_task(self.proxy.close(DRAIN_S))
        second = asyncio.create_task(self._stop.wait())
        await asyncio.wait((closing, second), return_when=asyncio.FIRST_COMPLETED)
        if not closing.done():
            closing.cancel()
            await self.proxy.close(0)
        running.cancel()
        second.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    def _on_end(self, exchange: TappedExchange) -> None:
        reason = self._watch.feed(exchange)
        if reason is not None:
            self._freeze(reason, AFTER_S)
        elif self._watch.suspect and not self._asking:
            self._watch.suspect = False
            self._asking = True
            self.proxy.spawn(self._ask())

    def _on_refused(self, reason: str) -> None:
        """Say why clients get status 502, not more often than every 30 s."""
        now = time.monotonic()
        if now - self._told_s >= TELL_AGAIN_S:
            self._told_s = now
            self._tell(f"{self._options.upstream_url}: no connection: {reason}; clients get status 502")

    async def _ask(self) -> None:
        """Ask the server after an answer was cut. A dead one refuses, resets or says so."""
        for pause_s in _ASKS_S:
            await asyncio.sleep(pause_s)
            found = await is_dead(self._options.upstream)
            if found is not None:
                reason = self._watch.died(found)
                if reason is not None:
                    self._freeze(reason, AFTER_S)
                break
        self._asking = False

    def _freeze(self, reason: str, after_s: float) -> None:
        if self._freezing is None:
            self._freezing = asyncio.get_running_loop().call_later(after_s, self._freeze_now, reason)

    def _freeze_now(self, reason: str) -> None:
        self._freezing = None
        self.channel.freeze(reason)


def describe_notice(notice: Mapping[str, object]) -> str:
    kind = notice["what"]
    if kind == "frozen":
        return f"kept {notice['path']} ({notice['reason']}); loadchaos replay sends its requests again"
    if kind == "not_frozen":
        return f"not kept ({notice['reason']}): {notice['why']}"
    if kind == "stopped":
        return f"recording stopped: {notice['why']}; the proxy continues, and tries to record every 5 s"
    if kind == "resumed":
        return f"recording again; {notice['rows']:,} rows are lost"
    return f"the recording process ended with code {notice['code']}; the proxy continues and starts it again"


async def is_dead(upstream: Upstream) -> str | None:
    """Ask the server's /health why it is dead; None if it is not, or does not answer in time."""
    answer = await get(Endpoint(upstream.host, upstream.port, HEALTH_PATH, upstream.tls), _ASK_LIMIT_S)
    if answer.error in _DEAD:
        return f"the server {_DEAD[answer.error]} connections"
    if (answer.status or 0) >= 500 and says_dead(answer.status or 0, answer.body, health=True):
        return f"{HEALTH_PATH} says that its engine is dead"
    return None
