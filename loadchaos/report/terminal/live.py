"""Show a run live in the terminal, or as one plain line every ten seconds. Only the follower draws, so that a stalled
terminal stops neither the load nor the watching.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loadchaos.analysis.figures.snapshot import Percentiles, Snapshot, TrafficLine
from loadchaos.analysis.figures.stalls import Stall
from loadchaos.core.model import BLAMELESS
from loadchaos.core.units import NS_PER_S
from loadchaos.report import phrases
from loadchaos.report.formatting import clean, duration, number, percent, plural
from loadchaos.report.performance import latency_head, time_text

PLAIN_EVERY_S = 10.0
_FEWEST_DONE = 5
"""Requests whose mean time says how long the others take."""
_STALL_SHOWN_NS = NS_PER_S
"""Time since a stall was last seen to go on, in which it is shown."""
_STATE_STYLE = {
    "healthy": "bold green", "starting": "dim", "degraded": "bold yellow", "restarting": "bold yellow",
    "unreachable": "bold yellow",
}  # fmt: skip


class View:
    """Live view of snapshots, until `close`; plain where the stream is no terminal or TERM is dumb. `head` are lines
    printed once, before anything else.
    """

    def __init__(self, stream: TextIO | None = None, *, plain: bool | None = None, head: Sequence[str] = ()) -> None:
        self._stream = stream or sys.stderr
        self._head = head
        if plain is None:
            plain = not self._stream.isatty() or os.environ.get("TERM", "") in {"", "dumb"}
        self.plain = plain
        self._next_line_ns = 0
        self._moment: object = None
        self._printed: set[object] = set()
        self._live: Live | None = None
        self._size = ConsoleDimensions(0, 0)

    def show(self, snapshot: Snapshot) -> None:
        """Draw a snapshot, or print what is new in it."""
        head, self._head = self._head, ()
        for line in head:
            self._print(line)
        if not self.plain:
            picture = self._picture()
            if picture.console.size != self._size:  # rewrapped lines cannot be found again and overwritten
                self._size = picture.console.size
                picture.console.clear()
            picture.update(draw(snapshot), refresh=True)
            return
        for key, line in plain_events(snapshot):
            if key not in self._printed:
                self._printed.add(key)
                self._print(line)
        if snapshot.now_ns >= self._next_line_ns:
            self._next_line_ns = snapshot.now_ns + round(PLAIN_EVERY_S * NS_PER_S)
            moment = (_phase(snapshot), _totals(snapshot))
            if moment != self._moment:  # the last line may have been printed
                self._moment = moment
                self._print(plain_line(snapshot))

    def _picture(self) -> Live:
        """Create the live display with the first snapshot. Even that writes to the terminal, which may be stopped."""
        if self._live is None:
            console = Console(file=self._stream)
            self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            self._size = console.size
            self._live.start()
        return self._live

    def _print(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()

    def close(self, snapshot: Snapshot | None = None) -> None:
        """Stop; the last view stays on the screen and the terminal is restored."""
        if snapshot is not None:
            self._next_line_ns = 0
            self.show(snapshot)
        if self._live is not None:
            self._live.stop()
            self._live = None


class Screen:
    """Draws snapshots in its own thread: a stopped terminal blocks nothing."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._newest: Snapshot | None = None
        self._wake, self._closed = threading.Event(), False
        self._thread = threading.Thread(target=self._loop, name="live view", daemon=True)
        self._thread.start()

    def show(self, snapshot: Snapshot) -> None:
        """Queue a snapshot; an older one that was not drawn is dropped."""
        self._newest = snapshot
        self._wake.set()

    def close(self, snapshot: Snapshot, limit_s: float = 2.0) -> bool:
        """Draw the last snapshot and stop. Returns False if the terminal did not accept it within `limit_s`."""
        self._newest, self._closed = snapshot, True
        self._wake.set()
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        try:
            while not self._closed:
                self._wake.wait()
                self._wake.clear()
                if self._newest is not None and not self._closed:
                    self._view.show(self._newest)
            self._view.close(self._newest)
        except (OSError, ValueError):  # the terminal is gone (EIO, a closed pipe): the run continues without it
            return


