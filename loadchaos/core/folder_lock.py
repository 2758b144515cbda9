"""Lock a folder of results for one process at a time."""

from __future__ import annotations

import fcntl
import os
import socket
from datetime import UTC, datetime
from pathlib import Path

from loadchaos.core.errors import OptionError, next_step

_FILE = ".lock"


class FolderLock:
    """Lock of a folder, free at once when its process is killed. The folder is made where it does not exist; the next
    process is told `what` this one does there, and `since` when. Raises OptionError where another process has it, or
    its file cannot be written.
    """

    def __init__(self, folder: Path, what: str, since: datetime | None = None) -> None:
        path = folder / _FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise OptionError(f"{path} cannot be written: {e.strerror}; {next_step(e)}") from e
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._fd, 1000).decode("utf-8", "replace").strip() or "an unknown process"
            os.close(self._fd)
            raise OptionError(
                f"{folder} is in use by {holder}; wait for its end, or give this one another folder with --out"
            ) from None
        at = (since or datetime.now(UTC)).astimezone(UTC)
        os.ftruncate(self._fd, 0)
        os.write(
            self._fd, f"{what}, pid {os.getpid()} on {socket.gethostname()} since {at:%Y-%m-%dT%H:%M:%SZ}\n".encode()
        )

    def close(self) -> None:
        os.close(self._fd)
