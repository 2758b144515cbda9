"""Commands in forks of one process that has imported loadchaos.

The imports of a new process take a second of CPU for each command.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_LIMIT_S = 110
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["loadchaos.cli.main", "loadchaos.cli.run", "loadchaos.runner.run", "loadchaos.load.registry", __name__]
)


def _command(args: tuple[str, ...], cwd: Path, env: Mapping[str, str], output: tuple[str, str]) -> None:
    from loadchaos.cli.main import main

    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for fd, path in enumerate(output, start=1):
        os.dup2(os.open(path, os.O_WRONLY), fd)
    sys.argv = ["loadchaos", *args]
    main()


def run_command(*args: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `loadchaos ARGS`; exit code and output are those of a process."""
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        process = _CONTEXT.Process(target=_command, args=(args, cwd, dict(env), (out.name, err.name)))
        process.start()
        process.join(_LIMIT_S)
        if process.exitcode is None:
            process.kill()
            raise AssertionError(f"loadchaos {' '.join(args)} runs for more than {_LIMIT_S} s")
        texts = Path(out.name).read_text(), Path(err.name).read_text()
    return subprocess.CompletedProcess(args, process.exitcode, *texts)
