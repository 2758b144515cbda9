"""Engine core process: steps the engine in real time. It sends one frame to the API server for each step. The API
server starts it with one end of a socket pair. It ends when the other end is gone, so it never outlives the API server.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from loadchaos.simulator.engine import crash_text
from loadchaos.simulator.engine import pipe as frames
from loadchaos.simulator.engine.engine import Engine
from loadchaos.simulator.engine.types import EngineConfig, EngineFault
from loadchaos.simulator.http.logs import Log

TITLES = {"vllm": "VLLM::EngineCore", "lmdeploy": "MPEngine"}
_ADMIN_CALLS = {"reset_mm_cache", "reset_encoder_cache", "reset_prefix_cache", "pause", "resume", "sleep", "wake_up"}
_LEAST_STEP_S = 0.0005  # a step that schedules nothing must not spin a core of a shared machine
_TERM_GRACE_S = 0.2  # a group-wide SIGTERM reaches the API server too: let it log a shutdown and no death


class _PipeClosed(Exception):  # noqa: N818 - a signal in our own flow, never seen by a user
    """The API server's end of the pipe is closed."""


class EngineCore:
    """The engine and its end of the pipe."""

    def __init__(self, pipe: socket.socket) -> None:
        self._pipe = pipe
        self._splitter = frames.FrameSplitter()
        self._pending: list[list[Any]] = []
        config = self._receive_config()
        self._config = config
        self._log = Log(config.dialect, config.era, "EngineCore")
        if config.dialect == "vllm":
            text = f"Initializing a V1 LLM engine {crash_text.config_text(config)}, seed={config.seed}"
            self._log.line("INFO", "core.py:102", text)
        self._engine = Engine(config)
        self._send(["ready", os.getpid()])

    def run(self) -> None:
        """Step while there is work, wait while there is none, for ever. Raises EngineFault when the engine dies, and
        _PipeClosed at the end of the pipe.
        """
        due = time.monotonic()
        while True:
            self._apply_messages()
            if not self._engine.has_work:
                self._receive(None)
                due = time.monotonic()
                continue
            due = max(due, time.monotonic() - 0.05)  # time lost on a slow machine is not made up for in a burst
            result = self._engine.step()
            due += max(result.duration_s, _LEAST_STEP_S)
            while (left := due - time.monotonic()) > 0:
                self._receive(left)
            self._log_step(result.log)
            outputs = [frames.values_of(output) for output in result.outputs]
            self._send(["step", outputs, result.scheduled_tokens, frames.values_of(self._engine.stats())])
            self._receive(0)

    def report(self, fault: EngineFault) -> None:
        log, traceback = self._log, list(fault.traceback)
        log.raw(fault.raw_before)
        if self._config.dialect == "lmdeploy":
            for line in fault.log_before:
                log.line("ERROR", "engine.py:912", line)
            if self._config.release < (0, 7, 0):
                log.error("request.py:21", [f"Engine loop failed with error: {fault.title}", *traceback])
            else:
                log.error("engine.py:928", ["Task <MainLoopBackground> failed", *traceback])
            return
        for line in fault.log_before:
            log.line("ERROR", "dump_input.py:72", line)
        where = "core.py:1512" if self._config.release >= (0, 30, 0) else "core.py:1100"
        log.error(where, ["EngineCore encountered a fatal error.", *traceback])
        log.raw(f"{log.tag}{line}" for line in ("Process EngineCore:", *traceback))

    def _receive_config(self) -> EngineConfig:
        while not self._pending:
            self._receive(None)
        _, values = self._pending.pop(0)
        values["defects"] = frozenset(values["defects"])
        return EngineConfig(**values)

    def _apply_messages(self) -> None:
        pending, self._pending = self._pending, []
        for message in pending:
            kind = message[0]
            if kind == "add":
                self._engine.add(frames.request_of(message[1]))
            elif kind == "abort":
                self._engine.abort(message[1])
                self._send(["stats", frames.values_of(self._engine.stats())])
            else:
                self._send(["reply", message[1], self._admin_call(message[2], message[3])])

    def _admin_call(self, method: str, arguments: list[Any]) -> Any:
        if method not in _ADMIN_CALLS:
            return True
        found = getattr(self._engine, method)(*arguments)
        if isinstance(found, list):  # warnings of a reset
            for line in found:
                self._log.line("WARNING", "core.py:557", line)
        return found if isinstance(found, bool) else True

    def _log_step(self, lines: Sequence[str]) -> None:
        of_thread = False
        for line in lines:
            if line.startswith(("Exception in thread", "Unexpected error pre-processing")):
                of_thread = line.startswith("Exception")
            if of_thread:
                self._log.raw([f"{self._log.tag}{line}"])
            else:
                self._log.line("ERROR", "core.py:1378", line)

    def _receive(self, timeout_s: float | None) -> None:
        """Receive messages, waiting at most `timeout_s` for the first. Raises _PipeClosed at the end of the pipe."""
        ready, _, _ = select.select([self._pipe], [], [], timeout_s)
        if not ready:
            return
        try:
            data = self._pipe.recv(1 << 20)
        except ConnectionError as broken:  # the API server was killed with something of ours unread
            raise _PipeClosed from broken
        if not data:
            raise _PipeClosed
        self._pending.extend(self._splitter.feed(data))

    def _send(self, message: list[Any]) -> None:
        try:
            self._pipe.sendall(frames.encode(message))
        except OSError as broken:
            raise _PipeClosed from broken


def _terminated(number: int, frame: FrameType | None) -> None:
    del number, frame
    time.sleep(_TERM_GRACE_S)
    os._exit(0)


def name_process(title: str) -> None:
    try:
        Path("/proc/self/comm").write_text(title[:15])
    except OSError:
        pass  # not Linux: the command line still carries the title


def main(argv: list[str]) -> int:
    """Serve the socket with the number FD (`process TITLE FD`). Returns 1 when the engine died."""
    title, fd = argv
    name_process(title)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the API server, which then ends this process
    signal.signal(signal.SIGTERM, _terminated)
    core: EngineCore | None = None
    try:
        core = EngineCore(socket.socket(fileno=int(fd)))
        core.run()
    except _PipeClosed:
        return 0
    except EngineFault as fault:
        assert core is not None, "only a step raises an EngineFault"
        core.report(fault)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
