"""vLLM's development endpoints: resets, pause, sleep, aborts, server_info. The answers are as measured on 0.32."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

import orjson

from loadchaos.simulator.body import inside
from loadchaos.simulator.engine.client import EngineDiedEarlyError
from loadchaos.simulator.http.api import Route
from loadchaos.simulator.http.server import HttpExchange
from loadchaos.simulator.vllm import errors
from loadchaos.simulator.vllm.errors import VllmRefusal

if TYPE_CHECKING:
    from loadchaos.simulator.vllm.api import VllmApi

_MODES = ("abort", "wait", "keep")
_REFUSES_SINCE = (0, 33, 0)


class Admin:
    """The development endpoints; they report `paused` and `sleeping`. `refusing`: new requests are refused instead of
    held back.
    """

    def __init__(self, api: VllmApi) -> None:
        self._api = api
        self.paused = False
        self.sleeping = False
        self.refusing = False

    def routes(self) -> Iterable[Route]:
        return (
            Route("POST", "/reset_prefix_cache", self._reset_prefix_cache),
            Route("POST", "/reset_mm_cache", self._reset_mm_cache, (0, 11, 2)),
            Route("POST", "/reset_encoder_cache", self._reset_encoder_cache, (0, 16, 0)),
            Route("GET", "/server_info", self._server_info),
            Route("POST", "/pause", self._pause, (0, 12, 0)),
            Route("POST", "/resume", self._resume, (0, 12, 0)),
            Route("GET", "/is_paused", lambda exchange: exchange.send_json({"is_paused": self.paused}), (0, 12, 0)),
            Route("POST", "/sleep", self._sleep),
            Route("POST", "/wake_up", self._wake_up),
            Route("GET", "/is_sleeping", self._is_sleeping),
            Route("POST", "/abort_requests", self._abort_requests, (0, 19, 0)),
        )

    async def _call_engine(self, method: str, *arguments: object) -> object:
        try:
            return await self._api.engine.call(method, *arguments)
        except EngineDiedEarlyError:
            raise errors.dead(self._api.release) from None

    async def _reset_mm_cache(self, exchange: HttpExchange) -> None:
        # One ordered step: nothing is sent between our forgetting and the message that makes the engine forget.
        self._api.sender.clear()
        await self._call_engine("reset_mm_cache")
        exchange.send(200, b"", None)

    async def _reset_encoder_cache(self, exchange: HttpExchange) -> None:
        await self._call_engine("reset_encoder_cache")
        exchange.send(200, b"", None)

    async def _reset_prefix_cache(self, exchange: HttpExchange) -> None:
        running = exchange.option("reset_running_requests", "false").lower() == "true"
        done = await self._call_engine("reset_prefix_cache", running)
        if self._api.release >= (0, 32, 0):
            exchange.send_json({"success": bool(done)})
        else:
            exchange.send(200, b"", None)

    async def _pause(self, exchange: HttpExchange) -> None:
        mode = exchange.option("mode", "abort")
        if mode not in _MODES:
            text = f"Invalid pause mode: {mode}. Must be one of {', '.join(_MODES)}."
            raise VllmRefusal(text)
        self.refusing = mode != "keep" and self._api.release >= _REFUSES_SINCE
        await self._stop_serving(mode)
        await self._call_engine("pause", mode)
        self.paused = True
        exchange.send_json({"status": "paused"})

    async def _stop_serving(self, mode: str) -> None:
        self._api.set_holding(True)
        if mode == "abort":
            self._api.abort_all()
        elif mode == "wait":
            await self._api.idle()

    async def _resume(self, exchange: HttpExchange) -> None:
        await self._call_engine("resume")
        self.paused = self.refusing = False
        self._api.set_holding(self.sleeping)
        exchange.send_json({"status": "resumed"})

    async def _sleep(self, exchange: HttpExchange) -> None:
        level, mode = int(exchange.option("level", "1") or 1), exchange.option("mode", "abort")
        await self._stop_serving(mode)
        await self._call_engine("sleep", level, mode)
        self.sleeping = True
        exchange.send_json({"status": "sleeping", "level": level})

    async def _wake_up(self, exchange: HttpExchange) -> None:
        await self._call_engine("wake_up")
        self.sleeping = self.paused = self.refusing = False
        self._api.set_holding(False)
        exchange.send_json({"status": "awake", "tags": exchange.query.get("tags")})

    async def _is_sleeping(self, exchange: HttpExchange) -> None:
        # Asks the engine, so it hangs with it: the hang probe of the real server, too.
        await self._call_engine("ping")
        exchange.send_json({"is_sleeping": self.sleeping})

    async def _abort_requests(self, exchange: HttpExchange) -> None:
        asked = inside(orjson.loads(exchange.body or b"{}"))
        ids = asked.get("request_ids")
        chosen = [ids] if isinstance(ids, str) else [str(i) for i in ids] if isinstance(ids, list) else []
        if asked.get("abort_all"):
            chosen.clear()
        count = self._api.abort_all(chosen or None)
        # An unknown id counts as aborted, too (measured).
        exchange.send_json({"status": "aborted", "aborted": len(chosen) or count})

    async def _server_info(self, exchange: HttpExchange) -> None:
        options = self._api.options
        config = {
            **{key: value for key, value in asdict(options.engine).items() if key not in {"defects", "dialect", "era"}},
            "model": options.server.model,
            "dtype": "torch.bfloat16",
            "speculative_config": None
            if not options.engine.num_speculative_tokens
            else {"method": "mtp", "num_speculative_tokens": options.engine.num_speculative_tokens},
        }
        environment = {key: value for key, value in os.environ.items() if key.startswith("VLLM_")}
        as_json = exchange.option("config_format", "text") == "json"
        shown: object = config if as_json else ", ".join(f"{key}={value!r}" for key, value in config.items())
        body = {"vllm_config": shown, "vllm_env": environment}
        if self._api.release >= (0, 19, 0):
            body["system_env"] = {}
        exchange.send_json(body)
