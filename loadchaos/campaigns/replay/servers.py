"""Servers of tries: launched for each one, held for several, or external."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ruamel.yaml import YAML

from loadchaos.core import own_folder
from loadchaos.core.errors import OptionError
from loadchaos.core.limits import READY_WITHIN_S
from loadchaos.core.redact import REDACTED, Redactor, launch_secrets
from loadchaos.profile.request_trace import RequestTrace
from loadchaos.profile.target import EmbeddedServer, Launch
from loadchaos.run.held_server import HeldServer
from loadchaos.run.ports import free_port
from loadchaos.server.discovery.client import parse_target
from loadchaos.server.memory import ServerMemory
from loadchaos.server.process.launcher import CommandLine, parse_command_line
from loadchaos.simulator.command import command as embedded_command
from loadchaos.simulator.options import DEFAULT_ERA, SimulatorSpec


@dataclass(frozen=True)
class ServerChoice:
    """A command to launch, or a URL; `limits` of its processes and `ready_within_s` are those of the profile."""

    launch: CommandLine | None = None
    url: str | None = None
    ready_within_s: float = field(default=READY_WITHIN_S, compare=False)
    limits: Mapping[str, int] = field(default_factory=dict)

    def describe(self) -> str:
        if self.launch is None:
            return str(self.url)
        return shlex.join([*(f"{k}={v}" for k, v in self.launch.env.items()), *self.launch.argv])

    def target(self) -> dict[str, object]:
        found: dict[str, object] = {"on_death": "stop"}
        if self.launch is not None:
            found["launch"] = {
                "command": list(self.launch.argv), "env": dict(self.launch.env), "url": self.launch.url,
                "ready_within": f"{self.ready_within_s:g}s", **({"limits": dict(self.limits)} if self.limits else {}),
            }  # fmt: skip
        return found


def from_launch(command: str) -> ServerChoice:
    """Server of --launch. Raises OptionError for a command that cannot be parsed."""
    return ServerChoice(launch=parse_command_line(command))


def of_source(trace: RequestTrace, *, takes_target: bool = True) -> ServerChoice:
    """Server that the run launched itself. Raises OptionError without one; `takes_target`: --target may name one."""
    kind, source = trace.header.server.get("kind"), trace.header.source
    target = _recorded_profile(trace).get("target")
    if isinstance(target, dict) and kind in ("launched", "embedded"):
        if target.get("launch"):  # a reproducer's profile launches an embedded server
            return _of_launch(target["launch"], source)
        if kind == "embedded" and target.get("embedded") is not None:
            return _of_embedded(EmbeddedServer.model_validate(target["embedded"]))
    what = "it does not say how its server is started"
    if kind == "external":
        what = f"its server was started by somebody else ({trace.header.server.get('url')})"
    raise OptionError(
        f"{source}: {what}: give the command with --launch 'vllm serve MODEL --port 8000'"
        + (", or the URL of a running server with --target" if takes_target else "")
    )


def is_embedded(server: ServerChoice) -> bool:
    """Return True for the embedded server, which somebody else's folder may start."""
    own = SimulatorSpec("vllm", DEFAULT_ERA["vllm"], (), {})
    return (
        server.launch is not None
        and not server.launch.env
        and (list(server.launch.argv[:3]) == embedded_command(own, 1)[:3])
    )


def recorded_parts(trace: RequestTrace) -> dict[str, object]:
    """Parts of the recorded profile that a try keeps: limits of requests and, of a folder of this user, monitors."""
    data = _recorded_profile(trace)
    keys = ("limits", "watch") if own_folder.is_own(trace.folder) else ("limits",)
    return {key: data[key] for key in keys if key in data and REDACTED not in str(data[key])}


def _recorded_profile(trace: RequestTrace) -> Mapping[str, object]:
    file = trace.folder / "profile.yaml"
    found = YAML(typ="safe", pure=True).load(file.read_text("utf-8")) if file.is_file() else None
    return found if isinstance(found, dict) else {}


def _of_launch(launch: object, source: str) -> ServerChoice:
    if REDACTED in str(launch):
        raise OptionError(f"{source}: the launch command had a secret, which is not recorded: give it with --launch")
    found = Launch.model_validate(launch)
    line = CommandLine(tuple(found.command), dict(found.env), parse_target(found.url))
    return ServerChoice(line, None, found.ready_within, found.limits.model_dump(mode="json", exclude_none=True))


def _of_embedded(embedded: EmbeddedServer) -> ServerChoice:
    port = free_port()
    era = embedded.era or DEFAULT_ERA[embedded.dialect]
    argv = embedded_command(SimulatorSpec(embedded.dialect, era, embedded.defects, embedded.flags), port)
    return ServerChoice(CommandLine(tuple(argv), {}, f"http://127.0.0.1:{port}"), ready_within_s=60.0)


def redacted_command(server: ServerChoice) -> str:
    """Launch command of a server without its secrets, or its URL."""
    if server.launch is None:
        return str(server.url)
    redactor, secret = Redactor.from_environment(os.environ), launch_secrets(server.launch.env)
    env = [f"{name}={REDACTED if name in secret else value}" for name, value in server.launch.env.items()]
    return shlex.join([*env, *redactor.argv(list(server.launch.argv))])


def without_port(server: ServerChoice) -> str:
    """Command of a server without its port, or its URL. The port of an embedded server differs each time."""
    if server.launch is None:
        return redacted_command(server)
    return redacted_command(server).replace(f" {urlsplit(server.launch.url).port}", " PORT")


def whole_command(server: ServerChoice) -> str:
    """Launch command of somebody else's server, with what would be a secret of ours: a shell may run each part of it."""
    assert server.launch is not None
    return shlex.join([*(f"{name}={value}" for name, value in server.launch.env.items()), *server.launch.argv])


class ServerPool:
    """Held servers of several tries. One at a time, started again when it died."""

    def __init__(self, choice: ServerChoice, folder: Path, memory: ServerMemory | None = None) -> None:
        """Take the server; `memory` is that of its runs, of equal commands only."""
        self._choice, self._folder, self._memory = choice, folder, memory
        self._held: HeldServer | None = None
        self.started = len(list(folder.glob("[0-9]*"))) if folder.is_dir() else 0

    async def healthy_server(self, choice: ServerChoice | None = None) -> HeldServer:
        """The server of the try before if it lives and `choice` is the same, else a new one."""
        if choice is not None and choice != self._choice:
            await self.stop()
            self._choice = choice
        if self._held is not None and not self._held.alive:
            await self.stop()
        if self._held is None:
            self.started += 1
            assert self._choice.launch is not None
            if self._memory is not None:
                self._memory.restarted()
            held = HeldServer(self._choice.launch, self._folder / f"{self.started:03}", memory=self._memory)
            self._held = held
            try:
                await held.start(self._choice.ready_within_s)
            except BaseException:
                await self.stop()
                raise
        return self._held

    async def stop(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            await held.stop()


def result_redactor(server: ServerChoice) -> Redactor:
    assert server.launch is not None
    return Redactor.of_launch(os.environ, server.launch.env, server.launch.argv)
