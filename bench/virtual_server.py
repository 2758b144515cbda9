"""The embedded server in virtual time: one process, real HTTP on the loopback, and no waiting.

`VirtualLoop` jumps to its next timer whenever nothing is ready, so that ten minutes of a server take seconds. The engine
core is stepped in the same process. `Injection` says which requests a planted defect touched, and can thin a defect out.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import selectors
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

from loadchaos.simulator.engine.client import EngineClient
from loadchaos.simulator.engine.engine import Engine
from loadchaos.simulator.engine.types import EngineConfig, EngineRequest, RequestOutput
from loadchaos.simulator.http.server import HttpServer
from loadchaos.simulator.options import SimulatorSpec, make_options
from loadchaos.simulator.vllm.api import VllmApi

_DEADLOCK_S = 60.0
_TICK_S = 1e-6


class _JumpingSelector(selectors.EpollSelector):
    """Advances a clock in place of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready now; else jump over the time that there is nothing to do."""
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            ready = super().select(_DEADLOCK_S)
            if not ready:
                raise RuntimeError("nothing will ever happen in this loop: a task waits for nobody")
            return ready
        self.now_s += max(timeout, 0.0) + _TICK_S
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is virtual."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds."""
        return self._jumping.now_s

    def run_in_executor(  # type: ignore[override]  # args need no TypeVarTuple here
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run at once: virtual time would jump while a thread works."""
        del executor
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def time_ns(self) -> int:
        """Virtual nanoseconds."""
        return int(self._jumping.now_s * 1e9)


@contextlib.contextmanager
def _absent(module: str) -> Iterator[None]:
    """Make an import fail for a while.

    Not `mock.patch.dict(sys.modules)`: it also forgets modules that were imported meanwhile, so that there are two of them
    later, with different exceptions.
    """
    was_there, before = module in sys.modules, sys.modules.get(module)
    sys.modules[module] = None  # type: ignore[assignment]  # the import system reads None as absent
    try:
        yield
    finally:
        del sys.modules[module]
        if was_there and before is not None:
            sys.modules[module] = before


@contextlib.contextmanager
def virtual_time() -> Iterator[asyncio.Runner]:
    """Yield a runner in whose process `time.monotonic` is virtual, too."""
    loop = VirtualLoop()
    with (
        _absent("sniffio"),  # else httpcore searches for it at each request
        asyncio.Runner(loop_factory=lambda: loop) as runner,
        mock.patch.object(time, "monotonic", loop.time),
        mock.patch.object(time, "monotonic_ns", loop.time_ns),
    ):
        yield runner


class Injection:
    """Ground truth of the faults that were injected.

    `keep` is the share of the requests that a defect may spoil; the others are left right.
    """

    def __init__(self, keep: float = 1.0, seed: int = 0) -> None:
        self.touched: set[str] = set()
        self._keep, self._rng = keep, random.Random(f"injection {seed}")
        self._chosen: dict[str, bool] = {}

    def _allowed(self, request_id: str) -> bool:
        if request_id not in self._chosen:
            self._chosen[request_id] = self._rng.random() < self._keep
        return self._chosen[request_id]

    def filtered(self, output: RequestOutput) -> RequestOutput | None:
        """The output with or without its fault; None: it was nothing but one."""
        spoiled = output.fault or output.swapped_with or output.seen_image
        if not spoiled and output.used_adapter is None:
            return output
        if self._allowed(output.request_id):
            self.touched.add(output.request_id)
            if output.swapped_with:
                self.touched.add(output.swapped_with)
            return output
        if output.swapped_with:
            return None
        return RequestOutput(
            output.request_id, output.new_tokens, output.finish_reason, output.error, output.cached_tokens
        )


class InProcessEngine(EngineClient):
    """The API server's client of an engine core that is stepped in this process."""

    def __init__(self, config: EngineConfig, injection: Injection) -> None:
        super().__init__(config, "virtual")
        self._engine, self._injection = Engine(config), injection
        self._work = asyncio.Event()

    def _send(self, message: list[Any]) -> None:
        """Apply a message of the API server to the engine."""
        kind = message[0]
        if kind == "add":
            self._engine.add(EngineRequest(*message[1]))
        elif kind == "abort":
            self._engine.abort(message[1])
        else:
            raise NotImplementedError(f"{kind} has no use in virtual time")
        self._work.set()

    async def step_forever(self) -> None:
        """Step while there is work; each step takes its virtual duration."""
        while True:
            if not self._engine.has_work:
                self._work.clear()
                await self._work.wait()
            result = self._engine.step()
            await asyncio.sleep(max(result.duration_s, 0.0005))
            kept = (self._injection.filtered(output) for output in result.outputs)
            self.stats = self._engine.stats()
            self.on_step(result.scheduled_tokens)
            for output in kept:
                if output is not None:
                    self._deliver(output)


@contextlib.asynccontextmanager
async def _serving(spec: SimulatorSpec, injection: Injection) -> Any:
    options = make_options(spec)
    engine = InProcessEngine(options.engine, injection)
    http = HttpServer(VllmApi(options, engine).handle, True)
    port = await http.listen("127.0.0.1", 0)
    stepping = asyncio.create_task(engine.step_forever())
    try:
        yield port
    finally:
        stepping.cancel()
        http.close_listener()
        http.close_all()
        await asyncio.gather(stepping, return_exceptions=True)


def serving(
    defects: tuple[str, ...], flags: Mapping[str, object], injection: Injection
) -> contextlib.AbstractAsyncContextManager[int]:
    """An embedded vLLM; gives its port."""
    spec = SimulatorSpec("vllm", "0.32", defects, {"quiet": True, "enable_prompt_tokens_details": True, **flags})
    return _serving(spec, injection)
