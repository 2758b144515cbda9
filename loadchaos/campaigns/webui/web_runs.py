"""Serve Locust's web UI; each Start in it is a run (`run --web`)."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from loadchaos.campaigns.webui.web_searches import WebSearches
from loadchaos.core.errors import LedgerError, OptionError
from loadchaos.core.urls import LOOPBACK
from loadchaos.profile.profile import Profile
from loadchaos.run.finalize import Result
from loadchaos.run.interrupts import Interrupts
from loadchaos.run.load_session import WebStart
from loadchaos.run.options import Options, locust_arguments, target_spec
from loadchaos.run.ports import bindable_port
from loadchaos.run.run import run
from loadchaos.run.web_session import WebUiProcess, WebUiSettings

_POLL_S = 0.05
_READY_S = 30.0
_END_S = 5.0
_PASSWORD_BYTES = 12


class WebSession:
    """A web UI in which each Start is a run of the profile. `print_result` gets the result of each run."""

    def __init__(
        self,
        profile: Profile,
        options: Options,
        interrupts: Interrupts,
        print_line: Callable[[str], None],
        print_result: Callable[[Result], None],
    ) -> None:
        self._profile, self._options, self._interrupts = profile, options, interrupts
        self._print, self._print_result = print_line, print_result

    async def serve(self, host: str, port: int) -> int:
        """Serve until a signal; returns the exit code of the last run. Raises LoadchaosError without a web UI."""
        options, profile = self._options, self._profile
        if options.master is not None:
            raise OptionError(
                "--web and --master exclude each other: workers on other machines connect for one run, not for each Start. "
                "Leave --web out (`loadchaos follow RUN` and Grafana show such a run live), or use --processes N for "
                "--master"
            )
        target = target_spec(profile, options)
        url = target.url or ("http://embedded-server" if target.kind == "embedded" else "http://launched-server")
        try:
            free = bindable_port(host, port)
        except OSError as e:
            raise OptionError(
                f"--web-port {port} on {host} cannot be used ({e.strerror}): choose another port, or 0"
            ) from None
        settings = WebUiSettings(
            host=host,
            port=free,
            profile=profile.name,
            about=profile.about,
            target=url,
            users=max(phase.slots for phase in profile.load),
            processes=options.processes,
            password=None if host in LOOPBACK else secrets.token_urlsafe(_PASSWORD_BYTES),
        )
        home = Path(tempfile.mkdtemp(prefix="loadchaos-web-"))
        ui = WebUiProcess(home, settings)
        try:
            with self._interrupts.handled_by(lambda _: None):  # between two runs: the loops below look at them
                code = await self._serve(ui)
        finally:
            await ui.end(_END_S)
            ui.close()
        shutil.rmtree(home, ignore_errors=True)
        return code

    async def _serve(self, ui: WebUiProcess) -> int:
        searches = WebSearches(self._options.out, ui)
        await ui.begin(*locust_arguments(self._options, self._profile))
        await _wait_until_up(ui, self._interrupts)
        self._print(_start_lines(ui.web))
        following = asyncio.create_task(searches.follow())
        try:
            return await self._runs(ui)
        finally:
            following.cancel()

    async def _runs(self, ui: WebUiProcess) -> int:
        code = 0
        while not self._interrupts:
            if lost := ui.lost_reason():
                raise LedgerError(f"the web session has ended ({lost}); start it again with the same command")
            # A Stop that comes after a Start which was not read yet cancels that Start.
            start = None
            for row in ui.commands():
                start = row if row.get("what") == "start" else None
            if start is None:
                await asyncio.sleep(_POLL_S)
                continue
            result = await run(self._profile, self._options, self._interrupts, WebStart(ui, start))
            code = result.exit_code
            ui.write(
                "over",
                folder=str(result.folder.path.resolve()),
                exit_code=code,
                error=result.error,
                verdict=result.verdict.verdict if result.verdict is not None else None,
            )
            await asyncio.to_thread(self._print_result, result)
        return code


async def _wait_until_up(ui: WebUiProcess, interrupts: Interrupts) -> None:
    deadline = asyncio.get_running_loop().time() + _READY_S
    while not interrupts:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(_connect_host(ui.web.host), ui.web.port)
            writer.close()
            return
        if not ui.alive:
            error = ui.log.read_text("utf-8", "replace").strip().splitlines()[-1:]
            raise LedgerError(
                f"the web UI could not be started (exit code {ui.exit_code}): {' '.join(error)}; see {ui.log}"
            )
        if asyncio.get_running_loop().time() > deadline:
            raise LedgerError(f"the web UI did not listen within {_READY_S:g} s: see {ui.log}")
        await asyncio.sleep(_POLL_S)


def _connect_host(host: str) -> str:
    """Host to connect to; loopback for a server that listens on all addresses."""
    return "127.0.0.1" if host in ("", "*", "0.0.0.0") else host


def _start_lines(web: WebUiSettings) -> str:
    host = web.host if ":" not in web.host else f"[{web.host}]"
    link = f"?token={web.token}" if web.password is None else ""
    lines = (
        f"web UI: http://{host}:{web.port}/{link} (Start begins a run of {web.profile}; Ctrl-C here ends the session)"
    )
    if web.password is not None:
        lines += f"\nlogin: loadchaos, password: {web.password} (for this session; sent unencrypted: use an SSH tunnel)"
    return lines
