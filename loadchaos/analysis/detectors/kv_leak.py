"""Detect requests and KV cache still held after the load.

Only judged where clients aborted as planned and the server's own gauges were read again long enough afterwards. A note says
what could not be judged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from loadchaos.analysis.detectors.base import Detector, Finding
from loadchaos.analysis.detectors.silent_faults import RELEASE
from loadchaos.analysis.failure import Failure, evidence
from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.core.ledger.rows import (
    ConfigurationRow,
    EndRow,
    LaunchRow,
    MetricsRow,
    PreflightRow,
    QuestionRow,
    RunRow,
    StateRow,
)
from loadchaos.core.limits import SCRAPE_EVERY_S
from loadchaos.core.units import NS_PER_S, counted
from loadchaos.server.dialects import DIALECTS, SLOWEST_GAUGES_S, UNKNOWN, Dialect

# vLLM frees the request of a closed connection within 0.1 s.
_SOON_NS = int(2 * SCRAPE_EVERY_S * NS_PER_S)
_SLACK_BLOCKS = 2.5
"""Use at rest is known to the block; some versions keep one or two for themselves from the first request on."""
_SLACK_SHARE = 0.001
"""Used if the number of blocks is unknown."""
_OTHER_SERVER = ("dead", "restarting", "terminated", "hung")
"""After one of these states the use before the load is no reference for the use after it."""
_CACHING = re.compile(r"enable_prefix_caching['\"]?\s*[=:]\s*(True|False)")


class _Reading(NamedTuple):
    at_ns: int
    busy: float
    kv: float | None


@dataclass
class _Engine:
    kv_before: float | None = None  # the newest reading before the load with nothing running, else the least
    at_rest: bool = False
    blocks: float | None = None
    readings: list[_Reading] = field(default_factory=list)  # after the load, until our questions after it
    page: Mapping[str, float] = field(default_factory=dict)
    same_since_ns: int = 0  # when the page became what it is

    def feed_page(self, at_ns: int, page: Mapping[str, float]) -> None:
        if page != self.page:
            self.page, self.same_since_ns = page, at_ns

    def frozen(self, answered_ns: int) -> bool:
        """True if the page is that of a time before an answer, which its counters had to show."""
        late_ns = int((SLOWEST_GAUGES_S + 2 * SCRAPE_EVERY_S) * NS_PER_S)
        return any(name.endswith("_total") for name in self.page) and self.same_since_ns < answered_ns - late_ns

    @property
    def newest(self) -> _Reading:
        return self.readings[-1] if self.readings else _Reading(0, 0.0, None)

    def feed_before_load(self, kv: float, *, busy: bool) -> None:
        """Fold a reading before the load. Gauges may be old, and show our own probes: then the least is a bound."""
        if busy and self.at_rest:
            return
        least = kv if self.kv_before is None else min(kv, self.kv_before)
        self.kv_before, self.at_rest = least if busy else kv, not busy


class KvLeakDetector(Detector):
    """Judges at the end of the run, from gauges before and after the load."""

    def __init__(self) -> None:
        super().__init__()
        self._engines: dict[tuple[str, str], _Engine] = {}
        self._load_begun = False
        self._load_end_ns: int | None = None
        self._asked = False  # questions after the load: later readings show them
        self._aborted = 0
        self._answered_ns = 0
        self._other_clients = False
        self._metrics_seen = False
        self._down = False  # when the load ended
        self._launched = False  # a server just launched holds nothing, even if its gauges were not read in time
        self._caching: bool | None = None  # True with a prefix cache, None where it is not known

    def on_end(self, row: EndRow) -> None:
        self._aborted += row.get("outcome") == "aborted"
        if row.get("outcome") == "ok":
            self._answered_ns = max(self._answered_ns, int(row["at_ns"]))

    def on_run(self, row: RunRow) -> None:
        self._load_begun = self._load_begun or row.get("what") == "load_begin"
        if row.get("what") == "load_end":
            self._load_end_ns = int(row["at_ns"])

    def on_preflight(self, row: PreflightRow) -> None:
        if row.get("name") == "others":
            self._other_clients = not row.get("ok")

    def on_state(self, row: StateRow) -> None:
        if self._load_end_ns is not None:
            return
        self._down = row.get("to") in _OTHER_SERVER
        if self._down:
            self._engines.clear()
            self._launched = False

    def on_question(self, row: QuestionRow) -> None:
        if row["when"] != "after":
            return
        self._asked = True  # later readings show our questions
        for engine in self._engines.values():
            engine.readings = [reading for reading in engine.readings if reading.at_ns < int(row["sent_ns"])]

    def on_launch(self, row: LaunchRow) -> None:
        if row["what"] != "start":
            return
        self._launched = True
        command = [str(part) for part in row.get("command") or ()]
        off_by_default = [d.prefix_cache_flag for d in DIALECTS.values() if d.prefix_cache_flag]
        self._caching = next((flag in command for word, flag in off_by_default if word in command), None)

    def on_configuration(self, row: ConfigurationRow) -> None:
        if logged := _CACHING.search(str(row.get("flags") or "")):
            self._caching = logged[1] == "True"

    def on_metrics(self, row: MetricsRow) -> None:
        values = row.get("values") or {}
        if "requests_running" not in values:
            return
        self._metrics_seen = True
        engine = self._engines.setdefault((str(row.get("replica")), str(row.get("engine"))), _Engine())
        engine.feed_page(int(row["at_ns"]), values)
        engine.blocks = float(values["kv_blocks"]) if values.get("kv_blocks") else engine.blocks
        busy = float(values["requests_running"]) + float(values.get("requests_waiting") or 0)
        kv = float(values["kv_usage_ratio"]) if "kv_usage_ratio" in values else None
        if not self._load_begun and kv is not None:
            engine.feed_before_load(kv, busy=bool(busy))
        if self._load_end_ns is not None and not self._asked:
            engine.readings.append(_Reading(int(row["at_ns"]), busy, kv))

    @property
    def _dialect(self) -> Dialect:
        return DIALECTS.get(self._facts.dialect, UNKNOWN) if self._facts is not None else UNKNOWN

    def leaks(self) -> dict[str, tuple[str, str]]:
        """(failure id, text) of what each replica still holds. Empty where nothing is held or nothing is known."""
        found: dict[str, tuple[str, str]] = {}
        if self._load_end_ns is None or not self._aborted or self._other_clients or self._frozen:
            return found
        for (replica, _), engine in self._engines.items():
            refresh_ns = int(self._dialect.metrics_refresh_s * NS_PER_S)
            if engine.newest.at_ns - self._load_end_ns < max(_SOON_NS, refresh_ns + int(SCRAPE_EVERY_S * NS_PER_S)):
                continue
            if engine.newest.busy:
                found[replica] = "lost_requests_held", f"{counted(engine.newest.busy, 'request')} still in the server"
            elif self._kv_unknown(engine) is None and (held := self._held(engine)):
                found[replica] = "kv_leak", held
        return found

    @property
    def _frozen(self) -> bool:
        """True if no page changed though requests were answered: a cache before the server gives an old one."""
        return bool(self._engines) and all(e.frozen(self._answered_ns) for e in self._engines.values())

    def _held(self, engine: _Engine) -> str:
        share = (engine.newest.kv or 0.0) - (engine.kv_before or 0.0)
        blocks = engine.blocks or (self._facts and self._facts.kv_blocks)
        if share <= (_SLACK_BLOCKS / blocks if blocks else _SLACK_SHARE):
            return ""
        count = f" ({round(share * blocks):,} blocks)" if blocks else ""
        return f"{share:.1%} of the KV cache{count} held by no request"

    def _kv_unknown(self, engine: _Engine) -> str | None:
        counts = self._dialect.kv_gauge
        if not counts or engine.newest.kv is None:
            return "no gauge that drops when the server is idle"
        if counts == "requests and cache" and self._caching is not False:
            cached = "a prefix cache keeps blocks" if self._caching else "a prefix cache may keep blocks"
            return f"{cached}, and the gauge counts them"
        known = engine.kv_before is not None or self._launched
        return None if known else "not read before the load"

    def _read_after_load(self) -> list[_Engine]:
        end_ns = self._load_end_ns
        return [] if end_ns is None else [e for e in self._engines.values() if e.newest.at_ns > end_ns]

    def finish(self) -> list[Finding]:
        found: list[Finding] = []
        for replica, (name, text) in self.leaks().items():
            title = f"{text} after clients disconnected and the load ended"
            found.append(Failure(name, "degraded", title, evidence("metrics", text), remedy=RELEASE, replica=replica))
        check, note = self._check(), self._note()
        return [*found, *([check] if check is not None else []), *([note] if note else [])]

    def _check(self) -> CheckResult | None:
        engines = self._read_after_load()
        if not self._aborted or not engines or self._other_clients or self._frozen:
            return None
        leaks = self.leaks()
        held = "; ".join(f"{replica}: {text}" for replica, (_, text) in leaks.items())
        busy = sum(e.newest.busy for e in engines)
        actual = held or ("0 requests" if not busy else f"{counted(busy, 'request')}, read too soon after the load")
        reasons = dict.fromkeys(why for e in engines if (why := self._kv_unknown(e)) is not None)
        actual += "".join(f"; KV use not checked: {why}" for why in reasons)
        expected = "0 requests, KV use as before the load"
        return CheckResult("idle after the load", expected, actual, "fail" if leaks else "pass")

    def _note(self) -> str:
        """Reason why nothing could be judged after clients disconnected. "" otherwise, and for a dead server."""
        if not self._aborted or self._load_end_ns is None or self._down:
            return ""
        if self._read_after_load() and not self._other_clients and not self._frozen:
            return ""
        why = "other clients used the server" if self._other_clients else "no metrics were read after the load"
        why = "the metrics did not change while requests were answered" if self._frozen else why
        why = why if self._metrics_seen else "no metrics"
        return f"unknown whether the server released everything after clients disconnected: {why}"
