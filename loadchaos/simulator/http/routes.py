"""Routes: dispatch a request by method and path to its handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from loadchaos.simulator.http.server import HttpExchange

Route = Callable[[HttpExchange], Awaitable[None] | None]
"""Answers at once, or returns an awaitable that answers."""
R = TypeVar("R", bound=Exception)


class Routes(Generic[R]):
    """The endpoints of an API. `refuse` answers with a `refusal` exception that a handler raised."""

    def __init__(
        self, table: Mapping[tuple[str, str], Route], refusal: type[R], refuse: Callable[[HttpExchange, R], None]
    ) -> None:
        self._table = table
        self._paths = {path for _, path in table}
        self._refusal, self._refuse = refusal, refuse
        self._tasks: set[asyncio.Task[None]] = set()

    def endpoints(self) -> list[tuple[str, str]]:
        return sorted((path, method) for method, path in self._table)

    def answer(self, exchange: HttpExchange, path: str) -> None:
        route = self._table.get((exchange.method, path))
        if route is None:
            known_path = exchange.path in self._paths
            exchange.send(
                405 if known_path else 404, b'{"detail":"%b"}' % (b"Method Not Allowed" if known_path else b"Not Found")
            )
            return
        try:
            waiting = route(exchange)
        except self._refusal as refusal:
            self._refuse(exchange, refusal)
            return
        if waiting is not None:
            task = asyncio.ensure_future(self._wait(exchange, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _wait(self, exchange: HttpExchange, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        except self._refusal as refusal:
            self._refuse(exchange, refusal)
