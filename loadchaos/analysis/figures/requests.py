"""Fold requests into outcomes by traffic, and what is in flight. Memory grows with what is open, not with the run."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from loadchaos.analysis.incidents.record import SentRequest
from loadchaos.core.goodput import WAIT, expected_of, had_to_succeed, is_judged
from loadchaos.core.histogram import LogHistogram
from loadchaos.core.latency import LATE_NS
from loadchaos.core.ledger.rows import BeginRow, EndRow, MissedRow
from loadchaos.core.model import BLAMELESS
from loadchaos.core.units import NS_PER_S

_MOST_ADMITTED = 200
_LATE_SHARE = 0.1
_NOT_CONNECTED = frozenset({"connect_error", "reset"})
"""Outcomes of a request whose second connection failed, too."""


@dataclass(frozen=True, slots=True)
class Part:
    """A share as two counts: `n` of `whole`."""

    n: int
    whole: int

    @property
    def share(self) -> float | None:
        return self.n / self.whole if self.whole else None


class Sent(NamedTuple):
    """One request as its begin row has it."""

    id: str
    step: int
    traffic: str
    sent_ns: int
    tokens: int | None
    images: int
    edge: int | None
    image_file: str = ""

    @classmethod
    def of(cls, row: BeginRow | EndRow, sent_ns: int, tokens: int | None) -> Sent:
        return cls(
            id=str(row["id"]),
            step=int(row.get("step") or 0),
            traffic=str(row.get("traffic", "")),
            sent_ns=sent_ns,
            tokens=tokens,
            images=int(row.get("images") or 0),
            edge=row.get("edge"),
            image_file=str(row.get("image_file") or ""),
        )

    def record(self, now_ns: int) -> SentRequest:
        """The request as in incident.json, where it was in flight until `now_ns`."""
        fields = self._asdict()
        return SentRequest(age_s=round((now_ns - fields.pop("sent_ns")) / NS_PER_S, 3), **fields)


class PhaseStats:
    """Generator statistics of one phase: send delays and missed requests."""

    __slots__ = ("e2e", "ended", "lag", "no_slot")

    def __init__(self) -> None:
        self.lag, self.e2e = LogHistogram(), LogHistogram()
        self.ended = self.no_slot = 0

    def limit_reason(self) -> str | None:
        late_ns = self.late_ns()
        return f"median generator delay {late_ns / 1e6:.0f} ms" if late_ns is not None else None

    def late_ns(self) -> float | None:
        """Median send delay of a generator that is late: beyond `LATE_NS` and a tenth of an answer; None: it is not."""
        lag, e2e = self.lag.quantile(0.5), self.e2e.quantile(0.5)
        late = lag is not None and e2e is not None and lag > max(_LATE_SHARE * e2e, LATE_NS)
        return lag if late else None

    def on_end(self, row: EndRow) -> None:
        self.ended += 1
        if row.get("outcome") == "ok":
            self.e2e.add(row["at_ns"] - (row.get("sent_ns") or row["at_ns"]))

    def slots_reason(self, limit: str) -> str | None:
        """Reason why requests of this phase were not sent: `limit` was reached. The limit is the profile's, and the
        server reached it by slow answers.
        """
        if self.no_slot <= 0.01 * (self.ended + self.no_slot):
            return None
        e2e = self.e2e.quantile(0.5)
        slow = f"answers took {e2e / NS_PER_S:.3g} s (median)" if e2e is not None else "no request was answered"
        missed = f"{self.no_slot} request{'s were' if self.no_slot > 1 else ' was'} not sent"
        return f"{limit} was reached, as {slow}: {missed}"


class TrafficFigures:
    """Counts of the requests of one kind of traffic."""

    __slots__ = (
        "begun", "came_ok", "completion_tokens", "due_ok", "failed", "images", "images_answered", "in_flight", "judged",
        "outcomes", "planned_tokens", "prompt_tokens", "shed",
    )  # fmt: skip

    def __init__(self) -> None:
        self.begun = self.in_flight = 0
        self.outcomes: Counter[str] = Counter()
        self.due_ok = self.came_ok = 0  # requests that had to succeed, and did
        self.shed = 0  # of those due to succeed
        self.judged = self.failed = 0  # requests with an outcome, and an unexpected one
        self.images = self.images_answered = 0
        self.planned_tokens = 0  # prompt tokens sent, as planned
        self.prompt_tokens = self.completion_tokens = 0  # as the server counted them

    def on_begin(self, row: BeginRow) -> None:
        self.begun += 1
        self.images += int(row.get("images") or 0)
        self.planned_tokens += int(row.get("tokens") or 0)

    def on_end(self, row: EndRow) -> None:
        outcome, expect = str(row.get("outcome")), expected_of(row)
        self.outcomes[outcome] += 1
        self.prompt_tokens += int(row.get("prompt_tokens") or 0)
        self.completion_tokens += int(row.get("completion_tokens") or 0)
        if outcome == "ok":
            self.images_answered += int(row.get("images") or 0)
        if is_judged(row):
            self.judged += 1
            self.failed += outcome not in expect
            if had_to_succeed(row):
                self.due_ok += 1
                self.came_ok += outcome in expect
                self.shed += outcome == "shed" and outcome not in expect


class RequestStats:
    """All requests of a run. `in_flight` maps ids to begun requests; `recent_ends` is bounded."""

    def __init__(self) -> None:
        self.traffic: defaultdict[str, TrafficFigures] = defaultdict(TrafficFigures)
        self.outcomes: dict[str, Counter[str]] = {}
        """Outcomes by traffic, in the order in which each kind of traffic had its first one."""
        self.phases: defaultdict[int, PhaseStats] = defaultdict(PhaseStats)
        self.in_flight: dict[str, Sent] = {}
        self.recent_ends: deque[tuple[int, Sent, bool]] = deque(maxlen=20_000)  # ended_ns, what, well
        self.missed: Counter[str] = Counter()
        self.stale = 0
        """Connections kept alive that were closed before a request was sent on them: a new one was used."""
        self.resent = 0
        """Requests sent again, as their idle connection was closed before a byte of the answer came."""
        self.resent_hidden = 0
        """Of these, the ones that a second connection saved: no outcome shows what the server or a gateway dropped."""
        self.begun = 0
        self.later = 0
        """Requests that the plan does not count: those of sessions after their first one, and those sent again."""
        self.sent_again = 0
        """Refusals with 429 after which the request was sent again (`on_429: wait`)."""
        self.send_lag_ns = 0  # of all requests sent: sent minus due
        self.shed_by_attacks = 0  # refused because an attack made the server refuse
        self.first_sent_ns: int | None = None

    def on_begin(self, row: BeginRow) -> None:
        sent = Sent.of(row, int(row["at_ns"]), row.get("tokens"))
        self.begun += 1
        traffic = self.traffic[sent.traffic]
        traffic.on_begin(row)
        traffic.in_flight += sent.id not in self.in_flight
        self.in_flight[sent.id] = sent
        if self.first_sent_ns is None or sent.sent_ns < self.first_sent_ns:
            self.first_sent_ns = sent.sent_ns
        due_ns = row.get("due_ns")
        if due_ns is not None and not row.get("tries"):
            lag_ns = max(0, sent.sent_ns - int(due_ns))
            self.send_lag_ns += lag_ns
            self._phase(row).lag.add(lag_ns)

    def on_end(self, row: EndRow) -> Sent | None:
        """Fold an end row; gives its begun request, None if missed or unknown."""
        outcome, traffic = str(row.get("outcome")), str(row.get("traffic", ""))
        self._with_outcome(traffic).on_end(row)
        if outcome == "missed":
            self._miss(row, str((row.get("detail") or {}).get("why", "")), 1)
            return None
        sent = self.in_flight.pop(str(row.get("id")), None)
        if sent is not None:
            self.traffic[sent.traffic].in_flight -= 1
            self.recent_ends.append((int(row["at_ns"]), sent, outcome in BLAMELESS))
        if detail := row.get("detail"):
            self.sent_again += WAIT in detail
            self.stale += int(detail.get("stale_retry") or 0)
            resent = int(detail.get("resent") or 0)
            self.resent += resent
            self.resent_hidden += resent if outcome not in _NOT_CONNECTED else 0
        self._phase(row).on_end(row)
        return sent

    def on_missed(self, row: MissedRow) -> None:
        n = int(row.get("count") or 0)
        self._with_outcome(str(row.get("traffic", ""))).outcomes["missed"] += n
        self._miss(row, str(row.get("why", "")), n)

    def finish(self) -> int:
        left, self.in_flight = self.in_flight, {}
        for sent in left.values():
            traffic = self._with_outcome(sent.traffic)
            traffic.outcomes["unfinished"] += 1
            traffic.in_flight -= 1
        return len(left)

    def _with_outcome(self, name: str) -> TrafficFigures:
        self.outcomes.setdefault(name, self.traffic[name].outcomes)
        return self.traffic[name]

    def total(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for outcomes in self.outcomes.values():
            found.update(outcomes)
        return found

    def ok_parts(self, shed_allowed: Container[str] = ()) -> dict[str, Part]:
        """Count requests that had to succeed and did, by traffic ("": all). A request that the server shed had to
        succeed, unless its traffic (or "" for all) is in `shed_allowed`.
        """
        parts = {
            name: Part(traffic.came_ok, traffic.due_ok - traffic.shed * ("" in shed_allowed or name in shed_allowed))
            for name in self.outcomes
            for traffic in [self.traffic[name]]
        }
        return {**parts, "": sum_of(parts.values())}

    def error_parts(self) -> dict[str, Part]:
        """Count requests with an unexpected outcome, by traffic ("": all). The whole is all requests with an outcome.
        Requests that we aborted are in neither number.
        """
        parts = {name: Part(self.traffic[name].failed, self.traffic[name].judged) for name in self.outcomes}
        return {**parts, "": sum_of(parts.values())}

    def counts_so_far(self) -> dict[str, dict[str, int]]:
        begun = {name: traffic for name, traffic in self.traffic.items() if traffic.begun}
        return {name: {"begun": traffic.begun, "ok": traffic.outcomes["ok"]} for name, traffic in begun.items()}

    def in_flight_at(self, ns: int) -> list[Sent]:
        """Requests in flight at `ns`, oldest first. Clients may get errors before the first sign of a death: then the
        first failed request in the second before `ns` is the moment that counts. Requests sent after that were never in
        flight.
        """
        ns = min((at_ns for at_ns, _, well in self.recent_ends if not well and ns - NS_PER_S <= at_ns < ns), default=ns)
        ended: Iterable[Sent] = (sent for at_ns, sent, _ in self.recent_ends if at_ns >= ns)
        return sorted((s for s in (*ended, *self.in_flight.values()) if s.sent_ns <= ns), key=lambda s: s.sent_ns)

    def admitted_until(self, ns: int) -> list[Sent]:
        known = {s.id: s for s in (*(s for _, s, _ in self.recent_ends), *self.in_flight.values()) if s.sent_ns <= ns}
        return sorted(known.values(), key=lambda s: s.sent_ns)[-_MOST_ADMITTED:]

    def _miss(self, row: MissedRow | EndRow, why: str, n: int) -> None:
        self.missed[why] += n
        if why == "no_slot":
            self._phase(row).no_slot += n

    def _phase(self, row: BeginRow | EndRow | MissedRow) -> PhaseStats:
        return self.phases[int(row.get("phase") or 0)]


def sum_of(parts: Iterable[Part]) -> Part:
    found = list(parts)
    return Part(sum(p.n for p in found), sum(p.whole for p in found))
