"""Time that waiting prompts may take, learned from first tokens.

A server computes waiting prompts without a token for anybody, and behind a gateway nothing else shows that it works. How
long that may take follows from its own times to first token. Until enough of them are known it is a fixed time for each
prompt token and image.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from loadchaos.analysis.state.limits import MOST_PREFILL_NS
from loadchaos.core.ledger.rows import BeginRow, EndRow, HeartbeatRow
from loadchaos.core.model import READS_AT_ONCE
from loadchaos.core.units import NS_PER_MS, NS_PER_S

_PER_TOKEN_NS, _PER_IMAGE_NS = 1 * NS_PER_MS, 1 * NS_PER_S
_SILENCE_NS = 500 * NS_PER_MS
_FEWEST, _MOST = 12, 200  # first tokens
_SLOWEST = 0.1
_MARGIN = 1.5
_LEAST_SHARE = 0.05  # a prefix cache may have held the prompts that were seen, and not those that wait
_FLOW_GAP_NS, _FLOW_NS = 3 * NS_PER_S, 10 * NS_PER_S  # tokens flow: no silence of this length in this time
_BEYOND = 2  # times the most that has waited


class LearnedTime:
    """Share of the fixed time that a server needs, from its first tokens."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=_MOST)  # shares, and the fixed times that they are of
        self._most_ns = 0

    def learn(self, fixed_ns: int, took_ns: int, silent_ns: int) -> None:
        """Fold one first token, `took_ns` after its request was sent. Time in which other requests had tokens may be
        time in a queue: it counts up to the fixed time only.
        """
        if fixed_ns > 0:
            self._samples.append((max(silent_ns, min(took_ns, fixed_ns)) / fixed_ns, fixed_ns))
            self._most_ns = max(self._most_ns, fixed_ns)

    @property
    def known(self) -> bool:
        return len(self._samples) >= _FEWEST

    def allowed_ns(self, fixed_ns: int) -> int:
        """Time for prompts that have this fixed time. What is beyond twice the most that has ever waited has its fixed
        time at least.
        """
        if not self.known:
            return fixed_ns
        slow = self._slow_share()
        share = max(_LEAST_SHARE, _MARGIN * slow)
        known_ns = min(fixed_ns, _BEYOND * self._most_ns)
        return round(share * known_ns + max(share, 1.0) * (fixed_ns - known_ns))

    def _slow_share(self) -> float:
        """Share of the slowest tenth of all prompts; long prompts weigh more."""
        left_ns = (1 - _SLOWEST) * sum(fixed_ns for _, fixed_ns in self._samples)
        for share, fixed_ns in sorted(self._samples):
            left_ns -= fixed_ns
            if left_ns <= 0:
                return share
        return 1.0


class Prompts(NamedTuple):
    """Fixed times of waiting prompts: of their tokens, of their images."""

    tokens_ns: int = 0
    images_ns: int = 0


class _Wait(NamedTuple):
    ahead: Prompts  # with its own prompt
    own_ns: int
    sent_ns: int | None  # None: it teaches nothing


