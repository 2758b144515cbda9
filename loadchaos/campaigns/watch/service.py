"""Watch as a service: parts one after the other, each a run with its verdict, in a folder of bounded size.

A part is a process of its own, so that nothing grows over weeks, and it outlives a restart of the service. A server that
is down when a part begins is waited for. A death between two parts is announced here, all others by their part.
"""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.soak import retention
from loadchaos.campaigns.soak.child import SoakChild
from loadchaos.campaigns.soak.state import iso
from loadchaos.core import exit_codes
from loadchaos.core.errors import LedgerError, OptionError
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.units import format_duration
from loadchaos.core.whole_file import read_json

STATE = "service.json"
_POLL_S = 1.0
_END_S = 60.0
"""Time in which a part has to end after our own signal."""
_GAP_S = 20.0
"""A server that was healthy, and does not answer a new part for so long, stopped between two parts."""
_RETRY_S = 10.0
"""Shortest time from the start of a part to that of the next one."""
_SIZE_S = 60.0
"""Period at which the size of a part is looked at."""
_PARTS_THAT_FIT = 4
"""Parts of the largest size that the folder has room for. A larger part is ended early."""
_DOWN = ("dying", "dead", "unreachable", "terminated", "restarting")
_FOREVER = "87600h"


@dataclass(frozen=True)
class ServiceOrder:
    """Settings of a service: options of `loadchaos watch` for each part, its length, and the size of all parts."""

    options: tuple[str, ...]
    home: Path
    part_s: float
    keep_bytes: int

    def arguments(self) -> list[str]:
        more = ["--for", format_duration(self.part_s), "--out", str(self.home), "--wait-ready", _FOREVER, "--no-live"]
        return [*more, *self.options]


