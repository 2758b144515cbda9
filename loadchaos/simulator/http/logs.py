"""Log lines in the format of the imitated server, by dialect and era."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable

from loadchaos.simulator.engine.types import release
from loadchaos.simulator.options import Options

_ANSI = {"ERROR": "\x1b[31mERROR\x1b[0m", "WARNING": "\x1b[33mWARNING\x1b[0m", "INFO": "\x1b[36mINFO\x1b[0m"}


class Log:
    """Writer of one process's log lines to stdout. Each line is flushed: a dying process must not lose its last lines.
    `process` is vLLM's name of the process, APIServer or EngineCore.
    """

    def __init__(self, dialect: str, era: str, process: str) -> None:
        self._dialect = dialect
        self._release = release(era)
        self._process = process

    @property
    def tag(self) -> str:
        """Process prefix such as `(EngineCore pid=7) `, which vLLM has since 0.11. It is empty before 0.11 and for
        LMDeploy.
        """
        if self._dialect != "vllm" or self._release < (0, 11, 0):
            return ""
        # Until about 0.17 the engine core carried its data-parallel rank in its name.
        ranked = self._process == "EngineCore" and self._release < (0, 17, 0)
        return f"({self._process}{'_DP0' if ranked else ''} pid={os.getpid()}) "

    def line(self, level: str, where: str, text: str) -> None:
        """Write one message at `where` (core.py:1100). Every line of it gets the prefix, as with vLLM's formatter."""
        self.raw(self._prefixed(level, where, text.split("\n")))

    def error(self, where: str, lines: Iterable[str]) -> None:
        self.raw(self._prefixed("ERROR", where, lines))

    def raw(self, lines: Iterable[str]) -> None:
        """Write lines without prefix, as uvicorn, the CUDA runtime and C++ do."""
        text = "".join(f"{line}\n" for line in lines)
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError:
            pass  # the log has no reader any more; the server continues

    def _prefixed(self, level: str, where: str, lines: Iterable[str]) -> list[str]:
        now = time.time()
        local = time.localtime(now)
        if self._dialect == "lmdeploy":
            stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', local)},{int(now * 1000) % 1000:03d}"
            shown = _ANSI.get(level, level) if self._release < (0, 7, 0) else level
            first, *rest = list(lines) or [""]
            return [f"{stamp} - lmdeploy - {shown} - {where} - {first}", *rest]  # the formatter prefixes records only
        stamp = time.strftime("%m-%d %H:%M:%S", local)
        return [f"{self.tag}{level} {stamp} [{where}] {line}" for line in lines]


class LifecycleLog:
    """Log of an API server when it listens and when it ends. Its subclasses add the start, one that failed, and the death
    of the engine.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._log = Log(options.engine.dialect, options.engine.era, "APIServer")

    def listening(self, port: int) -> None:
        """Log that the server accepts requests."""
        self._log.raw(
            [
                f"INFO:     Started server process [{os.getpid()}]",
                "INFO:     Waiting for application startup.",
                "INFO:     Application startup complete.",
                f"INFO:     Uvicorn running on http://{self._options.host}:{port} (Press CTRL+C to quit)",
            ]
        )

    def shutting_down(self) -> None:
        """Log that the listener closes."""
        self._log.raw(["INFO:     Shutting down"])

    def stopped(self) -> None:
        """Log the end, when all connections are closed."""
        lines = ["Waiting for application shutdown.", "Application shutdown complete."]
        self._log.raw([*(f"INFO:     {line}" for line in lines), f"INFO:     Finished server process [{os.getpid()}]"])
