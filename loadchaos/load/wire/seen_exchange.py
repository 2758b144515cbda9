"""Exchange of somebody else's client: a proxy passes its bytes on, and this reads them as those of the load are read."""

from __future__ import annotations

from collections.abc import Mapping

from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.outcome_rules import End
from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.wire.request import Request, WireTimeouts
from loadchaos.load.wire.sockets import Origin, Slot

_NOWHERE = Origin("http://127.0.0.1")
_ENDS: Mapping[str, tuple[End, str]] = {
    "refused": ("unreached", "the server does not accept connections"),
    "client_closed": ("hung_up", ""),
    "client_reset": ("hung_up", ""),
    "upstream_reset": ("cut", "the server reset the connection"),
    "not_http": ("not_http", "the answer is not HTTP/1"),
}
_STALE = "the server closed the idle connection as the client used it again: a client sends such a request once more"


class SeenExchange(Exchange):
    """An exchange without a connection of its own. `number` is that of the client's connection, which was idle for
    `idle_ns` before, or new (None). `excess`: bytes that belong to the next answer of the connection.
    """

    __slots__ = ("_idle_ns",)

    def __init__(self, request: Request, progress: Progress, begun_ns: int, number: int, idle_ns: int | None) -> None:
        request.fresh = True  # it takes no connection from a slot
        super().__init__(request, Slot(_NOWHERE), progress, begun_ns)
        self.begun_ns = self.sent_ns = self._sent_all_ns = begun_ns
        self.connection_number, self.reused = number, idle_ns is not None
        self._idle_ns = idle_ns or 0
        self._bytes_out = len(request.body)

    def end_row(self) -> EndRow:
        """Make the end row, with the size of the text and its tokens: without usage, the limit if the answer ended by it."""
        row = super().end_row()
        answer = self.answer
        if answer is not None and answer.has_text and not answer.has_calls and not answer.reasoning_tokens():
            tokens = answer.completion_tokens
            if tokens is None and answer.finish_reason == "length" and len(answer.finish) == 1:
                tokens = answer.rules.limit
            if tokens:
                size = len(answer.text.encode("utf-8", "replace"))
                row["detail"] = {**row["detail"], "text_bytes": size, "text_tokens": tokens}
        return row

    def read(self, at_ns: int, data: bytes) -> None:
        self._feed(at_ns, data)

    @property
    def excess(self) -> bytes:
        return self._parser.excess

    def end_by(self, reason: str) -> None:
        """End it with its connection, for a reason of the proxy."""
        if self.ended:
            return
        stale = self.reused and self.first_byte_ns is None and self._idle_ns > WireTimeouts().retry_idle_ns
        if stale and reason.startswith("upstream"):
            self._finish("hung_up", _STALE)
        elif reason == "upstream_closed":
            self._on_peer_closed()
        else:
            self._finish(*_ENDS[reason])
