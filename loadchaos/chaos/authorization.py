"""Whether we may harm this server: free are servers we started; any other needs the user's word for that very address.

Production looks local through a port-forward, so loopback alone proves nothing: its listener must be a process on this
machine that is plainly a serving engine. A list of forwarders would always lack one (any proxy in any language), so what
is not recognised as a server is asked for.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

import psutil

from loadchaos.core.errors import AuthorizationError, OptionError
from loadchaos.server.dialects import command_words

_SERVERS = re.compile("|".join([*command_words(), r"loadchaos\.sim"]), re.IGNORECASE)
"""What stands in the command line of a server that runs here: the engines loadchaos knows, and its own embedded one."""
_FORWARDERS = re.compile(
    r"(?:^|/)(?:ssh|sshd|autossh|kubectl|oc|tsh|docker-proxy|rootlessport|socat|nginx|haproxy|envoy)\b"
)
"""Commands that forward even though the name of an engine stands in their arguments (`kubectl port-forward svc/vllm`)."""


def check(url: str, reasons: Sequence[str], authorized: Sequence[str], word: str = "--authorize ") -> None:
    """Refuse (AuthorizationError) when `reasons`, the harmful things asked for, have no authorisation for this address.

    `word` is what the user says it with, as far as the address.
    """
    given = {_given(text) for text in authorized}  # a slip of the pen is told even where nothing is harmed
    asked = address(url)
    if not reasons or asked in given:
        return
    owner = _why_not_local(url)
    if owner is None:
        return
    other = f" (authorised is {', '.join(authorized)})" if authorized else ""
    raise AuthorizationError(
        f"{asked} is not a server loadchaos started, and this run can harm it: {'; '.join(reasons)}. {owner} "
        f"If it may be harmed, say so: {word}{asked}{other}"
    )


def _given(text: str) -> str:
    """What one `--authorize` names; OptionError where it is no HOST:PORT (a URL will do)."""
    host, _, port = text.rpartition(":")
    if "://" not in text and not (host.strip("[]") and port.isdigit()):
        raise OptionError(f"--authorize {text!r}: HOST:PORT was expected, e.g. 127.0.0.1:8000")
    return address(text if "://" in text else f"http://{text}")


def address(url: str) -> str:
    """`HOST:PORT` of a URL with the default port filled in, as `--authorize` names it."""
    parts = urlsplit(url)
    port = _port(url)
    host = (parts.hostname or "").lower()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _why_not_local(url: str) -> str | None:
    """Why this is not plainly a server process on this machine; None when it is."""
    parts = urlsplit(url)
    port = _port(url)
    if not _is_loopback(parts.hostname or ""):
        return "It is not on this machine's loopback."
    owners = _listeners(port)
    if not owners:
        if not _owners(port):
            return "Nobody is seen to listen there: is it running, and is that its port? A forwarder can hide so, too."
        return "Who listens there cannot be seen from here, so it may be a forwarder to another machine."
    for command in owners:
        if _FORWARDERS.search(command.split(" ", 1)[0]):
            return f"Its listener is {command[:80]!r}, which forwards to somewhere else."
        if not _SERVERS.search(command):
            shown = repr(command[:80]) if command else "a process whose command line cannot be read"
            return f"Its listener is {shown}, which is not known to be a server and may forward to one elsewhere."
    return None


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listeners(port: int) -> list[str]:
    """Command lines of the processes that listen on a TCP port of this machine; empty where an owner cannot be seen."""
    owners = _owners(port)
    return [] if any(pid is None for pid, _ in owners) else [command for _, command in owners]


def _owners(port: int) -> list[tuple[int | None, str]]:
    """(pid, command line) of each listener; pid None where another user's or another namespace's process has the port."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.AccessDenied, OSError):
        return [(None, "")]
    return [
        (c.pid, _command(c.pid))
        for c in connections
        if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port
    ]


def _command(pid: int | None) -> str:
    try:
        process = psutil.Process(pid) if pid is not None else None
        # A title set by the server itself (`VLLM::EngineCore`) stands in the name where the command line is cut.
        return " ".join([*process.cmdline(), process.name()]) if process is not None else ""
    except psutil.Error:
        return ""


def listener_pid(url: str) -> int | None:
    """The pid of the server process that listens on this loopback URL, None where it is not plainly one here."""
    parts = urlsplit(url)
    if not _is_loopback(parts.hostname or ""):
        return None
    port = _port(url)
    # Watching harms nobody: any process here that is no known forwarder will do.
    owners = _owners(port)
    pids = {pid for pid, command in owners if pid is not None and not _FORWARDERS.search(command.split(" ", 1)[0])}
    if len(pids) < len({pid for pid, _ in owners}):
        return None
    # Several processes on one port (an API server's workers): their common parent is the one to watch.
    if len(pids) > 1:
        children = {child.pid for pid in pids for child in _children(pid)}
        pids -= children
    return min(pids) if pids else None


def refuse_stranger(pid: int, urls: Sequence[str]) -> None:
    """OptionError unless the process `pid`, or one that it started, listens where the server is asked for."""
    if not psutil.pid_exists(pid):
        raise OptionError(
            f"--pid {pid}: there is no such process on this machine: `ss -ltnp` tells who listens on the server's port"
        )
    tree = {pid, *(child.pid for child in _children(pid))}
    ports = {_port(url) for url in urls}
    owners = {owner: command for port in ports for owner, command in _owners(port)}
    if tree & set(owners):
        return
    there = "; ".join(f"{owner or 'somebody who cannot be seen'}: {command[:80]}" for owner, command in owners.items())
    raise OptionError(
        f"--pid {pid} is not the server's: neither it nor a process it started listens on port "
        f"{' or '.join(map(str, sorted(ports)))} (there listens {there or 'nobody on this machine'})"
    )


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []
