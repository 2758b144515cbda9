"""What we add to Locust's web UI: tabs, failures by their id, buttons for attacks, links; and who may use it.

Reads the ledger and the pages the follower makes of it, writes commands.jsonl, judges nothing. What it needs of Locust
comes as a Protocol: Locust's own extension points (template_args, the Flask app, the login manager) and no more.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, Unpack

from flask import Flask, Response, abort, g, jsonify, request, send_from_directory

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.rows import CommandDetail, CommandEvent, CommandRow
from loadchaos.core.ledger.writer import Writer
from loadchaos.load.webui import auth

_POLL_S = 0.05
_PANELS = ("server", "attacks", "charts")
_TABS = [{"title": "Server", "key": "server"}, {"title": "Attacks", "key": "attacks"}]
_SHOWN = ("report.html", "verdict.json", "junit.xml", "profile.yaml", "server.log")
_RUNS = ("spawning", "running")
_WORKING = ("starting", "preparing", "load")


class Environment(Protocol):
    """Locust's Environment, as far as it is used here."""

    web_ui: auth.WebUi
    runner: Any
    events: Any


class Cockpit:
    """The session as its web process sees it: which run there is, what it does, and where a command goes."""

    def __init__(self, environment: Environment, home: Path) -> None:
        self._runner: Any = environment.runner
        self._session = Tail(home / "session.jsonl")
        self._starts = Writer(home / "commands.jsonl", "web")
        self._commands: Writer | None = None
        self._pressed = 0
        self.web: dict[str, Any] = {}
        self.phase = "idle"
        self.run: RunFolder | None = None
        self.runs: dict[str, Path] = {}
        self.over: dict[str, Any] = {}
        self.read()

    def follow(self) -> None:
        """Read what the run tells, for ever."""
        while True:
            self.read()
            time.sleep(_POLL_S)

    def read(self) -> None:
        """Every new row of session.jsonl."""
        for row in self._session.rows():
            take = getattr(self, f"_on_{row.get('what')}", None)
            if take is not None:
                take(row)

    def _on_web(self, row: dict[str, Any]) -> None:
        self.web = row

    def _on_run(self, row: dict[str, Any]) -> None:
        self.run, self.phase, self.over = RunFolder(Path(row["folder"])), "preparing", {}
        self.runs[self.run.path.name] = self.run.path
        self._commands = Writer(self.run.commands, "web")

    def _on_load(self, _: dict[str, Any]) -> None:
        self.phase = "load"

    def _on_load_over(self, _: dict[str, Any]) -> None:
        self.phase = "judging"
        self._halt()

    def _on_over(self, row: dict[str, Any]) -> None:
        self.phase, self.over = "idle", row
        if self._commands is not None:
            self._commands.close()
            self._commands = None
        self._halt()

    def _halt(self) -> None:
        """Locust stops, unless it is at it: two at a time can leave it in its cleanup for ever."""
        if self._runner.state in _RUNS:
            self._runner.stop()

    def press(self, what: CommandEvent, **detail: Unpack[CommandDetail]) -> int:
        """Write a command for the run; its number."""
        self._pressed += 1
        if what == "start":
            self.phase = "starting"
        writer = self._starts if what == "start" or self._commands is None else self._commands
        row: CommandRow = {
            "row": "command",
            "at_ns": time.monotonic_ns(),
            "what": what,
            "n": self._pressed,
            **detail,
        }
        writer.write(row)
        return self._pressed

    def stopped(self, **_: Any) -> None:
        """Locust stops: by its button, or because the run time it was given is over."""
        if self.phase in _WORKING:
            self.press("stop")

    def failures(self) -> list[dict[str, Any]]:
        """Rows of Locust's failures table, made by the follower."""
        found = self._read("failures.json")
        return json.loads(found) if found else []

    def panel(self, name: str) -> str:
        """A page the follower has made; empty where there is none yet."""
        return self._read(f"{name}.html")

    def _read(self, name: str) -> str:
        if self.run is None:
            return ""
        try:
            return (self.run.cockpit / name).read_text("utf-8")
        except FileNotFoundError:
            return ""

    def state(self) -> dict[str, Any]:
        """What the strip above everything shows."""
        name = self.run.path.name if self.run is not None else ""
        links = []
        if self.run is not None:
            found = sorted(p.name for p in self.run.incidents.glob("[0-9]*-*")) if self.run.incidents.is_dir() else []
            links = [{"title": f"incident {p}", "href": f"incidents/{p}/incident.md"} for p in found[-5:]]
            if self.over and self.run.report_html.exists():
                links.insert(0, {"title": "report", "href": "report.html"})
        return {
            "phase": self.phase,
            "profile": self.web.get("profile"),
            "about": self.web.get("about"),
            "run": name,
            "verdict": self.over.get("verdict"),
            "exit_code": self.over.get("exit_code"),
            "error": self.over.get("error"),
            "links": links,
            "older": [n for n in self.runs if n != name][-5:],
        }