def plain_events(s: Snapshot) -> list[tuple[object, str]]:
    lines: list[tuple[object, str]] = []
    several = len({state.replica for state in s.states}) > 1
    for state in s.states:
        signs = "; ".join(clean(sign, 160) for sign in state.signs) or "no sign recorded"
        name = clean(state.replica, 40) if several else "server"
        lines.append(
            ((state.replica, state.state, state.at_ns), f"  {name} {phrases.state_text(state.state)}: {signs}")
        )
    for f in s.failures:
        key = ("failure", f.id, f.attribution)
        lines.append((key, f"  {phrases.severity_text(f)}: {clean(f.id, 80)}: {clean(f.title, 200)}"))
    if s.stall is not None:
        lines.append((("stall", s.stall.begin_ns), f"  stall: {_stall_text(s.stall)}"))
    lines.extend((("incident", i.n), f"  incident {i.n}: {clean(i.folder, 200)}") for i in s.incidents if i.folder)
    return lines


def _stall_text(stall: Stall) -> str:
    verb = "waits" if stall.requests == 1 else "wait"
    return f"no token and no answer for {duration(stall.seconds)}, {plural(stall.requests, 'request')} {verb}"


def _recent(s: Snapshot, kind: str) -> str:
    """Format `TTFT p50 120 ms p99 310 ms`, with a mark on a latency that means nothing."""
    found = s.recent.get(kind, Percentiles())
    return f"{latency_head(kind, void=kind in s.void)} p50 {duration(found.p50)} p99 {time_text(found, 'p99')}"


def plain_line(s: Snapshot) -> str:
    """Format `[load 80.0 s] healthy · 61 requests in flight · 12.3 requests/s · 4,012 ok · 310 tokens/s`."""
    parts = [_states_text(s), plural(s.in_flight, "request") + " in flight", f"{s.begun_per_s:.1f} requests/s"]
    if unseen := s.watched == "traffic":
        parts[1:] = [numbers] if (numbers := _server_numbers(s).replace("  ", " · ")) else []
    if progress := progress_text(s):
        parts.insert(0, progress)
    outcomes = _totals(s)
    if outcomes:
        parts.append(", ".join(phrases.outcome_count_text(o, n) for o, n in outcomes.items()))
    ttft = s.recent.get("ttft", Percentiles())
    if ttft.n:
        parts.append(_recent(s, "ttft"))
    if not unseen:
        parts.append(f"{s.tokens_per_s:.0f} tokens/s")
    if s.attacks_in_force:
        parts.append("attack: " + ", ".join(sorted({a.name for a in s.attacks_in_force})))
    if s.failures:
        parts.append(plural(len(s.failures), "failure"))
    if s.paused and not s.load_over:
        parts.append("paused: " + clean(s.paused, 80))
    return f"[{_phase(s)}] " + " · ".join(parts)


def _phase(s: Snapshot) -> str:
    if s.load_s is None:
        return "before the load"
    what = "watched for" if s.watched == "traffic" else "load ended after" if s.load_over else "load"
    return f"{what} {duration(s.load_s) if s.load_s >= 0.05 else '0 s'}"


def _done(s: Snapshot, line: TrafficLine) -> int:
    """Steps of the plan that are done: requests, or sessions."""
    outcomes = dict(line.outcomes)
    if line.name in s.sessions:
        return s.sessions[line.name].ended + outcomes.get("missed", 0)
    return sum(n for outcome, n in outcomes.items() if outcome != "unfinished")


