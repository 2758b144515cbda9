"""Commands in forks of one process that has imported loadchaos.

The imports of a new process take a second of CPU for each command.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["loadchaos.cli.main", "loadchaos.cli.run", "loadchaos.run.run", "loadchaos.load.registry", __name__]
)


def _command(args: tuple[str, ...], cwd: Path, env: Mapping[str, str], output: tuple[str, str]) -> None:
    from loadchaos.cli.main import main

    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for fd, path in enumerate(output, start=1):
        os.dup2(os.open(path, os.O_WRONLY), fd)
    sys.argv = ["loadchaos", *args]
    main()


class ForkedCommand:
    """A running `loadchaos ARGS`, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, *args: str, cwd: Path, env: Mapping[str, str], output: tuple[str, str]) -> None:
        self.args = args
        self._process = _CONTEXT.Process(target=_command, args=(args, cwd, dict(env), output))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Exit code; negative: the signal. Raises TimeoutExpired."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(["loadchaos", *self.args], timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def outside_ci() -> dict[str, str]:
    """The environment without CI, where commands print other things."""
    return {k: v for k, v in os.environ.items() if k != "CI"}


def run_command(*args: object, cwd: Path, limit_s: float = 110, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `loadchaos ARGS` outside of CI, with more variables; exit code and output are those of a process."""
    words = [str(arg) for arg in args]
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        process = ForkedCommand(*words, cwd=cwd, env={**outside_ci(), **env}, output=(out.name, err.name))
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired as e:
            process.kill()
            raise AssertionError(f"loadchaos {' '.join(words)} runs for more than {limit_s} s") from e
        texts = Path(out.name).read_text(), Path(err.name).read_text()
    return subprocess.CompletedProcess(words, code, *texts)
