"""Print lines on the terminal from a thread. A stopped terminal never stops the run."""

from __future__ import annotations

import os
import queue
import textwrap
import threading

from loadchaos.report.formatting import printable

_STDERR = 2
_CLOSE_S = 1.0


class Console:
    """Line printer; `print` never blocks. What a stopped terminal does not accept is dropped at the end of the run."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_lines, name="console", daemon=True)
        self._thread.start()

    def print(self, text: str) -> None:
        self._lines.put(text)

    def close(self) -> None:
        self._lines.put(None)
        self._thread.join(_CLOSE_S)

    def _write_lines(self) -> None:
        while (text := self._lines.get()) is not None:
            # Not through Python's own buffer: a thread that hangs in a write would keep its lock for ever.
            data = f"{self._wrapped(printable(text))}\n".encode("utf-8", "replace")
            try:
                while data:
                    data = data[os.write(_STDERR, data) :]
            except OSError:  # the terminal is gone
                return

    def _wrapped(self, text: str) -> str:
        """Wrap text between words, where a terminal would break within one."""
        try:
            width = os.get_terminal_size(_STDERR).columns
        except OSError:  # it is no terminal
            return text
        lines = text.splitlines()
        return "\n".join(
            textwrap.fill(x, max(width, 40), subsequent_indent="  ", break_long_words=False) for x in lines
        )
