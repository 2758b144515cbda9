"""Run a command of this machine and read what it prints."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence


async def command_output(argv: Sequence[str], limit_s: float) -> str:
    """Raises OSError for a command that is missing or does not end within `limit_s`, ValueError for one that fails."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(limit_s):
            out, error = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        lines = error.decode("utf-8", "replace").strip().splitlines()
        raise ValueError(lines[-1] if lines else f"exit code {process.returncode}")
    return out.decode("utf-8", "replace")
