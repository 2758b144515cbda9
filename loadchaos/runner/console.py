"""Lines for the person who waits, told by a thread of its own: a stopped terminal must never stop the run."""

from __future__ import annotations

import os
import queue
import textwrap
import threading

_STDERR = 2


class Console:
    """`say` returns at once; lines that a stopped or lost terminal does not take are dropped when the run is over."""

    def __init__(self, fd: int = _STDERR) -> None:
        self._fd = fd
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._speak, name="voice", daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """One line, before or after the live view."""
        self._lines.put(text)

    def close(self, limit_s: float = 1.0) -> None:
        """Have all lines told, waiting for a terminal that takes none no longer than `limit_s`."""
        self._lines.put(None)
        self._thread.join(limit_s)

    def _speak(self) -> None:
        while (text := self._lines.get()) is not None:
            # Past Python's own buffer, whose lock a thread that hangs in a write would keep for ever.
            data = f"{self._wrapped(text)}\n".encode("utf-8", "replace")
            try:
                while data:
                    data = data[os.write(self._fd, data) :]
            except OSError:  # the terminal is gone
                return

    def _wrapped(self, text: str) -> str:
        """Broken between words where a terminal would break within one."""
        try:
            width = os.get_terminal_size(self._fd).columns
        except OSError:  # it is no terminal
            return text
        lines = text.splitlines()
        return "\n".join(
            textwrap.fill(x, max(width, 40), subsequent_indent="  ", break_long_words=False) for x in lines
        )
