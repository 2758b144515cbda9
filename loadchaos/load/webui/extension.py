"""Extend Locust's web UI: tabs, failure ids, attack buttons, report links.

It reads the ledger and the pages that the follower makes of it, writes commands.jsonl and judges nothing. It uses only
Locust's own extension points (template_args, the Flask app, the login manager).
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
from loadchaos.core.ledger.rows import CommandDetail, CommandEvent, CommandRow, SessionDetail, SessionRow, as_typed
from loadchaos.core.ledger.writer import Writer
from loadchaos.load.webui import auth

_POLL_S = 0.05
_PANELS = ("server", "attacks", "charts", "capacity")
_TABS = [{"title": name, "key": name.lower()} for name in ("Server", "Attacks", "Capacity")]
_FILES = ("report.html", "verdict.json", "junit.xml", "profile.yaml", "server.log")
_SEARCH_FILES = ("report.html", "capacity.json", "capacity.csv")
_LOAD_STATES = ("spawning", "running")
_STOPPABLE_PHASES = ("starting", "preparing", "load")


class Environment(Protocol):
    """The part of Locust's Environment that is used here."""

    web_ui: auth.LocustWebUi
    runner: Any
    events: Any


class RunView:
    """The current run, its phase and its command files, in the web process."""

    def __init__(self, environment: Environment, folder: Path) -> None:
        self._runner: Any = environment.runner
        self._home = folder
        self._session = Tail(folder / "session.jsonl")
        self._session_commands = Writer(folder / "commands.jsonl", "web")
        self._commands: Writer | None = None
        self._command_count = 0
        self.web: SessionDetail = {}
        self.phase = "idle"
        self.run: RunFolder | None = None
        self.runs: dict[str, Path] = {}
        self.searches: dict[str, Path] = {}
        self._newest_search: tuple[str, str] | None = None  # its name and its answer
        self.result: SessionDetail = {}
        self.read()

    def follow(self) -> None:
        while True:
            self.read()
            time.sleep(_POLL_S)

    def read(self) -> None:
        for row in self._session.rows():
            if (typed := as_typed(row))["row"] == "session":
                self._follow(typed)

    def _follow(self, row: SessionRow) -> None:
        what = row["what"]
        if what == "web":
            self.web = row
        elif what == "search":
            folder = Path(row["folder"])
            self.searches[folder.name], self._newest_search = folder, (folder.name, row["about"])
        elif what == "run":
            self.run, self.phase, self.result = RunFolder(Path(row["folder"])), "preparing", {}
            self.runs[self.run.path.name] = self.run.path
            self._commands = Writer(self.run.commands, "web")
        elif what == "load":
            self.phase = "load"
        elif what == "load_over":
            self.phase = "judging"
            self._stop_locust()
        elif what == "over":
            self.phase, self.result = "idle", row
            if self._commands is not None:
                self._commands.close()
                self._commands = None
            self._stop_locust()

    def _stop_locust(self) -> None:
        """Stop Locust if it runs. Two stops at a time can leave it in its cleanup for ever."""
        if self._runner.state in _LOAD_STATES:
            self._runner.stop()

    def send_command(self, what: CommandEvent, **detail: Unpack[CommandDetail]) -> int:
        """Write a command for the run; returns its number."""
        self._command_count += 1
        if what == "start":
            self.phase = "starting"
        writer = self._session_commands if what == "start" or self._commands is None else self._commands
        row: CommandRow = {
            "row": "command",
            "at_ns": time.monotonic_ns(),
            "what": what,
            "n": self._command_count,
            **detail,
        }
        writer.write(row)
        return self._command_count

    def stopped(self, **_: Any) -> None:
        """Handle Locust's stop: by its button, or at the end of its run time."""
        if self.phase in _STOPPABLE_PHASES:
            self.send_command("stop")

    def failures(self) -> object:
        return json.loads(self._read("failures.json") or "[]")

    def panel(self, name: str) -> str:
        """A page of the follower or the session; empty where there is none."""
        return self._read(f"{name}.html", self._home if name == "capacity" else None)

    def _read(self, name: str, folder: Path | None = None) -> str:
        if folder is None and self.run is not None:
            folder = self.run.cockpit
        if folder is None:
            return ""
        try:
            return (folder / name).read_text("utf-8")
        except FileNotFoundError:
            return ""

    def state(self) -> dict[str, object]:
        name = self.run.path.name if self.run is not None else ""
        links = []
        if self.run is not None:
            found = sorted(p.name for p in self.run.incidents.glob("[0-9]*-*")) if self.run.incidents.is_dir() else []
            links = [{"title": f"incident {p}", "href": f"incidents/{p}/incident.md"} for p in found[-5:]]
            if self.result and self.run.report_html.exists():
                links.insert(0, {"title": "report", "href": "report.html"})
        return {
            "phase": self.phase,
            "profile": self.web.get("profile"),
            "about": self.web.get("about"),
            "run": name,
            **{key: self.result.get(key) for key in ("verdict", "exit_code", "error")},
            "links": links,
            "search": dict(zip(("name", "about"), self._newest_search, strict=True)) if self._newest_search else None,
            "older": [n for n in self.runs if n != name][-5:],
        }