def _all_sent(s: Snapshot) -> bool:
    """True once the load only waits for answers: nobody knows how long they take."""
    if s.planned_s is not None and s.sent_s is not None and s.sent_s >= s.planned_s:
        return True
    begun = (s.sessions[line.name].begun if line.name in s.sessions else line.begun for line in s.traffic)
    return s.planned is not None and sum(begun) + _totals(s).get("missed", 0) >= s.planned


def progress_text(s: Snapshot) -> str:
    """Requests done of those planned, or seconds, and the time left; empty before the load and after it."""
    if s.sent_s is None or s.load_over:
        return ""
    done = sum(_done(s, line) for line in s.traffic)
    left_s: float | None = None
    if s.planned_s is not None:
        left_s = max(0.0, s.planned_s - s.sent_s)
    elif s.planned and done >= _FEWEST_DONE:
        left_s = max(0, s.planned - done) * s.sent_s / done
    if s.planned:
        text = f"{number(done)} of {number(s.planned)} requests ({100 * min(done, s.planned) // s.planned} %)"
        if s.sessions:
            text = text.replace(" requests", " sessions" if len(s.sessions) == len(s.traffic) else " steps")
    elif s.planned_s is not None:
        text = f"{duration(min(s.sent_s, s.planned_s))} of {duration(s.planned_s)}"
    else:
        return ""
    if _all_sent(s):
        return f"{text}, waiting for the last {plural(s.in_flight, 'answer')}" if s.in_flight else text
    return text if left_s is None else f"{text}, about {duration(max(1.0, round(left_s)))} left"


def _states_text(s: Snapshot) -> str:
    if not s.states:
        return "server not checked yet"
    if len(s.states) == 1:
        return phrases.state_text(s.states[0].state)
    return ", ".join(f"{clean(st.replica, 20)} {phrases.state_text(st.state)}" for st in s.states)


def _totals(s: Snapshot) -> dict[str, int]:
    total = Counter[str]()
    for line in s.traffic:
        total.update(dict(line.outcomes))
    return total


# -- the live view ----------------------------------------------------------------------------------------------


def draw(s: Snapshot) -> RenderableType:
    parts: list[RenderableType] = [_title(s), _server(s)]
    if s.load_s is None and s.preflight:
        parts.append(_preflight(s))
    if s.traffic:
        parts += [_load(s), _traffic(s)]
    parts.append(_attacks(s))
    if s.failures:
        parts.append(_failures(s))
    return Group(*parts)


def _title(s: Snapshot) -> RenderableType:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("loadchaos ", "bold")
    text.append(clean(s.run.profile or "", 60), "bold cyan")
    text.append(f"  {_phase(s)}")
    if progress := progress_text(s):
        text.append(f"  {progress}")
    if s.run.target is not None and s.run.target.kind == "embedded":
        text.append("  on the EMBEDDED server (a simulation)", "yellow")
    elif s.run.target is not None and s.run.target.url:
        text.append(f"  on {clean(s.run.target.url, 120)}")
    return text


