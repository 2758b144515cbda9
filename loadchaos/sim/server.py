"""The embedded server's API process: `python -m loadchaos.sim.server --dialect vllm --port 0 --defect NAME --flag k=v`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from loadchaos.sim.client import EngineClient, EngineDiedEarlyError
from loadchaos.sim.core import TITLES
from loadchaos.sim.face_vllm import VllmFace
from loadchaos.sim.httpd import HttpServer
from loadchaos.sim.logs import Log
from loadchaos.sim.options import DIALECTS, Options, make_options, release

_DEATH_WINDOW_S = 0.1  # between an engine's death and the listener's end a real server still answers /health (0.32)
_DRAIN_S = 1.0  # how long connections get to take their last bytes


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadchaos.sim.server", description=__doc__)
    parser.add_argument("--dialect", default="vllm", help=f"which server to imitate: {', '.join(DIALECTS)}")
    parser.add_argument("--era", default=None, help="which release, as 0.18 or 0.8.1")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one; the log says which")
    parser.add_argument("--defect", action="append", default=[], help="a bug to plant; may be repeated")
    parser.add_argument("--flag", action="append", default=[], metavar="KEY=VALUE", help="a flag of the real server")
    parser.add_argument("--speed", type=float, default=None, help="divides every step's duration")
    parser.add_argument("--no-images", action="store_true", help="serve a model that takes text only")
    parser.add_argument("--no-dev-mode", action="store_true", help="without the development endpoints")
    return parser


def config_from_args(argv: Sequence[str]) -> Options:
    """The options a command line asks for. Raises ValueError naming the nearest right word."""
    args = arguments().parse_args(argv)
    flags: dict[str, object] = {}
    for given in args.flag:
        key, equals, value = given.partition("=")
        flags[key] = value if equals else True
    if args.speed is not None:
        flags["speed"] = args.speed
    return make_options(
        dialect=args.dialect, era=args.era, defects=args.defect, flags=flags, host=args.host, port=args.port,
        images=not args.no_images, dev_mode=not args.no_dev_mode,
    )  # fmt: skip


class ApiServer:
    """Listens, and dies as the imitated server does when its engine core is gone."""

    def __init__(self, options: Options, engine: EngineClient, pipe: socket.socket) -> None:
        self._options = options
        self._engine = engine
        self._pipe = pipe
        self._log = Log(options.engine.dialect, options.engine.era, "APIServer")
        self._over = asyncio.Event()
        self._stopping = False

    async def run(self) -> int:
        """Serve until the engine dies or a signal comes. Returns the exit code: 0 either way, 1 if it never started."""
        self._tell_start()
        try:
            await self._engine.start(self._pipe)
        except EngineDiedEarlyError:
            self._tell_failed_start()
            return 1
        face = VllmFace(self._options, self._engine)
        http = HttpServer(face.handle, self._options.server.quiet)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._terminate, http)
        self._engine.on_death = lambda: self._engine_died(http)
        port = await http.listen(self._options.host, self._options.port)
        self._tell_listening(port, face)
        face.warm_up()
        await self._over.wait()
        await self._shut_down(http)
        return 0

    def _engine_died(self, http: HttpServer) -> None:
        """The pipe's other end is gone: answer everybody, then close after the short window real servers have."""
        if self._stopping:
            return
        self._tell_death()
        self._engine.fail_all()
        if os.environ.get("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "0") not in {"0", ""}:
            return
        asyncio.get_running_loop().call_later(_DEATH_WINDOW_S, self._close, http)

    def _terminate(self, http: HttpServer) -> None:
        """SIGTERM: the listener closes at once; requests in flight end with the very bodies of an engine death."""
        if self._stopping:
            return
        self._stopping = True
        self._log.raw(["INFO:     Shutting down"])
        http.close_listener()
        self._engine.fail_all()
        self._over.set()

    def _close(self, http: HttpServer) -> None:
        if not self._stopping:
            self._stopping = True
            self._log.raw(["INFO:     Shutting down"])
            http.close_listener()
            self._over.set()

    async def _shut_down(self, http: HttpServer) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _DRAIN_S
        while http.connections and loop.time() < until:  # noqa: ASYNC110 - once in a life, and bounded
            await asyncio.sleep(0.02)
        http.drop()
        self._log.raw(
            [
                "INFO:     Waiting for application shutdown.",
                "INFO:     Application shutdown complete.",
                f"INFO:     Finished server process [{os.getpid()}]",
            ]
        )
        self._log.line("INFO", "core_client.py:770", "[shutdown] MPClient: start timeout=0s")
        self._engine.stop()
        self._log.line("INFO", "core_client.py:777", "[shutdown] MPClient: complete")

    def _tell_start(self) -> None:
        options, log = self._options, self._log
        log.line("INFO", "api_utils.py:286", f"vLLM API server version {options.version}")
        given = {"model": options.server.model, **options.given}
        log.line("INFO", "api_utils.py:286", f"non-default args: {given}")
        log.line("INFO", "model.py:2152", f"Using max model len {options.engine.max_model_len}")
        if options.engine.enable_chunked_prefill:
            text = f"Chunked prefill is enabled with max_num_batched_tokens={options.engine.max_num_batched_tokens}."
            log.line("INFO", "scheduler.py:226", text)
        if options.engine.async_scheduling:
            log.line("INFO", "vllm.py:689", "Asynchronous scheduling is enabled.")

    def _tell_failed_start(self) -> None:
        text = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
        self._log.raw([f"{self._log.tag}{line}" for line in ("Traceback (most recent call last):", text)])

    def _tell_listening(self, port: int, face: VllmFace) -> None:
        options, log = self._options, self._log
        engine = options.engine
        tokens = engine.num_gpu_blocks * engine.block_size
        log.line("INFO", "kv_cache_utils.py:1307", f"GPU KV cache size: {tokens:,} tokens")
        text = (
            f"Maximum concurrency for {engine.max_model_len:,} tokens per request: {tokens / engine.max_model_len:.2f}x"
        )
        log.line("INFO", "kv_cache_utils.py:1312", text)
        if options.server.dev_mode and release(engine.era) >= (0, 18, 0):
            text = "SECURITY WARNING: Development endpoints are enabled! This should NOT be used in production!"
            log.line("WARNING", "__init__.py:44", text)
        log.line("INFO", "entry.py:140", f"Starting vLLM server on http://{options.host}:{port}")
        log.line("INFO", "launcher.py:186", "Available routes are:")
        for path, method in face.routes:
            log.line("INFO", "launcher.py:195", f"Route: {path}, Methods: {method}")
        log.raw(
            [
                f"INFO:     Started server process [{os.getpid()}]",
                "INFO:     Waiting for application startup.",
                "INFO:     Application startup complete.",
                f"INFO:     Uvicorn running on http://{options.host}:{port} (Press CTRL+C to quit)",
            ]
        )

    def _tell_death(self) -> None:
        frames = (
            'File "/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/async_llm.py", line 647, in output_handler',
            "  outputs = await engine_core.get_output_async()",
            'File "/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/core_client.py", line 998, in get_output_async',
            "  raise self._format_exception(outputs) from None",
        )
        dead = (
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the "
            "root cause."
        )
        head = ["AsyncLLM output_handler failed.", "Traceback (most recent call last):"]
        self._log.error("async_llm.py:703", [*head, *(f"  {line}" for line in frames), dead])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server. Returns the exit code; 2 for options that cannot be."""
    try:
        options = config_from_args(sys.argv[1:] if argv is None else argv)
    except ValueError as wrong:
        sys.stderr.write(f"error: {wrong}\n")
        return 2
    _name_process("VLLM::APIServer" if options.engine.dialect == "vllm" else "lmdeploy")
    engine = EngineClient(options.engine, TITLES[options.engine.dialect])
    pipe = engine.spawn()
    try:
        return uvloop.run(_serve(options, engine, pipe))
    finally:
        engine.stop()
        engine.reap()


async def _serve(options: Options, engine: EngineClient, pipe: socket.socket) -> int:
    return await ApiServer(options, engine, pipe).run()


def _name_process(title: str) -> None:
    try:
        Path("/proc/self/comm").write_text(title[:15])
    except OSError:
        pass  # not Linux


if __name__ == "__main__":
    sys.exit(main())
