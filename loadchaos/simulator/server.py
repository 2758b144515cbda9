"""API server process of the embedded server. `python -m loadchaos.simulator.server --dialect vllm --port 0 --defect
NAME --flag k=v` starts it.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import uvloop

from loadchaos.core.open_files import allow_many_open_files
from loadchaos.simulator.defects import rules_of
from loadchaos.simulator.engine.client import EngineClient, EngineDiedEarlyError
from loadchaos.simulator.engine.process import TITLES, name_process
from loadchaos.simulator.http.api import Api
from loadchaos.simulator.http.server import HttpServer
from loadchaos.simulator.lmdeploy.api import LmdeployApi
from loadchaos.simulator.lmdeploy.lifecycle_log import LmdeployLifecycleLog
from loadchaos.simulator.options import DIALECTS, Options, SimulatorSpec, make_options
from loadchaos.simulator.vllm.api import VllmApi
from loadchaos.simulator.vllm.lifecycle_log import VllmLifecycleLog

_DEATH_WINDOW_S = 0.1  # between an engine's death and the listener's end a real server still answers /health (0.32)
_DRAIN_S = 1.0  # for connections to receive their last bytes


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadchaos.simulator.server", description=__doc__)
    parser.add_argument("--dialect", default="vllm", help=f"which server to imitate: {', '.join(DIALECTS)}")
    parser.add_argument("--era", default=None, help="its release, such as 0.18 or 0.8.1")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: a free one, which the log names")
    parser.add_argument("--reserved-port", action="store_true", help="the port is bound already, by the caller")
    parser.add_argument("--defect", action="append", default=[], help="plant a bug; may be repeated")
    parser.add_argument("--flag", action="append", default=[], metavar="KEY=VALUE", help="a flag of the real server")
    parser.add_argument("--speed", type=float, default=None, help="divides every step's duration")
    return parser


def config_from_args(argv: Sequence[str]) -> Options:
    """Return the options of a command line. Raises ValueError for an unknown name, with the nearest known one."""
    args = arguments().parse_args(argv)
    flags: dict[str, object] = {}
    for given in args.flag:
        key, equals, value = given.partition("=")
        flags[key] = value if equals else True
    if args.speed is not None:
        flags["speed"] = args.speed
    spec = SimulatorSpec(args.dialect, args.era, args.defect, flags)
    options = make_options(spec, host=args.host, port=args.port)
    return replace(options, port_is_reserved=args.reserved_port)


class ApiServer:
    """The API server; it dies as the imitated server does with its engine."""

    def __init__(self, options: Options, engine: EngineClient, pipe: socket.socket) -> None:
        self._options = options
        self._engine = engine
        self._pipe = pipe
        vllm = options.engine.dialect == "vllm"
        self._lifecycle = VllmLifecycleLog(options) if vllm else LmdeployLifecycleLog(options)
        self._api: Api = VllmApi(options, engine) if vllm else LmdeployApi(options, engine)
        self._exit_code = 0
        self._finished = asyncio.Event()
        self._stopping = False

    async def run(self) -> int:
        """Serve until the engine dies or a signal comes. Returns the exit code."""
        allow_many_open_files()
        self._lifecycle.start()
        try:
            await self._engine.start(self._pipe)
        except EngineDiedEarlyError:
            self._lifecycle.failed_start()
            return 1
        rules = rules_of(self._options.engine)
        http = HttpServer(self._api.handle, self._options.server.quiet, rules.most_unfinished_connections)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._terminate, http)
        self._engine.on_death = lambda: self._engine_died(http)
        port = await http.listen(self._options.host, self._options.port, reserved=self._options.port_is_reserved)
        self._lifecycle.listening(port)
        self._api.warm_up()
        await self._finished.wait()
        await self._shut_down(http)
        return self._exit_code

    def _engine_died(self, http: HttpServer) -> None:
        if self._stopping:
            return
        self._lifecycle.death()
        self._engine.fail_all_requests()
        after = self._api.exit_code_on_death
        if after is None:
            return
        self._exit_code = after
        asyncio.get_running_loop().call_later(_DEATH_WINDOW_S, self._close, http)

    def _terminate(self, http: HttpServer) -> None:
        """Handle SIGTERM. The listener closes at once. Requests in flight end with the same bodies as after an engine
        death.
        """
        if not self._stopping:
            self._close(http)
            self._engine.fail_all_requests()

    def _close(self, http: HttpServer) -> None:
        if not self._stopping:
            self._stopping = True
            self._lifecycle.shutting_down()
            http.close_listener()
            self._finished.set()

    async def _shut_down(self, http: HttpServer) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _DRAIN_S
        while http.connections and loop.time() < until:  # noqa: ASYNC110 - once per process, and bounded
            await asyncio.sleep(0.02)
        http.close_all()
        self._engine.stop()
        self._lifecycle.stopped()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server. Returns the exit code; 2 for bad options."""
    try:
        options = config_from_args(sys.argv[1:] if argv is None else argv)
    except ValueError as wrong:
        sys.stderr.write(f"error: {wrong}\n")
        return 2
    with Path(__file__).open("rb") as own:
        mapped = mmap.mmap(own.fileno(), 0, access=mmap.ACCESS_READ)  # what shows that it is no forwarder of that name
    name_process("VLLM::APIServer" if options.engine.dialect == "vllm" else "lmdeploy")
    engine = EngineClient(options.engine, TITLES[options.engine.dialect])
    pipe = engine.spawn()
    try:
        return uvloop.run(ApiServer(options, engine, pipe).run())
    finally:
        engine.stop()
        engine.reap()
        mapped.close()


if __name__ == "__main__":
    sys.exit(main())
