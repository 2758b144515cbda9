"""Api: what the imitated HTTP APIs have in common."""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from loadchaos.simulator.defects import rules_of
from loadchaos.simulator.engine import tokenizer
from loadchaos.simulator.engine.client import EngineClient
from loadchaos.simulator.engine.processor_cache import ProcessorCache
from loadchaos.simulator.engine.types import MMItem, Release
from loadchaos.simulator.http.server import HttpExchange
from loadchaos.simulator.media.images import ImageReader
from loadchaos.simulator.media.processor import DecodedImage, ImageError, Placed, Processor
from loadchaos.simulator.options import Options

Handler = Callable[[HttpExchange], Awaitable[None] | None]
"""Answers at once, or returns an awaitable that answers."""
EVER: Release = (0, 0, 0)


class Route(NamedTuple):
    """One endpoint, and the first release that has it."""

    method: str
    path: str
    handler: Handler
    since: Release = EVER


class Refusal(Exception):  # noqa: N818 - an answer, not an error of ours
    """A request that the server answers with an error object."""

    def __init__(self, message: str, kind: str, status: int) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.status = status

    @property
    def error(self) -> dict[str, object]:
        raise NotImplementedError


class Api(ABC):
    """HTTP API of an imitated server, in the configured era."""

    def __init__(self, options: Options, engine: EngineClient) -> None:
        self.options = options
        self.engine = engine
        self.release = options.engine.release
        self.model = options.server.model
        self.rules = rules_of(options.engine)
        self.sender = ProcessorCache(options.engine.mm_processor_cache_items)
        self._reader = ImageReader(self._processor())
        self._random = random.Random()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    @abstractmethod
    def exit_code_on_death(self) -> int | None:
        """Exit code of the process when its engine dies; None: it stays up."""

    @abstractmethod
    def _routes(self) -> Iterable[Route]:
        """Return the endpoints of all eras."""

    @abstractmethod
    def _refuse(self, exchange: HttpExchange, refusal: Refusal) -> None: ...

    def _processor(self) -> Processor:
        return Processor()

    async def _decoded(self, urls: Iterable[str]) -> list[DecodedImage]:
        results = await asyncio.gather(*(self._reader.read(url) for url in urls), return_exceptions=True)
        images = []
        for result in results:
            image = self._unreadable(result) if isinstance(result, ImageError) else result
            if isinstance(image, BaseException):
                raise image
            images.append(image)
        return images

    @abstractmethod
    def _unreadable(self, error: ImageError) -> DecodedImage | Refusal:
        """Return what stands in for an image that cannot be read, or the refusal of its request."""

    def _items(self, images: Sequence[Placed]) -> list[MMItem]:
        """Look up each image as its request is sent, so that both sides of the cache see the same order."""
        return [MMItem(p.hash, p.tokens, offset, not self.sender.look_up(p.hash)) for offset, p in images]

    def _prefix(self, ids: Sequence[int], marks: Sequence[tuple[int, int, int]] = ()) -> Sequence[int]:
        """Hash the KV blocks of a prompt with `marks`: (offset, tokens, hash) of what else decides their content."""
        engine = self.options.engine
        return tokenizer.block_hashes(ids, engine.block_size, marks) if engine.enable_prefix_caching else ()

    def warm_up(self) -> None:
        if self.options.server.images:
            self._reader.warm_up()

    @cached_property
    def _handlers(self) -> Mapping[tuple[str, str], Handler]:
        return {(r.method, r.path): r.handler for r in self._routes() if self.release >= r.since}

    def handle(self, exchange: HttpExchange) -> None:
        """Answer one request, now or in a task."""
        route = self._handlers.get((exchange.method, self._path(exchange)))
        if route is None:
            known_path = any(exchange.path == path for _, path in self._handlers)
            status, why = (405, "Method Not Allowed") if known_path else (404, "Not Found")
            exchange.send_json({"detail": why}, status)
            return
        try:
            waiting = route(exchange)
        except Refusal as refusal:
            self._refuse(exchange, refusal)
            return
        if waiting is not None:
            task = asyncio.ensure_future(self._wait(exchange, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _path(self, exchange: HttpExchange) -> str:
        return exchange.path

    async def _wait(self, exchange: HttpExchange, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        except Refusal as refusal:
            self._refuse(exchange, refusal)

    def _model_card(self, owner: str, root: str) -> dict[str, object]:
        now = int(time.time())
        return {"id": self.model, "object": "model", "created": now, "owned_by": owner, "root": root, "parent": None}
