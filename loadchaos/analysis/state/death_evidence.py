"""What speaks for a death: processes that are gone, refused connections, /health, answers, the log, a supervisor.

A proof makes a server dead; a sign makes it dying until it becomes a proof, or tokens show that it was nothing. Over the
network one sign is none: refused counts from the second probe on and only while no token of ours arrives.
"""

from __future__ import annotations

from loadchaos.analysis.state.signals import MS, NetworkSignals, ProcessSignals, S, TrafficSignals
from loadchaos.core.ledger.rows import HeardRow

_TEXT_BESIDE_NS = 2 * S
_TEXT_ALONE_NS = 10 * S  # a server that says its engine is dead, /health 200: the zombie of vLLM 0.8
_LATER_NS = 300 * MS
_LAST_WORD_NS = 300 * MS  # how long the log is waited for, where it may yet say that the server was told to end
_NEAR_NS = 10 * S

Sign = tuple[int, str]  # when it was first there, and in words


class LogSignals:
    """What the log said of an end, in the few words that are looked for while it is written."""

    def __init__(self) -> None:
        self._listening = False  # there is a log, and somebody listens
        self._ending: Sign | None = None
        self._failing_ns: int | None = None
        self.dead: Sign | None = None  # the engine is gone, in words that it has for nothing else

    def feed(self, row: HeardRow) -> None:
        """Fold a `heard` row."""
        self._listening = True
        if row.get("what") == "ending":
            self._ending = (int(row["at_ns"]), f"the log says: {row.get('text')}")
        elif row.get("what") == "failing":
            self._failing_ns = int(row["at_ns"])
        elif row.get("what") == "dead":
            self._failing_ns = int(row["at_ns"])
            if self.dead is None or int(row["at_ns"]) - self.dead[0] > _NEAR_NS:  # it says so again and again
                self.dead = (int(row["at_ns"]), f"the log says: {row.get('text')}")

    def told_to_end(self, since_ns: int) -> Sign | None:
        """The word of an end in order near `since_ns`, None if there is none or the log told of a failure before it."""
        if self._ending is None or abs(self._ending[0] - since_ns) > _NEAR_NS:
            return None
        failed = self._failing_ns is not None and 0 <= self._ending[0] - self._failing_ns < _NEAR_NS
        return None if failed else self._ending

    def may_yet_say(self, since_ns: int, now_ns: int) -> bool:
        """Whether the log may still say in a moment why a process went at `since_ns`."""
        silent = all(ns is None or ns < since_ns - S for ns in (self._failing_ns, self._ending and self._ending[0]))
        return self._listening and silent and now_ns - since_ns < _LAST_WORD_NS

    def forget(self) -> None:
        """A new life begins."""
        self._ending = self._failing_ns = self.dead = None


class DeathEvidence:
    """Asks the instruments of one replica; `sole`: our traffic goes to it alone, so that our tokens speak for it."""

    def __init__(
        self, traffic: TrafficSignals, network: NetworkSignals, processes: ProcessSignals, *, sole: bool
    ) -> None:
        self._traffic, self._network, self._processes, self._sole = traffic, network, processes, sole
        self.log_death: Sign | None = None
        self.supervised: Sign | None = None  # the end that a supervisor tells
        self.heard = LogSignals()

    def forget(self) -> None:
        """It is back: what spoke for its death is over."""
        self._traffic.forget_death()
        self.log_death = self.supervised = None
        self.heard.forget()

    def gone(self, now_ns: int, worked_ns: int) -> tuple[list[Sign], list[Sign]]:
        """(proofs, signs) of processes and containers that are gone; `worked_ns`: when progress was last seen."""
        proofs = [self.supervised] if self.supervised is not None else []
        signs: list[Sign] = []
        for at_ns, pid, role, name in self._processes.gone:
            sign = (at_ns, f"process {name or role} (pid {pid}, {role}) is gone")
            if role in ("engine_core", "api_server"):
                # A server that was told to end loses its engine core as a dying one does.
                (signs if self.heard.may_yet_say(at_ns, now_ns) else proofs).append(sign)
            elif role == "worker" and worked_ns <= at_ns + S + _LATER_NS:
                signs.append(sign)
        return proofs, signs

    def told(self, now_ns: int, worked_ns: int, *, knows_death: bool) -> tuple[list[Sign], list[Sign]]:
        """(proofs, signs) of the network, of the answers to our requests and of the log."""
        proofs, signs = self._network_says(now_ns, knows_death=knows_death)
        told = []
        traffic = self._traffic
        if traffic.dead_text_ns is not None and self._sole:
            n = traffic.dead_texts
            told.append((traffic.dead_text_ns, f"{n} answer{'s' * (n != 1)} said that the engine is dead"))
        if self.log_death is not None:
            told.append(self.log_death)
        for at_ns, text in told:
            if worked_ns > at_ns + S + _LATER_NS:
                continue  # tokens came long after it was told: not (or no longer) true
            limit_ns = _TEXT_BESIDE_NS if len(told) + len(signs) > 1 else _TEXT_ALONE_NS
            (proofs if now_ns - at_ns >= limit_ns else signs).append((at_ns, text))
        if (last := self._last_words(now_ns, worked_ns)) is not None:
            (proofs if now_ns - last[0] >= _LATER_NS else signs).append(last)
        return proofs, signs

    def last_words_of(self, ns: int) -> bool:
        """Whether the log told, near `ns`, that the engine is gone: a server may say /health 200 long after it."""
        return self.heard.dead is not None and abs(self.heard.dead[0] - ns) <= _NEAR_NS

    def _last_words(self, now_ns: int, worked_ns: int) -> Sign | None:
        """What the log says of an engine that is gone, once requests break off beside it and no token comes.

        The words alone prove nothing: a log may quote a prompt.
        """
        dead, broken = self.heard.dead, self._traffic.broken
        if dead is None or not self._sole or len(broken) < 2 or broken[0] < dead[0] - _TEXT_BESIDE_NS:
            return None
        if worked_ns > dead[0] + 2 * _LATER_NS or not self._silent_since(dead[0], now_ns):
            return None
        return dead[0], f"{dead[1]}; requests fail and no tokens arrive"

    def _network_says(self, now_ns: int, *, knows_death: bool) -> tuple[list[Sign], list[Sign]]:
        network = self._network
        proofs: list[Sign] = []
        signs: list[Sign] = []
        if network.refused_ns is not None:
            first, _, n = network.refused_ns
            sure = network.refused_twice() and self._silent_since(first, now_ns)
            (proofs if sure else signs).append((first, f"connection refused ({n} probes)"))
        if network.says_dead(knows_death) and network.unhealthy_ns is not None:
            first, newest, n = network.unhealthy_ns
            sure = newest - first >= 50 * MS and self._silent_since(first, now_ns)
            (proofs if sure else signs).append((first, f"/health returned {network.unhealthy_status} ({n} times)"))
        return proofs, signs

    def _silent_since(self, ns: int, now_ns: int) -> bool:
        """No token of ours after `ns`; where our traffic does not speak for this replica it is taken as such."""
        return not self._sole or self._traffic.silent_since(ns, now_ns)