def _server(s: Snapshot) -> RenderableType:
    grid = Table.grid(padding=(0, 2), expand=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for st in s.states:
        name = "server" if len(s.states) == 1 else clean(st.replica, 16)
        since = duration(max(0.0, (s.now_ns - st.at_ns) / NS_PER_S))
        grid.add_row(
            name,
            Text.assemble(
                (phrases.state_text(st.state), _STATE_STYLE.get(st.state, "bold red")),
                f" for {since}  ",
                ("; ".join(clean(x, 100) for x in st.signs)[:200], "dim"),
            ),
        )
    if not s.states:
        grid.add_row("server", Text("not checked yet", "dim"))
    numbers = _server_numbers(s)
    if numbers:
        grid.add_row("", numbers)
    return grid


def _server_numbers(s: Snapshot) -> str:
    names = {"requests_running": "running", "requests_waiting": "waiting"}
    totals = {label: s.server_total(name) for name, label in names.items()} | {"preemptions": s.preemptions}
    parts = [f"{number(n)} {label}" for label, n in totals.items() if n is not None]
    if (kv := s.fullest_kv_cache) is not None:
        parts.append(f"KV cache {percent(kv)}")
    return "  ".join(parts)


def _preflight(s: Snapshot) -> RenderableType:
    lines = [
        Text(("ok   " if ok else "no   ") + clean(text, 200), "green" if ok else "red") for ok, text in s.preflight
    ]
    return Group(*lines[-8:])


def _load(s: Snapshot) -> RenderableType:
    ttft = s.recent.get("ttft", Percentiles())
    now = f"{s.begun_per_s:.1f} sent/s  {s.done_per_s:.1f} ended/s  {s.tokens_per_s:.0f} tokens/s"
    latency = "  ".join(_recent(s, kind) for kind in ("ttft", "itl"))
    text = Text(f"last 10 s  {now}\n           {latency if ttft.n else 'no answer yet'}")
    waiting = f"{number(s.in_flight)} in flight; no token for {duration(s.oldest_silence_s)}"
    text.append(f"\n{waiting}; generator delay {duration(s.lag_s)}", "yellow" if s.lag_s > 0.1 else "dim")
    if s.stall is not None and s.now_ns - s.stall.end_ns < _STALL_SHOWN_NS:
        text.append(f"\nstall: {_stall_text(s.stall)}", "bold yellow")
    if s.paused and not s.load_over:
        text.append(f"\npaused: {clean(s.paused, 100)}", "bold yellow")
    return text


def _traffic(s: Snapshot) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("traffic", no_wrap=True, max_width=16)
    for head in ("in flight", "ok"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("other outcomes", overflow="fold", ratio=1)
    for head in ("TTFT p50", "p99", "E2E p50", "p99"):
        table.add_column(head, justify="right", no_wrap=True)
    for line in s.traffic[:12]:
        counts = dict(line.outcomes)
        others = Text(", ").join(
            Text(phrases.outcome_count_text(o, n), "" if o in BLAMELESS else "red")
            for o, n in counts.items()
            if o != "ok"
        )
        ttft, e2e = line.latency.get("ttft", Percentiles()), line.latency.get("e2e", Percentiles())
        times = [text for found in (ttft, e2e) for text in (duration(found.p50), time_text(found, "p99"))]
        table.add_row(clean(line.name, 40), number(line.in_flight), number(counts.get("ok", 0)), others, *times)
    return table


def _attacks(s: Snapshot) -> RenderableType:
    if not s.attacks and not s.attacks_in_force:
        return Text("")
    names = sorted({n for n, _ in s.attacks} | {a.name for a in s.attacks_in_force})
    text = Text("attacks  ")
    for name in names:
        ran, failed, skipped = (s.attacks.get((name, k), 0) for k in ("ok", "failed", "skipped"))
        text.append(clean(name, 40), "bold magenta" if any(a.name == name for a in s.attacks_in_force) else "")
        text.append(
            f" {number(ran)}" + (f", {failed} failed" if failed else "") + (f", {skipped} skipped" if skipped else "")
        )
        text.append("   ")
    return text


def _failures(s: Snapshot) -> RenderableType:
    body = Text()
    for f in sorted(s.failures, key=phrases.worst_first)[:6]:
        bad = phrases.is_server_fault(f)
        body.append(f"{phrases.severity_text(f)}: ", "red" if bad else "yellow")
        body.append(clean(f.id, 80), "bold red" if bad else "bold yellow")
        body.append(f" x{number(f.count)}" if f.count > 1 else "")
        body.append(f"  {clean(f.title, 160)}")
        known = [phrases.known_text(k) for k in f.known]
        body.append(f"\n  {known[0]}" if known else "", "dim")
        body.append("\n")
    folders = [clean(i.folder, 160) for i in s.incidents if i.folder]
    body.append("\n".join(folders[-3:]), "dim")
    return Panel(body, title="failures", title_align="left", border_style="red")
