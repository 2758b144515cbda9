"""vLLM's development endpoints: resets, pause, sleep, aborts, server_info. The answers are as measured on 0.32."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import orjson

from loadchaos.simulator.engine.client import EngineDiedEarlyError
from loadchaos.simulator.engine.types import Release
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

    def routes(self) -> Mapping[tuple[str, str], Route]:
        known: tuple[tuple[Release, str, str, Route], ...] = (
            ((0, 8, 0), "POST", "/reset_prefix_cache", self._reset_prefix_cache),
            ((0, 11, 2), "POST", "/reset_mm_cache", self._reset_mm_cache),
            ((0, 16, 0), "POST", "/reset_encoder_cache", self._reset_encoder_cache),
            ((0, 8, 0), "GET", "/server_info", self._server_info),
            ((0, 12, 0), "POST", "/pause", self._pause),
            ((0, 12, 0), "POST", "/resume", self._resume),
            ((0, 12, 0), "GET", "/is_paused", lambda exchange: exchange.send_json({"is_paused": self.paused})),
            ((0, 8, 0), "POST", "/sleep", self._sleep),
            ((0, 8, 0), "POST", "/wake_up", self._wake_up),
            ((0, 8, 0), "GET", "/is_sleeping", self._is_sleeping),
            ((0, 19, 0), "POST", "/abort_requests", self._abort_requests),
        )
        return {(method, path): handler for since, method, path, handler in known if self._api.release >= since}

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
        running = exchange.query.get("reset_running_requests", ["false"])[-1].lower() == "true"
        done = await self._call_engine("reset_prefix_cache", running)
        if self._api.release >= (0, 32, 0):
            exchange.send_json({"success": bool(done)})
        else:
            exchange.send(200, b"", None)

    async def _pause(self, exchange: HttpExchange) -> None:
        mode = exchange.query.get("mode", ["abort"])[-1]
        if mode not in _MODES:
            text = f"Invalid pause mode: {mode}. Must be one of {', '.join(_MODES)}."
            raise VllmRefusal(text)
        self.refusing = mode != "keep" and self._api.release >= _REFUSES_SINCE
        await self._stop_serving(mode)
        await self._call_engine("pause", mode)
        self.paused = True
        exchange.send(200, b'{"status":"paused"}')

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
        exchange.send(200, b'{"status":"resumed"}')

    async def _sleep(self, exchange: HttpExchange) -> None:
        level = int(exchange.query.get("level", ["1"])[-1] or 1)
        mode = exchange.query.get("mode", ["abort"])[-1]
        await self._stop_serving(mode)
        await self._call_engine("sleep", level, mode)
        self.sleeping = True
        self._api.metrics.sleep_level = level
        exchange.send_json({"status": "sleeping", "level": level})

    async def _wake_up(self, exchange: HttpExchange) -> None:
        await self._call_engine("wake_up")
        self.sleeping = self.paused = self.refusing = False
        self._api.metrics.sleep_level = 0
        self._api.set_holding(False)
        exchange.send_json({"status": "awake", "tags": exchange.query.get("tags")})

    async def _is_sleeping(self, exchange: HttpExchange) -> None:
        # Asks the engine, so it hangs with it: the hang probe of the real server, too.
        await self._call_engine("ping")
        exchange.send_json({"is_sleeping": self.sleeping})

    async def _abort_requests(self, exchange: HttpExchange) -> None:
        asked = orjson.loads(exchange.body or b"{}")
        ids = asked.get("request_ids") if isinstance(asked, dict) else None
        everything = ids is None or not ids or bool(asked.get("abort_all"))
        chosen = None
        if ids and not everything:
            chosen = [ids] if isinstance(ids, str) else [str(i) for i in ids]
        count = self._api.abort_all(chosen)
        # An unknown id counts as aborted, too (measured).
        exchange.send_json({"status": "aborted", "aborted": count if everything else len(chosen or ())})

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
        as_json = exchange.query.get("config_format", ["text"])[-1] == "json"
        shown: object = config if as_json else ", ".join(f"{key}={value!r}" for key, value in config.items())
        body = {"vllm_config": shown, "vllm_env": environment}
        if self._api.release >= (0, 19, 0):
            body["system_env"] = {}
        exchange.send_json(body)
