"""Process with the recording proxy of a watch, and the command whose requests pass it: `python -m ...proxy_load`.

It writes what a load process writes: requests-0.jsonl with begin and end rows, heartbeats, and the begin and end of the
load. It obeys `stop` of control.jsonl. Its output is that of the command, which command.log has without secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import uvloop

from loadchaos.campaigns.recorder.channel import RecordingChannel
from loadchaos.campaigns.recorder.frames import RecordingSetup
from loadchaos.campaigns.recorder.proxy import StreamingProxy, Upstream
from loadchaos.campaigns.recorder.reported.find import find_result_file
from loadchaos.campaigns.recorder.ring import RECORDING
from loadchaos.campaigns.watch.ledger_tap import RequestLog
from loadchaos.core.errors import LedgerError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.rows import LoadRow
from loadchaos.core.lifetime import end_with, parent_pid
from loadchaos.core.limits import HEARTBEAT_S
from loadchaos.core.model import Facts
from loadchaos.core.open_files import allow_many_open_files
from loadchaos.core.redact import Redactor
from loadchaos.core.reported_figures import ReportedFigures
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.core.urls import host_and_port, host_port
from loadchaos.load.worker.recorder import RequestRecorder
from loadchaos.run.others_load import SETUP_VARIABLE, ProxySetup

COMMAND_LOG = "command.log"
COMMAND_GRACE_S = 2.0
"""Time of a command from SIGTERM to SIGKILL."""
DRAIN_S = 2.0
"""Time of open answers after the end."""
_READ_RESULT_S = 30.0
_KEEP_S, _MOST_BYTES = 7 * 86_400.0, 1 << 30
_MOST_LOG_BYTES = 64 << 20


class Proxied:
    """Proxy, rows and command of one watch."""

    def __init__(self, setup: ProxySetup) -> None:
        self._setup = setup
        self._folder = RunFolder(Path(setup.folder))
        facts = from_json(Facts, orjson.loads(self._folder.facts.read_bytes()))
        self._redactor = Redactor.from_environment(os.environ)
        self._recorder = RequestRecorder(self._folder.requests(0), 0)
        # A command of a test is sent again as it was; of production traffic only the shapes are kept.
        recording = RecordingSetup(
            folder=str(self._folder.path / RECORDING), keep_s=_KEEP_S, max_bytes=_MOST_BYTES,
            bodies=bool(setup.command), upstream=setup.url, recording=secrets.token_hex(4), key=secrets.token_hex(32),
        )  # fmt: skip
        self._channel = RecordingChannel(recording, lambda _: None)
        self._log = RequestLog(self._recorder, self._channel, facts, self._redactor)
        parts = urlsplit(setup.url)
        host, port = host_and_port(setup.url)
        tls = setup.tls.context() if parts.scheme == "https" else None
        self._path = parts.path.rstrip("/")
        self._proxy = StreamingProxy(Upstream(*(setup.via or (host, port)), tls, host), self._log.connection)
        self._stop = asyncio.Event()

    async def run(self) -> int:
        allow_many_open_files()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop.set)
        await self._channel.start()
        host, port = self._setup.listen
        port = await self._proxy.listen(host, port)
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        url = f"http://{host_port(shown, port)}{self._path}"
        say(f"the recording proxy listens on {url}")
        self._row({"row": "load", "at_ns": time.monotonic_ns(), "what": "begin"})
        work = [asyncio.create_task(part) for part in (self._beat(), self._channel.run())]
        self._since_ns = time.time_ns()
        code = await (self._command(url, shown, port) if self._setup.command else self._stop.wait())
        await self._proxy.close(DRAIN_S if self._log.recorder.in_flight else 0)
        await asyncio.sleep(0.05)  # closed connections end their requests
        for task in work:
            task.cancel()
        self._recorder.heartbeat(0)
        end: LoadRow = {
            "row": "load", "at_ns": time.monotonic_ns(), "what": "end",
            "why": "stopped" if self._stop.is_set() else "done", "not_read": dict(self._log.not_read),
        }  # fmt: skip
        if self._setup.command:
            end["code"] = code
            if (found := await self._reported()) is not None:
                end["reported"] = to_json(found)
        self._row(end)
        self._recorder.close()
        await self._channel.close()
        return 0 if self._log.failure is None else LedgerError.exit_code

    async def _reported(self) -> ReportedFigures | None:
        """Read what the command reported in a file below the current folder, if this does not take too long."""
        runs = self._folder.path.resolve().parent
        command = self._setup.command
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COMMAND_GRACE_S if self._stop.is_set() else _READ_RESULT_S):
                return await asyncio.to_thread(find_result_file, Path.cwd(), command, self._since_ns, leave_out=runs)
        return None

    def _row(self, row: LoadRow) -> None:
        self._recorder.write(row)

    async def _beat(self) -> None:
        """Write heartbeats, and look for the order to stop."""
        control = Tail(self._folder.control)
        while True:
            due_s = time.monotonic() + HEARTBEAT_S
            try:
                self._recorder.heartbeat(len(self._proxy.links))
            except LedgerError as e:
                self._log.failure = self._log.failure or e
            if self._log.failure is not None or any(row.get("what") == "stop" for row in control.rows()):
                self._stop.set()
            await asyncio.sleep(HEARTBEAT_S)
            self._recorder.note_lag(max(0, int((time.monotonic() - due_s) * 1e9)))

    async def _command(self, url: str, host: str, port: int) -> int:
        """Run the command to its end, or to ours. Returns its exit code; negative: the signal that ended it."""
        words = {"{url}": url, "{host}": host, "{port}": str(port)}
        argv = [_filled(word, words) for word in self._setup.command]
        env = {**os.environ, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_BASE": f"{url}/v1"}
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        except OSError as e:
            say(f"{argv[0]}: {e.strerror or e}")
            return 127
        assert process.stdout is not None
        output = asyncio.create_task(self._copy(process.stdout))
        ended = asyncio.create_task(process.wait())
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait((ended, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        await _end_group(process)  # what it started and left behind, too
        await ended
        await asyncio.wait((output,), timeout=COMMAND_GRACE_S)
        return process.returncode if process.returncode is not None else -signal.SIGKILL

    async def _copy(self, output: asyncio.StreamReader) -> None:
        written, last = 0, b"\n"
        with (self._folder.path / COMMAND_LOG).open("wb") as log:
            while data := await output.read(1 << 16):
                last = data[-1:]
                with contextlib.suppress(OSError):
                    os.write(1, data)
                if written < _MOST_LOG_BYTES:
                    written += log.write(self._redactor.feed(data))
                    log.flush()
            log.write(self._redactor.flush())
        if last != b"\n":  # our own lines come next
            with contextlib.suppress(OSError):
                os.write(1, b"\n")


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """End a command with all that it started: SIGTERM, and SIGKILL after the grace."""
    for number, grace_s in ((signal.SIGTERM, COMMAND_GRACE_S), (signal.SIGKILL, 1.0)):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            return
        until_s = time.monotonic() + grace_s
        while time.monotonic() < until_s:
            await asyncio.sleep(0.02)
            with contextlib.suppress(PermissionError):
                try:
                    os.killpg(process.pid, 0)
                except ProcessLookupError:
                    return


def say(text: str) -> None:
    sys.stderr.write(f"loadchaos: {text}\n")
    sys.stderr.flush()


def main() -> int:
    end_with(parent_pid(), grace_s=COMMAND_GRACE_S + 3.0)
    setup = from_json(ProxySetup, json.loads(os.environ.pop(SETUP_VARIABLE)))
    try:
        return uvloop.run(Proxied(setup).run())
    except OSError as e:
        say(f"--listen {host_port(*setup.listen)}: {e.strerror or e}; choose another address or a free port")
    except LedgerError as e:
        say(str(e))
    return LedgerError.exit_code


if __name__ == "__main__":
    sys.exit(main())