def extend(environment: Environment, home: Path) -> None:
    """Add ours to Locust's web UI, before it listens."""
    web_ui = environment.web_ui
    cockpit = Cockpit(environment, home)
    environment.events.test_stopping.add_listener(cockpit.stopped)
    threading.Thread(target=cockpit.follow, name="session", daemon=True).start()
    token = auth.guard(web_ui)
    web_ui.template_args = {
        **web_ui.template_args, "extended_tabs": _TABS,
        "extended_csv_files": [{"href": "./loadchaos/report", "title": "loadchaos: report of the last run"}],
    }  # fmt: skip
    _routes(web_ui, cockpit, token)
    _hooks(web_ui.app, environment, cockpit, token)


def _routes(web_ui: auth.WebUi, cockpit: Cockpit, token: str) -> None:
    def route(path: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        return lambda view: web_ui.app.route("/loadchaos/" + path, **options)(web_ui.auth_required_if_enabled(view))

    @route("state")
    def state() -> Response:
        return jsonify(cockpit.state())

    @route("panel/<name>")
    def panel(name: str) -> str:
        return cockpit.panel(name) if name in _PANELS else abort(404)

    @route("attack", methods=["POST"])
    def attack() -> Response:
        auth.need(token)
        asked = request.get_json(silent=True)
        if not isinstance(asked, dict) or cockpit.phase != "load":
            abort(409, "no load goes on")
        kind, name, title, params = (asked.get(key) for key in ("kind", "name", "title", "params"))
        return jsonify({"n": cockpit.press("attack", kind=kind, name=name, title=title, params=params)})

    @route("report")
    def report() -> Response:
        if cockpit.run is None:
            abort(404, "no run yet")
        return file_of(cockpit.run.path.name, "report.html")

    @route("runs/<run>/<path:name>")
    def shown(run: str, name: str) -> Response:
        return file_of(run, name)

    def file_of(run: str, name: str) -> Response:
        folder = cockpit.runs.get(run)
        parts = Path(name).parts
        if folder is None or ".." in parts or not (name in _SHOWN or parts[0] == "incidents"):
            abort(404)
        as_text = "text/plain" if not name.endswith((".html", ".json")) else None
        return send_from_directory(folder, name, mimetype=as_text, max_age=0)

    @web_ui.app.route("/loadchaos/cockpit.js")
    def script() -> Response:
        return send_from_directory(Path(__file__).parent, "webui.js", mimetype="text/javascript", max_age=0)


def _hooks(app: Flask, environment: Environment, cockpit: Cockpit, token: str) -> None:
    """Around Locust's own routes: Start and Edit become commands, failures get their ids, the page gets our script."""

    @app.before_request
    def before() -> Response | None:
        if request.path != "/swarm" or request.method != "POST":
            return None
        g.edits = environment.runner.state in _RUNS
        target = str(cockpit.web["target"])
        if request.form.get("host", target) != target:
            return _refuse(f"the server is chosen where loadchaos was started (--target): it stays {target}", target)
        if not g.edits and cockpit.phase != "idle":
            return _refuse("the last run is still being judged: a moment", target)
        return None

    @app.after_request
    def after(response: Response) -> Response:
        if request.path == "/swarm" and request.method == "POST" and (response.json or {}).get("success"):
            users, rate = int(request.form["user_count"]), float(request.form["spawn_rate"])
            planned = int(cockpit.web["users"])
            edited = (users, rate) != (planned, float(planned))
            cockpit.press(
                "users" if g.edits else "start", users=users, rate=rate, planned=planned, edited=edited or g.edits
            )
        elif request.path == "/stats/requests" and response.status_code == 200:
            # Locust keeps this answer for 2 s: who starts at once after loading the page would be told `ready`, and stay.
            fresh = {"state": environment.runner.state, "errors": cockpit.failures()}
            response.set_data(json.dumps({**(response.json or {}), **fresh}))
        elif request.path == "/" and response.status_code == 200 and response.mimetype == "text/html":
            ours = (
                f"<script>window.loadchaos={{token:{json.dumps(token)}}}</script><script src='./loadchaos/cockpit.js'>"
            )
            page = response.get_data(as_text=True).replace("</body>", f"{ours}</script></body>")
            response.set_data(page)
        return response


def _refuse(why: str, host: str) -> Response:
    """As Locust's form shows it."""
    return jsonify({"success": False, "message": why, "host": host})