class WatchService:
    """The service of one folder. `announce` tells of a death that no part has seen; `now_s` is monotonic."""

    def __init__(
        self,
        order: ServiceOrder,
        campaign: Campaign,
        child: SoakChild,
        announce: Callable[[str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._order, self._campaign, self._child, self._announce, self._now_s = order, campaign, child, announce, now_s
        campaign.lock("loadchaos watch --service", datetime.now(UTC))
        retention.sweep(order.home)
        saved = read_json(order.home / STATE)
        self._pid: int | None = saved.get("pid") if child.alive() else None
        self._started = str(saved.get("started") or "")
        self._healthy = bool(saved.get("healthy"))
        self._told_down = bool(saved.get("told_down"))
        self._begun_s = self._sized_s = now_s()
        self._next_start_s = -1.0
        self._part: Path | None = None
        self._rows: Tail | None = None
        self._watching = False
        self.parts = 0

    def forever(self) -> int:
        """Run parts until a signal. Returns 2 where the first part finds a mistake in its options."""
        interrupts = self._campaign.interrupts
        while not interrupts:
            self.poll()
            if self.parts == 1 and self._child.exit_code() == exit_codes.USER_ERROR:
                self._campaign.print_line(self._child.last_line())
                return exit_codes.USER_ERROR
            time.sleep(_POLL_S)
        self._child.end(self._pid, signal.SIGTERM)
        until_s = self._now_s() + _END_S
        while self._child.alive() and self._now_s() < until_s:
            time.sleep(0.2)
        return 0

    def poll(self) -> None:
        if self._child.alive():
            self._follow()
            return
        if self._pid is not None:
            self._follow()  # its last rows
        ended = self._part
        self._part = self._rows = self._pid = None
        try:
            delete_old(self._order.home, self._order.keep_bytes)
            if self._now_s() >= self._next_start_s:
                self._start()
        except LedgerError as e:  # a full disk may have space again
            self._campaign.print_line(str(e))
        if ended is not None:
            self._tell_verdict(ended)

    def _tell_verdict(self, part: Path) -> None:
        """Print the verdict of a part that ended; one that was killed is judged here, while the next one watches."""
        verdict = read_json(part / "verdict.json").get("verdict")
        if verdict is None and (judged := self._child.judge(part.name)) is not None:
            verdict = judged.verdict
        self._campaign.print_line(f"{part.name}: {verdict or 'not judged'}")

    def health(self) -> dict[str, object]:
        """Answer of /healthz: `ok` while the service has a part at work."""
        part = None if self._part is None else self._part.name
        state = "watching" if self._watching else "waiting for the server"
        return {"ok": self._child.alive(), "state": state, "healthy": self._healthy, "run": part, "parts": self.parts}

    def metrics(self) -> bytes:
        """Metrics of the part at work, whose exporter listens on loopback only; empty without one."""
        rows = () if self._part is None else Tail(self._part / "findings.jsonl").rows()
        port = next((row.get("port") for row in rows if row["row"] == "exporter"), None)
        if port is None:
            return b""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                return bytes(answer.read())
        except (OSError, HTTPException):
            return b""

    def _start(self) -> None:
        self._next_start_s = self._now_s() + _RETRY_S
        self._watching, self._begun_s, self._started = False, self._now_s(), iso(datetime.now(UTC))
        self._pid = self._child.start(self._order.arguments(), quiet=True)
        self.parts += 1
        self._save()

    def _save(self) -> None:
        state = {"pid": self._pid, "started": self._started, "healthy": self._healthy, "told_down": self._told_down}
        self._campaign.write({STATE: state})

    def _follow(self) -> None:
        """Read the states of the part at work; end it early where it is too large."""
        if self._part is None and (found := self._child.find(self._pid, self._started, "watch", ())) is not None:
            self._part = self._order.home / found.name
            self._rows = Tail(self._part / "events.jsonl")
        before = self._healthy, self._told_down
        for row in () if self._rows is None else self._rows.rows():
            if row["row"] == "run" and row["what"] == "load_begin":
                self._watching, self._healthy, self._told_down = True, True, False
            elif row["row"] == "state" and row["engine"] is None and self._watching:
                self._healthy = row["to"] not in _DOWN
        if not self._watching and self._now_s() - self._begun_s > _GAP_S and self._healthy and not self._told_down:
            self._told_down, self._healthy = True, False
            self._announce("the server does not answer: it stopped between two parts of the watch")
        if before != (self._healthy, self._told_down):
            self._save()
        if self._part is not None and self._now_s() - self._sized_s > _SIZE_S:
            self._sized_s = self._now_s()
            if size_of(self._part) > self._order.keep_bytes / _PARTS_THAT_FIT:
                self._child.end(self._pid, signal.SIGTERM)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def delete_old(home: Path, keep_bytes: int) -> None:
    """Delete the oldest parts until a part has room: first those without an incident. Marked ones stay."""
    parts = sorted(p for p in home.glob("watch-*") if (p / "events.jsonl").is_file() and not p.is_symlink())
    sizes = {part: size_of(part) for part in parts}
    room = keep_bytes - keep_bytes // _PARTS_THAT_FIT
    for part in sorted(parts[:-1], key=lambda p: (any((p / "incidents").glob("*")), p.name)):
        if sum(sizes.values()) <= room:
            return
        if not retention.marked(part):
            retention.delete_folder(home, part.name)
            del sizes[part]


def serve_health(service: WatchService, host: str, port: int) -> ThreadingHTTPServer:
    """Serve /healthz, and the /metrics of the part at work, in a thread. Raises OptionError where the address is in use."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = service.health()
            status, kind, body = 200 if found["ok"] else 503, "application/json", json.dumps(found).encode()
            if self.path == "/metrics":
                metrics = service.metrics()
                status, kind, body = 200 if metrics else 503, "text/plain; version=0.0.4", metrics
            elif self.path != "/healthz":
                status = 404
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as e:
        raise OptionError(f"--healthz {host}:{port}: {e.strerror}; choose another address or a free port") from e
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def serve(
    order: ServiceOrder, print_line: Callable[[str], None], health: tuple[str, int] | None, addresses: Sequence[str]
) -> int:
    from loadchaos.report.export import notify

    def announce(text: str) -> None:
        print_line(text)
        content = {"text": f"loadchaos: INCIDENT {text}", "event": "incident"}
        for trouble in filter(None, (notify.send(address, content) for address in addresses)):
            print_line(trouble)

    campaign = Campaign(order.home, print_line)
    service = WatchService(order, campaign, SoakChild(order.home, "watch"), announce)
    server = None if health is None else serve_health(service, *health)
    with closing(campaign), campaign.interrupts.installed():
        try:
            return service.forever()
        finally:
            if server is not None:
                server.shutdown()
                server.server_close()
