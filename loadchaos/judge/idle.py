"""Whether the server came back to rest when the load was over: clients that hung up must be forgotten, and their KV freed.

Only judged where our clients hung up as planned and the server's own gauges were read again long enough afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadchaos.judge.mechanisms import Check
from loadchaos.judge.tally import S
from loadchaos.model import Row

_SOON_NS = 2 * S  # vLLM forgets a closed connection within 0.1 s, and is scraped once a second
_REFRESH_NS = {"lmdeploy": 11 * S}  # its gauges are renewed every 10 s
_KV_SLACK = 0.02
_OTHER_SERVER = ("dead", "restarting", "terminated", "hung")
"""What the server held before one of these says nothing of what it should hold after the load."""
_KV_IS_FREED = ("vllm",)
"""Where the gauge counts what requests hold and not what a prefix cache keeps: it goes back when they are gone."""


@dataclass
class _Engine:
    kv_before: float | None = None
    at_ns: int = 0
    busy: float = 0.0
    kv: float | None = None


class Idle:
    """Fold every row, then ask for `leaks` and `check`."""

    def __init__(self) -> None:
        self._engines: dict[tuple[str, str], _Engine] = {}
        self._load_begun = False
        self._load_end_ns: int | None = None
        self._hung_up = 0
        self._others = False

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
        elif kind == "preflight" and row.get("name") == "others":
            self._others = not row.get("ok")
        elif kind == "state" and row.get("to") in _OTHER_SERVER and self._load_end_ns is None:
            self._engines.clear()

    def _metrics(self, row: Row) -> None:
        values = row.get("values") or {}
        engine = self._engines.setdefault((str(row.get("replica")), str(row.get("engine"))), _Engine())
        if not self._load_begun and "kv_usage_ratio" in values:
            engine.kv_before = float(values["kv_usage_ratio"])
        if self._load_end_ns is None or "requests_running" not in values:
            return
        engine.at_ns = int(row["at_ns"])
        engine.busy = float(values["requests_running"]) + float(values.get("requests_waiting") or 0)
        engine.kv = float(values["kv_usage_ratio"]) if "kv_usage_ratio" in values else None

    def leaks(self, dialect: str) -> dict[str, tuple[str, str]]:
        """What is still held by replica: the failure's id, and in words; empty where all is at rest or nothing is known."""
        found: dict[str, tuple[str, str]] = {}
        if self._load_end_ns is None or not self._hung_up or self._others:
            return found
        for (replica, _), engine in self._engines.items():
            if engine.at_ns - self._load_end_ns < _REFRESH_NS.get(dialect, _SOON_NS):
                continue
            if engine.busy:
                found[replica] = "lost_requests_held", f"{engine.busy:g} requests are still there"
            elif dialect in _KV_IS_FREED and engine.kv is not None and engine.kv_before is not None:
                kept = engine.kv - engine.kv_before
                if kept > _KV_SLACK:
                    found[replica] = "kv_leak", f"{kept:.0%} of the KV cache is held by no request"
        return found

    def check(self, dialect: str) -> Check | None:
        """For verdict.json; None where nobody hung up or nothing was read behind the load."""
        read = [e for e in self._engines.values() if self._load_end_ns is not None and e.at_ns > self._load_end_ns]
        if not self._hung_up or not read or self._others:
            return None
        leaks = self.leaks(dialect)
        left = "; ".join(f"{replica}: {text}" for replica, (_, text) in leaks.items())
        still = sum(e.busy for e in read)
        actual = left or ("0 requests" if not still else f"{still:g} requests, too soon to tell")
        return Check("idle after the load", "0 requests, KV use back", actual, "fail" if leaks else "pass")
