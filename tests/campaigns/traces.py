"""Traces of made-up requests, with their bodies in a folder, and embedded servers to replay them on."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from loadchaos.campaigns.replay.servers import ServerChoice
from loadchaos.core.body_hash import store_body
from loadchaos.profile.request_trace import RequestTrace, TraceHeader, TraceSend
from loadchaos.run.ports import free_port
from loadchaos.server.process.launcher import CommandLine
from loadchaos.simulator.command import command
from loadchaos.simulator.options import SimulatorSpec


def stored_chat(folder: Path, words: int = 1) -> str:
    """Name of the stored body with a prompt of so many words."""
    messages = [{"role": "user", "content": "time " * words}]
    body = {"model": "other", "messages": messages, "max_tokens": 2, "stream": True}
    return store_body(folder / "bodies", orjson.dumps(body))


def trace_of(folder: Path, sends: Iterable[TraceSend], **header: Any) -> RequestTrace:
    return RequestTrace(TraceHeader(event="trace", version=1, model="other", **header), tuple(sends), folder=folder)


ONE_REQUEST = RequestTrace(TraceHeader(event="trace", version=1), (TraceSend(id="r0"),))


def embedded_command(*defects: str, port: int | None = None, **flags: object) -> list[str]:
    """The command of an embedded server, on a free port unless one is given."""
    return command(SimulatorSpec("vllm", "0.18", defects, flags), port or free_port())


def embedded_choice(*defects: str, **flags: object) -> ServerChoice:
    port = free_port()
    argv = tuple(embedded_command(*defects, port=port, **flags))
    return ServerChoice(CommandLine(argv, {}, f"http://127.0.0.1:{port}"), ready_within_s=60.0)
