"""Whether the server came back to rest when the load was over: clients that hung up must be forgotten, and their KV freed.

Only judged where our clients hung up as planned and the server's own gauges were read again long enough afterwards; what
could not be looked at is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadchaos.analysis.mechanisms import Check
from loadchaos.analysis.request_stats import S
from loadchaos.core.model import Row
from loadchaos.server.dialects import DIALECTS, UNKNOWN

_SOON_NS = 2 * S  # vLLM forgets a closed connection within 0.1 s, and is scraped once a second
_SCRAPE_NS = 1 * S
_SLACK_BLOCKS = 2.5
"""What is at rest is known to the block; some versions keep one or two for themselves from the first request on."""
_SLACK_SHARE = 0.001
"""Where nobody tells how many blocks there are."""
_OTHER_SERVER = ("dead", "restarting", "terminated", "hung")
"""What the server held before one of these says nothing of what it should hold after the load."""
_CACHING = re.compile(r"enable_prefix_caching['\"]?\s*[=:]\s*(True|False)")


@dataclass
class _Engine:
    kv_before: float | None = None  # the newest before the load with nothing running, else the least
    at_rest: bool = False
    blocks: float | None = None
    at_ns: int = 0
    busy: float = 0.0
    kv: float | None = None

    def before(self, kv: float, *, busy: bool) -> None:
        """A reading before the load. Gauges may be old, and tell of our own questions: then the least is a bound."""
        if busy and self.at_rest:
            return
        least = kv if self.kv_before is None else min(kv, self.kv_before)
        self.kv_before, self.at_rest = least if busy else kv, not busy


class KvLeakDetector:
    """Fold every row, then ask for `leaks`, `check` and `notes`."""

    def __init__(self) -> None:
        self._engines: dict[tuple[str, str], _Engine] = {}
        self._load_begun = False
        self._load_end_ns: int | None = None
        self._hung_up = 0
        self._others = False
        self._metrics_seen = False
        self._down = False  # when the load ended
        self._begun_by_us = False  # a server just begun holds nothing, whether its gauges were read in time or not
        self._blocks: float | None = None
        self._caching: bool | None = None  # whether it has a prefix cache, as far as it tells

    def feed(self, row: Row) -> None:
        """Fold one row; kinds it does not need are ignored."""
        kind = row.get("row")
        if kind == "metrics":
            self._metrics(row)
        elif kind == "end":
            self._hung_up += row.get("outcome") == "aborted"
        elif kind == "run":
            self._load_begun = self._load_begun or row.get("what") == "load_begin"
            if row.get("what") == "load_end":
                self._load_end_ns = int(row["at_ns"])
        elif kind == "facts":
            self._blocks = (row.get("facts") or {}).get("kv_blocks") or self._blocks
        elif kind in ("launch", "configuration"):
            self._configured(row)
        elif kind == "preflight" and row.get("name") == "others":
            self._others = not row.get("ok")
        elif kind == "state" and self._load_end_ns is None:
            self._down = row.get("to") in _OTHER_SERVER
            if self._down:
                self._engines.clear()
                self._begun_by_us = False

    def _configured(self, row: Row) -> None:
        """LMDeploy has it off unless asked for: its own command without the flag says so; what it logs says it better."""
        if row.get("row") == "launch" and row.get("what") == "start":
            self._begun_by_us = True
            command = [str(part) for part in row.get("command") or ()]
            off_by_default = [d.prefix_cache_flag for d in DIALECTS.values() if d.prefix_cache_flag]
            self._caching = next((flag in command for word, flag in off_by_default if word in command), None)
        elif told := _CACHING.search(str(row.get("flags") or "")):
            self._caching = told[1] == "True"

    def _metrics(self, row: Row) -> None:
        values: Mapping[str, Any] = row.get("values") or {}
        if "requests_running" not in values:
            return
        self._metrics_seen = True
        engine = self._engines.setdefault((str(row.get("replica")), str(row.get("engine"))), _Engine())
        engine.blocks = float(values["kv_blocks"]) if values.get("kv_blocks") else engine.blocks
        busy = float(values["requests_running"]) + float(values.get("requests_waiting") or 0)
        kv = float(values["kv_usage_ratio"]) if "kv_usage_ratio" in values else None
        if not self._load_begun and kv is not None:
            engine.before(kv, busy=bool(busy))
        if self._load_end_ns is not None:
            engine.at_ns, engine.busy, engine.kv = int(row["at_ns"]), busy, kv

    def leaks(self, dialect: str) -> dict[str, tuple[str, str]]:
        """What is still held by replica: the failure's id, and in words; empty where all is at rest or nothing is known."""
        found: dict[str, tuple[str, str]] = {}
        if self._load_end_ns is None or not self._hung_up or self._others:
            return found
        for (replica, _), engine in self._engines.items():
            refresh_ns = int(DIALECTS.get(dialect, UNKNOWN).metrics_refresh_s * S)
            if engine.at_ns - self._load_end_ns < max(_SOON_NS, refresh_ns + _SCRAPE_NS):
                continue
            if engine.busy:
                found[replica] = "lost_requests_held", f"{engine.busy:g} requests are still there"
            elif self._kv_unseen(dialect, engine) is None and (kept := self._kept(engine)):
                found[replica] = "kv_leak", kept
        return found

    def _kept(self, engine: _Engine) -> str:
        """What is held beyond what was held at rest before the load, in words; "" where that is nothing."""
        share, blocks = (engine.kv or 0.0) - (engine.kv_before or 0.0), engine.blocks or self._blocks
        if share <= (_SLACK_BLOCKS / blocks if blocks else _SLACK_SHARE):
            return ""
        told = f"{share:.1%} of the KV cache"
        return (
            f"{told} ({round(share * blocks):,} blocks) is held by no request"
            if blocks
            else f"{told} is held by no request"
        )

    def _kv_unseen(self, dialect: str, engine: _Engine) -> str | None:
        """Why its KV use says nothing; None where it says whether all was given back."""
        counts = DIALECTS.get(dialect, UNKNOWN).kv_gauge
        if not counts or engine.kv is None:
            return "no gauge of it that goes back at rest"
        if counts == "requests and cache" and self._caching is not False:
            cached = (
                "its prefix cache keeps blocks" if self._caching else "whether a prefix cache keeps blocks is not known"
            )
            return f"{cached}, and its gauge counts them"
        known = engine.kv_before is not None or self._begun_by_us
        return None if known else "it was not read before the load"

    def _read(self) -> list[_Engine]:
        end_ns = self._load_end_ns
        return [] if end_ns is None else [e for e in self._engines.values() if e.at_ns > end_ns]

    def check(self, dialect: str) -> Check | None:
        """For verdict.json; None where nobody hung up, and where nothing could be read (`notes` says so then)."""
        read = self._read()
        if not self._hung_up or not read or self._others:
            return None
        leaks = self.leaks(dialect)
        left = "; ".join(f"{replica}: {text}" for replica, (_, text) in leaks.items())
        still = sum(e.busy for e in read)
        actual = left or ("0 requests" if not still else f"{still:g} requests, too soon to tell")
        unseen = dict.fromkeys(why for e in read if (why := self._kv_unseen(dialect, e)) is not None)
        actual += "".join(f"; KV use not looked at: {why}" for why in unseen)
        return Check("idle after the load", "0 requests, KV use back", actual, "fail" if leaks else "pass")

    def notes(self) -> list[str]:
        """Where clients hung up and the server could not be looked at: why not. Of one that is down, other rows tell."""
        if not self._hung_up or self._load_end_ns is None or self._down or (self._read() and not self._others):
            return []
        why = "others used the server" if self._others else "nothing could be read after the load"
        why = why if self._metrics_seen else "no metrics"
        return [f"whether the server came back to rest after clients hung up is not known: {why}"]