class PrefillTime:
    """Learns from begins, ends and heartbeats of our requests."""

    def __init__(self) -> None:
        self._tokens, self._with_images = LearnedTime(), LearnedTime()
        self._waiting: dict[str, Prompts] = {}  # by worker
        self._in_flight: dict[str, _Wait] = {}
        self._token_ns = 0
        self._silences: deque[tuple[int, int]] = deque(maxlen=_MOST)
        self._flowing: deque[tuple[int, Prompts]] = deque()  # what waited while tokens flowed
        self._beside = Prompts()  # the most beside which they did
        self._longest_beside_ns = 0  # longest prompt that was computed meanwhile

    def on_begin(self, row: BeginRow) -> None:
        worker, before = str(row.get("file", "")), self._waiting.get(str(row.get("file", "")), Prompts())
        own = Prompts(int(row.get("tokens") or 0) * _PER_TOKEN_NS, _PER_IMAGE_NS * bool(row.get("images")))
        self._waiting[worker] = _sum([before, own])
        teaches = row.get("behaviour", "plain") in READS_AT_ONCE
        ahead = _sum(self._waiting.values())
        self._in_flight[row.get("id", "")] = _Wait(ahead, own.tokens_ns, row["at_ns"] if teaches else None)

    def on_heartbeat(self, row: HeartbeatRow, worker: str) -> Prompts:
        """Fold a heartbeat; gives the prompts that wait at its worker."""
        at_ns, images_ns = row["at_ns"], int(row.get("images_in_prefill") or 0) * _PER_IMAGE_NS
        waiting = self._waiting[worker] = Prompts(int(row.get("waiting_tokens") or 0) * _PER_TOKEN_NS, images_ns)
        if at_ns - self._token_ns > _FLOW_GAP_NS:
            self._flowing.clear()
        if int(row.get("tokens") or 0) > 0:
            if self._token_ns and at_ns - self._token_ns >= _SILENCE_NS:
                self._silences.append((self._token_ns, at_ns))
            self._token_ns = max(self._token_ns, at_ns)
        self._flowing.append((at_ns, _sum(self._waiting.values())))
        while at_ns - self._flowing[0][0] > _FLOW_NS:
            self._flowing.popleft()
        if at_ns - self._flowing[0][0] > 0.9 * _FLOW_NS:
            self._beside = max(self._beside, min((p for _, p in self._flowing), key=_total), key=_total)
        return waiting

    def on_end(self, row: EndRow) -> None:
        wait, first_ns = self._in_flight.pop(row.get("id", ""), None), row.get("first_token_ns")
        if wait is None or wait.sent_ns is None or first_ns is None or int(row.get("chunks") or 0) < 2:
            return
        tokens_ns = wait.ahead.tokens_ns - int(row.get("cached_tokens") or 0) * _PER_TOKEN_NS
        silences = takewhile(lambda s: s[1] > (wait.sent_ns or 0), reversed(self._silences))
        silent = [min(to, first_ns) - max(since, wait.sent_ns) for since, to in silences]
        if (open_ns := first_ns - max(wait.sent_ns, self._token_ns)) >= _SILENCE_NS:  # its heartbeat is still to come
            silent.append(open_ns)
        if max(silent, default=0) <= _FLOW_GAP_NS:
            self._longest_beside_ns = max(self._longest_beside_ns, wait.own_ns)
        learned = self._with_images if wait.ahead.images_ns else self._tokens
        learned.learn(tokens_ns + wait.ahead.images_ns, first_ns - wait.sent_ns, sum(ns for ns in silent if ns > 0))

    def forget_waiting(self) -> None:
        self._in_flight = {id_: wait._replace(sent_ns=None) for id_, wait in self._in_flight.items()}

    def allowed_ns(self, prompts: Iterable[Prompts]) -> int:
        """Time that these prompts may take without a token, `MOST_PREFILL_NS` at most. Those beside which tokens flowed do
        not count, unless one is longer than any that was computed meanwhile.
        """
        waiting = _sum(prompts)
        learned = self._tokens if self._tokens.known and not waiting.images_ns else self._with_images
        longest_ns = max((wait.own_ns for wait in self._in_flight.values()), default=0)
        known = learned.known and longest_ns <= 1.25 * self._longest_beside_ns
        beside = self._beside if known else Prompts()
        parts = (waiting.tokens_ns - beside.tokens_ns, waiting.images_ns - beside.images_ns)
        return min(learned.allowed_ns(sum(max(0, ns) for ns in parts)), MOST_PREFILL_NS)


def _sum(prompts: Iterable[Prompts]) -> Prompts:
    found = list(prompts)
    return Prompts(sum(p.tokens_ns for p in found), sum(p.images_ns for p in found))


def _total(prompts: Prompts) -> int:
    return prompts.tokens_ns + prompts.images_ns
