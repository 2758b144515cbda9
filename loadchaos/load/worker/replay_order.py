"""Order of a replay: which recorded request is due, by cause or by time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from loadchaos.profile.request_trace import TraceSend

Event = tuple[str, str, int]
"""Request, `begin`, `token` or `end`, and the number of the token (1 for other events)."""


class ReplayOrder:
    """One round of a replay. `next_due_ns` is None while all requests left wait for others. A request without a cause is
    due at its time. One with causes is due after the last of them, with its delay.
    """

    def __init__(self, sends: Sequence[TraceSend], begin_ns: int, speed: float = 1.0) -> None:
        self._speed = speed
        self._due: list[tuple[int, int]] = []  # (time, position)
        self._missing: dict[int, set[Event]] = {}
        self._latest_ns: dict[int, int] = {}
        self._waiting: dict[Event, list[tuple[int, float]]] = {}
        for position, send in enumerate(sends):
            causes = {(c.request, c.event, c.token if c.event == "token" else 1): c.delay_s for c in send.after}
            if not causes:
                heapq.heappush(self._due, (begin_ns + int(send.at_s / speed * 1e9), position))
                continue
            self._missing[position] = set(causes)
            for event, delay_s in causes.items():
                self._waiting.setdefault(event, []).append((position, delay_s))
        self._watched = {event[0] for event in self._waiting if event[1] == "token"}

    @property
    def done(self) -> bool:
        return not self._due and not self._missing

    @property
    def next_due_ns(self) -> int | None:
        """Time of the next request; None while all wait for others."""
        return self._due[0][0] if self._due else None

    def pop_due(self) -> tuple[int, int]:
        return heapq.heappop(self._due)

    def waits_for_tokens(self, request: str) -> bool:
        return request in self._watched

    def note(self, event: Event, at_ns: int) -> bool:
        """Note an event. Returns True if it makes a request due."""
        released = False
        for position, delay_s in self._waiting.pop(event, ()):
            missing = self._missing[position]
            missing.discard(event)
            due_ns = max(self._latest_ns.get(position, 0), at_ns + int(delay_s / self._speed * 1e9))
            self._latest_ns[position] = due_ns
            if not missing:
                del self._missing[position]
                heapq.heappush(self._due, (due_ns, position))
                released = True
        return released

    def note_tokens(self, request: str, tokens: int, at_ns: int) -> bool:
        """Note that a request has this many tokens. Returns True if a request is due."""
        events = [e for e in self._waiting if e[0] == request and e[1] == "token" and e[2] <= tokens]
        return sum(self.note(event, at_ns) for event in events) > 0

    def note_end(self, request: str, at_ns: int) -> bool:
        """Note the end of a request; tokens that it did not send will not come."""
        events = [e for e in self._waiting if e[0] == request]
        return sum(self.note(event, at_ns) for event in events) > 0
