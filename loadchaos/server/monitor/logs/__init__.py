"""Follow server logs, wherever they are. To add a place, write a `LogSource` and add it to SOURCES."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from loadchaos.core.errors import OptionError, did_you_mean
from loadchaos.server.monitor.logs import command
from loadchaos.server.monitor.logs.base import POLL_S, LogSource
from loadchaos.server.monitor.logs.file import FileSource, why_unreadable
from loadchaos.server.monitor.logs.kernel import KernelSource

# prefix -> (syntax of the rest, how help and errors show it, its source)
SOURCES: Mapping[str, tuple[re.Pattern[str], str, Callable[[str], LogSource]]] = {
    "docker": (re.compile(r"[\w.-]+"), "docker:NAME", command.docker),
    "k8s": (re.compile(r"[\w.-]+/[\w.-]+(?:/[\w.-]+)?"), "k8s:NAMESPACE/POD[/CONTAINER]", command.kubernetes),
    "journal": (re.compile(r"[\w@.:-]+"), "journal:UNIT", command.journal),
    "ssh": (re.compile(r"[^\s:-][^\s:]*:.+"), "ssh:HOST:PATH", command.ssh),
    "kmsg": (re.compile(r"/.+"), "kmsg:/dev/kmsg", lambda path: KernelSource(Path(path))),
    "cmd": (re.compile(r".*\S.*"), "cmd:'COMMAND'", command.shell),
}


def read_spec(spec: str) -> tuple[str, str]:
    """Split `docker:vllm` into ("docker", "vllm"); a path gives ("file", path). Raises OptionError for anything else."""
    kind, colon, rest = spec.partition(":")
    if not colon or kind not in SOURCES:
        if not spec.strip():
            raise OptionError("--server-log is empty: a path or one of " + ", ".join(s[1] for s in SOURCES.values()))
        # A path may hold a colon, but `dokker:vllm` that is no file is a typing error.
        if colon and kind.isidentifier() and not Path(spec).expanduser().exists():
            hint = did_you_mean(f"{kind}:", [f"{known}:" for known in SOURCES])
            raise OptionError(f"--server-log {spec}: no such file, and {kind}: is no kind of log{hint}")
        return "file", spec
    shape, form, _ = SOURCES[kind]
    if not shape.fullmatch(rest):
        raise OptionError(f"--server-log {spec}: {form} was expected")
    return kind, rest


def open_source(spec: str, every_s: float = POLL_S) -> LogSource:
    """Open the log that `spec` names; a file is followed from its present end. Raises OptionError."""
    kind, rest = read_spec(spec)
    return FileSource(Path(rest).expanduser(), every_s) if kind == "file" else SOURCES[kind][2](rest)


def prove(spec: str) -> str:
    """Try to follow the log that `spec` names, a command for some seconds. Returns why it cannot be followed, in the words
    of its command; empty: it can. Raises OptionError for a spec that cannot be understood.
    """
    kind, rest = read_spec(spec)
    if kind in ("file", "kmsg"):
        return why_unreadable(Path(rest).expanduser())
    source = SOURCES[kind][2](rest)
    return source.prove() if isinstance(source, command.CommandSource) else ""
