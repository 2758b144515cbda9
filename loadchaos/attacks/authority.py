"""Whether we may harm this server: free are servers we started; any other needs the user's word for that very address.

Production looks local through a port-forward, so loopback alone proves nothing: its listener must be a process on this
machine that is no forwarder.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

import psutil

from loadchaos.errors import AuthorizationError

FORWARDERS = frozenset({"ssh", "sshd", "kubectl", "docker-proxy", "rootlessport", "socat", "autossh", "oc", "tsh"})
"""Names of processes that listen here for a server that is elsewhere."""


def check(url: str, reasons: Sequence[str], authorized: Sequence[str]) -> None:
    """Refuse (AuthorizationError) when `reasons`, the harmful things asked for, have no authorisation for this address."""
    if not reasons:
        return
    asked = address(url)
    if asked in {address(f"http://{a}" if "://" not in a else a) for a in authorized}:
        return
    owner = _why_not_local(url)
    if owner is None:
        return
    other = f" (authorised is {', '.join(authorized)})" if authorized else ""
    raise AuthorizationError(
        f"{asked} is not a server loadchaos started, and this run can harm it: {'; '.join(reasons)}. {owner} "
        f"If it may be harmed, say so: --authorize {asked}{other}"
    )


def address(url: str) -> str:
    """`HOST:PORT` of a URL with the default port filled in, as `--authorize` names it."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = (parts.hostname or "").lower()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _why_not_local(url: str) -> str | None:
    """Why this is not plainly a server process on this machine; None when it is."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if not _is_loopback(parts.hostname or ""):
        return "It is not on this machine's loopback."
    owners = _listeners(port)
    if not owners:
        return "Who listens there cannot be seen from here, so it may be a forwarder to another machine."
    forwarding = [name for name in owners if name in FORWARDERS or name == ""]
    if forwarding:
        return f"Its listener is {forwarding[0] or 'a process of unknown name'}, which forwards to somewhere else."
    return None


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listeners(port: int) -> list[str]:
    """Names of the processes that listen on a TCP port of this machine; empty where an owner cannot be seen."""
    owners = _owners(port)
    return [] if any(pid is None for pid, _ in owners) else [name for _, name in owners]


def _owners(port: int) -> list[tuple[int | None, str]]:
    """(pid, name) of each listener on the port; pid None where another user's or another namespace's process has it."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.AccessDenied, OSError):
        return [(None, "")]
    return [
        (c.pid, _name(c.pid))
        for c in connections
        if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port
    ]


def _name(pid: int | None) -> str:
    try:
        return psutil.Process(pid).name() if pid is not None else ""
    except psutil.Error:
        return ""


def listener_pid(url: str) -> int | None:
    """The pid of the server process that listens on this loopback URL, None where it is not plainly one here."""
    parts = urlsplit(url)
    if not _is_loopback(parts.hostname or "") or _why_not_local(url) is not None:
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    pids = {pid for pid, _ in _owners(port) if pid is not None}
    # Several processes on one port (an API server's workers): their common parent is the one to watch.
    if len(pids) > 1:
        children = {child.pid for pid in pids for child in _children(pid)}
        pids -= children
    return min(pids) if pids else None


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []
