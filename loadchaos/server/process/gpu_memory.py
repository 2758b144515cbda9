"""How much memory of this machine's GPUs is used, as nvidia-smi tells it; nothing where there is none."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Sequence

_ASK = ("--query-gpu=memory.used", "--format=csv,noheader,nounits")
_DEVNULL = asyncio.subprocess.DEVNULL
_ANSWER_S = 5.0
_LOOK_S = 0.2
_SLACK_MIB = 64  # a driver keeps some for itself once a context has been made


async def used_mib() -> list[int] | None:
    """MiB used of each GPU; None where there is no nvidia-smi, or it does not answer."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        process = await asyncio.create_subprocess_exec(
            command,
            *_ASK,
            stdin=_DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=_DEVNULL,
        )
    except OSError:
        return None
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _ANSWER_S)
        return [int(line) for line in output.decode().split()] if process.returncode == 0 else None
    except (TimeoutError, ValueError):  # a driver that hangs, or a GPU that tells none: [N/A]
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def freed(before: Sequence[int], within_s: float) -> tuple[bool, str] | None:
    """Whether the memory used since `before` is free again, and in words; waits for it so long. None: not known."""
    deadline = asyncio.get_running_loop().time() + within_s
    while True:
        now = await used_mib()
        if now is None or len(now) != len(before):
            return None
        held = {n: used - was for n, (used, was) in enumerate(zip(now, before, strict=True)) if used - was > _SLACK_MIB}
        if not held:
            return True, f"the memory of {len(now)} GPUs is free again"
        if asyncio.get_running_loop().time() > deadline:
            told = ", ".join(f"{mib} MiB of GPU {n}" for n, mib in held.items())
            return False, f"more is used than before its start: {told}"
        await asyncio.sleep(_LOOK_S)
