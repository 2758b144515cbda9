"""Write the pages of the web UI's tabs, once a second. They are files in the run folder (cockpit/), each written whole;
the web process only serves them.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import orjson

from loadchaos.analysis.capacity.result import CapacityResult
from loadchaos.analysis.figures.answers import AnswerFigures
from loadchaos.analysis.figures.series import Series
from loadchaos.analysis.figures.snapshot import Percentiles, Snapshot
from loadchaos.analysis.incidents.attribution import result_of
from loadchaos.analysis.verdict.model import FailureResult
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import AttackRow, CommandRow, OffersRow
from loadchaos.core.model import Row
from loadchaos.core.units import NS_PER_S
from loadchaos.core.whole_file import read_json, write_whole
from loadchaos.report import phrases
from loadchaos.report.capacity_text import facts, short_answer
from loadchaos.report.formatting import clean, duration, number, percent, plural, utc_text
from loadchaos.report.html import templates
from loadchaos.report.html.capacity_page import shared
from loadchaos.report.html.charts import picture
from loadchaos.report.html.page import excerpt
from loadchaos.report.performance import ENDPOINT_LATENCIES, latency_head, time_text

_MOST_TRAFFICS = 12
_EVERY_S = 1.0
_POINTS = 600  # all of them are drawn each time
_MOST_DONE = 200
_MOST_ANSWERS = 20
_MOST_FAILURES = 50


@dataclass
class _Occurrences:
    """Count of a failure and its first and last time (Unix seconds)."""

    count: int
    first_s: float
    last_s: float


class PanelPages(RowFold):
    """Folds every row and writes the pages, once a second at most."""

    def __init__(self, folder: RunFolder, answers: AnswerFigures | None = None) -> None:
        self._folder, self._home = folder, folder.cockpit
        self._series = Series(_POINTS, answers=answers)
        self._offers: OffersRow | None = None
        self._answers: deque[CommandRow] = deque(maxlen=_MOST_ANSWERS)
        self._done: deque[AttackRow] = deque(maxlen=_MOST_DONE)
        self._planned: list[str] | None = None
        self._seen: dict[str, _Occurrences] = {}
        self._next = 0.0
        self._home.mkdir(exist_ok=True)

    def fold(self, row: Row) -> None:
        self._series.fold(row)
        super().fold(row)

    def on_offers(self, row: OffersRow) -> None:
        self._offers = row

    def on_command(self, row: CommandRow) -> None:
        self._answers.append(row)

    def on_attack(self, row: AttackRow) -> None:
        if row["what"] in ("end", "skipped"):
            self._done.append(row)

    def write(self, s: Snapshot, *, now: bool = False) -> None:
        if not now and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _EVERY_S
        failures = sorted(s.failures, key=phrases.worst_first)[:_MOST_FAILURES]
        drawn = picture(self._series, self._marks(s))
        shared = {"picture": drawn, "width": plural(drawn.width_s, "second"), "run": self._folder.path.name}
        self._write(
            "server.html", templates.render("web_panels.html.j2", panel="server", **shared, **self._server(s, failures))
        )
        self._write("charts.html", templates.render("web_panels.html.j2", panel="charts", **shared))
        self._write("attacks.html", templates.render("web_panels.html.j2", panel="attacks", **self._attacks(s)))
        self._write("failures.json", orjson.dumps([self._failure_row(f) for f in failures]).decode())

    def _write(self, name: str, text: str) -> None:
        write_whole(self._home / name, text)

    # -- the server ----------------------------------------------------------------------------------------------

    def _marks(self, s: Snapshot) -> list[tuple[float, str]]:
        return [(self._series.seconds(i.at_ns), clean(i.id, 80)) for i in s.incidents if i.at_ns is not None]

    def _server(self, s: Snapshot, failures: list[FailureResult]) -> dict[str, object]:
        return {
            "s": s,
            "states": [(st, max(0.0, (s.now_ns - st.at_ns) / NS_PER_S)) for st in s.states],
            "goodput": _goodput(s),
            "endpoints": _endpoints(s),
            "sessions": _sessions(s),
            "facts": _facts(s),
            "failures": [(f, phrases.incident_paths(f)[:1]) for f in failures],
            "excerpt_of": lambda incident: excerpt(self._folder.path / incident),
        }

    def _failure_row(self, f: FailureResult) -> dict[str, object]:
        name, count, now_s = clean(f.id, 80), f.count or 1, time.time()
        seen = self._seen.setdefault(name, _Occurrences(0, now_s, now_s))
        if count > seen.count:
            seen.count, seen.last_s = count, now_s
        known = "; ".join(phrases.known_text(k) for k in f.known)
        return {
            "occurrences": count,
            "method": phrases.severity_text(f),
            "name": name,
            "error": clean(f.title, 300) + (f" ({known})" if known else ""),
            "first_seen": seen.first_s,
            "last_seen": seen.last_s,
        }

    # -- attacks -------------------------------------------------------------------------------------------------

    def _attacks(self, s: Snapshot) -> dict[str, object]:
        offered = self._offers
        return {
            "refused": clean((offered and offered.get("refused")) or "", 600),
            "load_over": s.load_over,
            "offers": [
                {"title": o["title"], "about": o["about"], "needs": o["needs"], "asked": json.dumps(o)}
                for o in (offered and offered.get("offers")) or ()
            ],
            "answers": [(self._when(a), a) for a in reversed(self._answers)],
            "planned": self._plan(),
            "running": [(a, max(0.0, (s.now_ns - a.at_ns) / NS_PER_S)) for a in s.attacks_in_force],
            "done": [(self._when(d), d, _result(d)) for d in reversed(self._done)],
        }

    def _plan(self) -> list[str]:
        if self._planned is None:
            if not (plan := read_json(self._folder.plan)):
                return []
            attacks = (plan.get("profile") or {}).get("attacks") or []
            self._planned = [
                clean(", ".join(f"{k}: {v}" for k, v in a.items() if v not in (None, {}, [])), 300) for a in attacks
            ]
        return self._planned

    def _when(self, row: CommandRow | AttackRow) -> str:
        return f"{self._series.seconds(row['at_ns']):.1f} s"


def _result(act: AttackRow) -> tuple[str, str]:
    words = {"ok": ("worked", "pass"), "failed": ("failed", "fail"), "skipped": ("skipped", "unknown")}
    return words.get(result_of(act) or "", ("no answer", "unknown"))


def capacity_tab(searches: Mapping[str, CapacityResult], target: str, folder: Path, command: str) -> str:
    """Render the Capacity tab; of the server `target`, the newest of `searches` (by folder, newest last) is shown in
    full. `folder` is where searches are looked for, `command` starts one, for a folder without any.
    """
    of_server = [name for name, data in searches.items() if _same_server(data, target)]
    shown = of_server[-1] if of_server else ""
    search = None
    if shown:
        search = {**shared(searches[shown]), "facts": facts(searches[shown]), "href": _page_of(shown)}
    others = [
        [utc_text(data.started), clean(data.target, 100), short_answer(data), _page_of(name)]
        for name, data in reversed(list(searches.items()))
        if name != shown
    ]
    return templates.render(
        "web_panels.html.j2", panel="capacity", search=search, others=others, folder=str(folder), command=command
    )


def _same_server(data: CapacityResult, target: str) -> bool:
    ours, theirs = (url.rstrip("/").removesuffix("/v1") for url in (target, data.target))
    return ours == theirs


def _page_of(search: str) -> str:
    return f"./loadchaos/searches/{quote(search)}/report.html"


def _goodput(s: Snapshot) -> list[tuple[str, int, int]]:
    if not s.slo_s:
        return []
    whole = sum(good for good, _ in s.goodput.values()), sum(due for _, due in s.goodput.values())
    parts = [("all requests", *whole), ("the last 10 s", *s.recent_goodput)]
    if len(s.goodput) > 1:
        parts += [(clean(traffic, 60), *part) for traffic, part in list(s.goodput.items())[:_MOST_TRAFFICS]]
    return parts


def _endpoints(s: Snapshot) -> list[list[str]]:
    return [
        [
            clean(line.name, 40),
            number(sum(n for _, n in line.outcomes)),
            number(dict(line.outcomes).get("ok", 0)),
            number(line.in_flight),
            *(duration(getattr(line.latency[kind], name)) for kind, name in ENDPOINT_LATENCIES),
        ]
        for line in s.endpoints
    ]


def _sessions(s: Snapshot) -> list[list[str]]:
    return [
        [
            clean(traffic, 60),
            *(number(line.ends.get(end, 0)) for end in ("finished", "lost", "cut", "left")),
            number(line.begun - line.ended),
            *(number(line.turns.get(result, 0)) for result in ("answered", "lost", "cut")),
        ]
        for traffic, line in list(s.sessions.items())[:_MOST_TRAFFICS]
    ]


def _times(s: Snapshot, kind: str) -> list[tuple[str, str]]:
    found, head = s.recent.get(kind, Percentiles()), latency_head(kind, void=kind in s.void)
    return [(f"{head} p50", duration(found.p50)), (f"{head} p99", time_text(found, "p99"))]


def _facts(s: Snapshot) -> list[tuple[str, str]]:
    kv = s.fullest_kv_cache
    server = {
        "running in the server": s.server_total("requests_running"),
        "waiting in the server": s.server_total("requests_waiting"),
        "preemptions": s.preemptions,
    }
    return [
        *((name, number(value)) for name, value in server.items() if value is not None),
        *([("KV cache", percent(kv))] if kv is not None else []),
        ("in flight", number(s.in_flight)),
        ("requests/s", f"{s.begun_per_s:.1f}"),
        ("tokens/s", f"{s.tokens_per_s:.0f}"),
        *_times(s, "ttft"),
        *_times(s, "itl"),
        ("longest wait for a token", duration(s.oldest_silence_s)),
        ("generator delay", duration(s.lag_s)),
    ]
