"""Log lines as the imitated server writes them: its prefixes, by dialect and era."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable

from loadchaos.simulator.options import release

_ANSI = {"ERROR": "\x1b[31mERROR\x1b[0m", "WARNING": "\x1b[33mWARNING\x1b[0m", "INFO": "\x1b[36mINFO\x1b[0m"}


class Log:
    """Writes lines for one process, to stdout, each flushed: a dying process must not lose its last words.

    `process` is vLLM's name for it, APIServer or EngineCore.
    """

    def __init__(self, dialect: str, era: str, process: str) -> None:
        self._dialect = dialect
        self._release = release(era)
        self._process = process

    @property
    def tag(self) -> str:
        """`(EngineCore pid=7) ` as vLLM marks its processes since 0.11; empty before, and for LMDeploy."""
        if self._dialect != "vllm" or self._release < (0, 11, 0):
            return ""
        # Until about 0.17 the engine core carried its data-parallel rank in its name.
        ranked = self._process == "EngineCore" and self._release < (0, 17, 0)
        return f"({self._process}{'_DP0' if ranked else ''} pid={os.getpid()}) "

    def line(self, level: str, where: str, text: str) -> None:
        """One message at `where` (core.py:1100); every line of it gets the prefix, as vLLM's formatter does."""
        self.raw(self._prefixed(level, where, text.split("\n")))

    def error(self, where: str, lines: Iterable[str]) -> None:
        """A traceback at level ERROR."""
        self.raw(self._prefixed("ERROR", where, lines))

    def raw(self, lines: Iterable[str]) -> None:
        """Lines without prefix, as uvicorn, the CUDA runtime and C++ write them."""
        text = "".join(f"{line}\n" for line in lines)
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError:
            pass  # nobody reads our log any more; the server goes on

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


def uvicorn_startup_lines(host: str, port: int) -> list[str]:
    """What uvicorn says when it serves; its own logger writes it, in no engine's form."""
    return [
        f"INFO:     Started server process [{os.getpid()}]",
        "INFO:     Waiting for application startup.",
        "INFO:     Application startup complete.",
        f"INFO:     Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)",
    ]
