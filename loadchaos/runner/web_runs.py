"""`loadchaos run --web`: Locust's web UI goes on until Ctrl-C, and each Start...Stop in it is a run of its own."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadchaos.core.errors import LedgerError, OptionError
from loadchaos.profile.profile import Profile
from loadchaos.runner.options import Options, locust_arguments, place
from loadchaos.runner.run import Pressed, Result, run
from loadchaos.runner.web_session import Ui, Web

_LOOK_S = 0.05
_READY_S = 30.0
_END_S = 5.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PASSWORD_BYTES = 12


@dataclass(frozen=True)
class Address:
    """Where the web UI shall listen."""

    host: str = "127.0.0.1"
    port: int = 8089


async def cockpit(
    profile: Profile, options: Options, at: Address, say: Callable[[str], None], told: Callable[[Result], None]
) -> int:
    """Serve the web UI and run what Start asks for; `told` gets each run's result. Returns the last run's exit code.

    LoadchaosError for what is wrong before anything is started.
    """
    if options.master is not None:
        raise OptionError(
            "--web and --master exclude each other, as workers on other machines come for one run and not for each Start: "
            "leave --web out (loadchaos follow RUN and Grafana show such a run live), or take --processes N for --master"
        )
    where = place(profile, options)
    target = where.url or ("http://embedded-server" if where.kind == "embedded" else "http://launched-server")
    web = Web(
        at.host,
        _free(at),
        profile.name,
        profile.about,
        target,
        max(phase.slots for phase in profile.load),
        options.processes,
        None if at.host in _LOOPBACK else secrets.token_urlsafe(_PASSWORD_BYTES),
    )
    home = Path(tempfile.mkdtemp(prefix="loadchaos-web-"))
    ui = Ui(home, web)
    try:
        code = await _serve(ui, profile, options, say, told)
    finally:
        await ui.end(_END_S)
        ui.close()
    shutil.rmtree(home, ignore_errors=True)
    return code


async def _serve(
    ui: Ui, profile: Profile, options: Options, say: Callable[[str], None], told: Callable[[Result], None]
) -> int:
    over = asyncio.Event()
    _hear(over)
    await ui.begin(*locust_arguments(options))
    await _until_up(ui, over)
    say(_words(ui.web))
    code = 0
    while not over.is_set():
        if lost := ui.lost():
            raise LedgerError(f"the session ends, start it again with the same command: {lost}")
        # A Stop that comes after a Start nobody has seen yet takes it back.
        start = None
        for row in ui.commands():
            start = row if row.get("what") == "start" else None
        if start is None:
            await asyncio.sleep(_LOOK_S)
            continue
        result = await run(profile, options, Pressed(ui, start))
        _hear(over)
        code = result.exit_code
        if code in (130, 143):
            over.set()
        ui.tell(
            "over",
            folder=str(result.folder.path.resolve()),
            exit_code=code,
            error=result.error,
            verdict=(result.verdict or {}).get("verdict"),
        )
        await asyncio.to_thread(told, result)
    return code


def _hear(over: asyncio.Event) -> None:
    """Between runs a signal ends the session; a run hears them itself."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, over.set)


async def _until_up(ui: Ui, over: asyncio.Event) -> None:
    deadline = asyncio.get_running_loop().time() + _READY_S
    while not over.is_set():
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(_reach(ui.web.host), ui.web.port)
            writer.close()
            return
        if not ui.alive:
            said = ui.log.read_text("utf-8", "replace").strip().splitlines()[-1:]
            raise LedgerError(f"the web UI could not be started (code {ui.code}): {' '.join(said)}; see {ui.log}")
        if asyncio.get_running_loop().time() > deadline:
            raise LedgerError(f"the web UI did not listen within {_READY_S:g} s: see {ui.log}")
        await asyncio.sleep(_LOOK_S)


def _reach(host: str) -> str:
    """Where to knock for a server that listens everywhere."""
    return "127.0.0.1" if host in ("", "*", "0.0.0.0") else host


def _free(at: Address) -> int:
    """The port, or a free one for 0; OptionError where it is taken."""
    family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
    with socket.socket(family) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("" if at.host == "*" else at.host, at.port))
        except OSError as e:
            raise OptionError(
                f"--web-port {at.port} on {at.host} cannot be listened on ({e.strerror}): choose another, or 0"
            ) from None
        return int(s.getsockname()[1])


def _words(web: Web) -> str:
    host = web.host if ":" not in web.host else f"[{web.host}]"
    words = f"web UI: http://{host}:{web.port}/ - Start begins a run of {web.profile}; Ctrl-C here ends the session"
    if web.password is not None:
        words += (
            f"\nlogin: loadchaos, password: {web.password} (this once; it travels unencrypted: better an SSH tunnel)"
        )
    return words
