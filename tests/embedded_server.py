"""The embedded server in a process of its own, with its output in a file."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from loadchaos.core.lifetime import PYTHON_MODULE
from loadchaos.simulator.command import command
from loadchaos.simulator.options import SimulatorSpec
from tests.waiting import until


class EmbeddedServer:
    """Listens when it is made, on a free port unless the flags name one; the log may be that of a server before it."""

    def __init__(self, *flags: str, log: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.log = log or Path(self._folder.name) / "server.log"
        before = len(self.text) if self.log.exists() else 0
        argv = [sys.executable, "-m", "loadchaos.simulator.server", "--port", "0", *flags]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(argv, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=env)
        pattern = re.compile(r"running on http://127\.0\.0\.1:(\d+)")
        self.port = int(until(lambda: pattern.search(self.text, before), "the embedded server")[1])
        self.url = f"http://127.0.0.1:{self.port}"

    @classmethod
    def of(cls, spec: SimulatorSpec, env: Mapping[str, str] | None = None) -> Self:
        return cls(*command(spec, port=0)[len(PYTHON_MODULE) + 1 :], env=env)

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")

    @property
    def text(self) -> str:
        return self.log.read_text()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