def extend_web_ui(environment: Environment, folder: Path) -> None:
    """Add our parts to Locust's web UI, before it listens."""
    web_ui = environment.web_ui
    view = RunView(environment, folder)
    environment.events.test_stopping.add_listener(view.stopped)
    threading.Thread(target=view.follow, name="session", daemon=True).start()
    token = auth.protect(web_ui)
    web_ui.template_args = {
        **web_ui.template_args,
        "extended_tabs": _TABS,
        "extended_csv_files": [{"href": "./loadchaos/report", "title": "loadchaos: report of the last run"}],
    }
    _routes(web_ui, view, token)
    _hooks(web_ui.app, environment, view, token)


def _routes(web_ui: auth.LocustWebUi, view: RunView, token: str) -> None:
    def route(path: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        return lambda view: web_ui.app.route("/loadchaos/" + path, **options)(web_ui.auth_required_if_enabled(view))

    @route("state")
    def state() -> Response:
        return jsonify(view.state())

    @route("panel/<name>")
    def panel(name: str) -> str:
        return view.panel(name) if name in _PANELS else abort(404)

    @route("attack", methods=["POST"])
    def attack() -> Response:
        auth.require_token(token)
        body = request.get_json(silent=True)
        if not isinstance(body, dict) or view.phase != "load":
            abort(409, "no load is running")
        kind, name, title, params = (body.get(key) for key in ("kind", "name", "title", "params"))
        return jsonify({"n": view.send_command("attack", kind=kind, name=name, title=title, params=params)})

    @route("report")
    def report() -> Response:
        if view.run is None:
            abort(404, "no run yet")
        return file_of(view.run.path.name, "report.html")

    @route("runs/<run>/<path:name>")
    def run_file(run: str, name: str) -> Response:
        return file_of(run, name)

    @route("searches/<search>/<path:name>")
    def search_file(search: str, name: str) -> Response:
        parts = Path(name).parts
        of_a_step = parts[0] == "steps" and parts[-1] == "report.html"
        return send(view.searches.get(search), name, name in _SEARCH_FILES or of_a_step)

    def file_of(run: str, name: str) -> Response:
        as_text = "text/plain" if not name.endswith((".html", ".json")) else None
        return send(view.runs.get(run), name, name in _FILES or Path(name).parts[0] == "incidents", as_text)

    def send(folder: Path | None, name: str, is_public: bool, mimetype: str | None = None) -> Response:
        if folder is None or ".." in Path(name).parts or not is_public:
            abort(404)
        return send_from_directory(folder, name, mimetype=mimetype, max_age=0)

    @web_ui.app.route("/loadchaos/webui.js")
    def script() -> Response:
        return send_from_directory(Path(__file__).parent, "webui.js", mimetype="text/javascript", max_age=0)


def _hooks(app: Flask, environment: Environment, view: RunView, token: str) -> None:
    """Hook into Locust's own routes. Start and Edit become commands, failures get their ids, the page gets our script."""

    @app.before_request
    def before() -> Response | None:
        if request.path != "/swarm" or request.method != "POST":
            return None
        g.edits = environment.runner.state in _LOAD_STATES
        target = str(view.web["target"])
        if request.form.get("host", target) != target:
            return _refusal(
                f"the server is set by --target when loadchaos starts and cannot be changed here; it is {target}",
                target,
            )
        if not g.edits and view.phase != "idle":
            return _refusal("the last run is still being judged: wait until it is done", target)
        return None

    @app.after_request
    def after(response: Response) -> Response:
        if request.path == "/swarm" and request.method == "POST" and (response.json or {}).get("success"):
            users, rate = int(request.form["user_count"]), float(request.form["spawn_rate"])
            planned = int(view.web["users"])
            edited = (users, rate) != (planned, float(planned))
            view.send_command(
                "users" if g.edits else "start", users=users, rate=rate, planned=planned, edited=edited or g.edits
            )
        elif request.path == "/stats/requests" and response.status_code == 200:
            # Locust caches this answer for 2 s: a page loaded just before Start would read `ready` and stay there.
            fresh = {"state": environment.runner.state, "errors": view.failures()}
            response.set_data(json.dumps({**(response.json or {}), **fresh}))
        elif request.path == "/" and response.status_code == 200 and response.mimetype == "text/html":
            told = json.dumps({"token": token, "profile": view.web.get("profile"), "users": view.web.get("users")})
            known = told.replace("<", "\\u003c")  # a profile's name must not end the script
            script = f"<script>window.loadchaos={known}</script><script src='./loadchaos/webui.js'>"
            page = response.get_data(as_text=True).replace("</body>", f"{script}</script></body>")
            response.set_data(page)
        return response


def _refusal(why: str, host: str) -> Response:
    """Refuse a start in the form that Locust's page shows."""
    return jsonify({"success": False, "message": why, "host": host})
