"""Authorization to harm a server. A production server looks local through a port-forward, so a loopback address proves
nothing: the listener must be a process on this machine that is recognised as a serving engine. A list of forwarders
would always lack one (any proxy in any language), so every listener that is not recognised as a server needs
authorization.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

import psutil

from loadchaos.chaos.listeners import Listener, listeners
from loadchaos.core.errors import AuthorizationError, OptionError
from loadchaos.core.urls import host_and_port, host_port

_NOT_OURS = "was not started by loadchaos"
_LAUNCHED = "is not plainly the one that the launch command started"


def check(
    url: str, reasons: Sequence[str], authorized: Sequence[str], option: str = "--authorize ", *, launched: bool = False,
    elsewhere: bool = False,
) -> None:  # fmt: skip
    """Raise AuthorizationError for a harmful run against a server that is neither authorized nor plainly local, and
    OptionError where an authorized address is no HOST:PORT. `reasons`: the harmful parts of the run; `option`: how the
    user authorizes, as far as the address; `launched`: a launch command started what listens there; `elsewhere`: the
    requests come from other machines.
    """
    given = {_given(text) for text in authorized}  # a misspelt address is an error even where nothing is harmed
    asked = address(url)
    if not reasons or asked in given:
        return
    problem = "Workers on other machines reach another server at that address." if elsewhere else _why_not_local(url)
    if problem is None:
        return
    other = f" (authorized so far: {', '.join(authorized)})" if authorized else ""
    raise AuthorizationError(
        f"the server at {asked} {_LAUNCHED if launched else _NOT_OURS}, and this run can harm it: {'; '.join(reasons)}. "
        f"{problem} To allow the run, add {option}{asked}{other}"
    )


def is_missing(url: str, reasons: Sequence[str], authorized: Sequence[str]) -> bool:
    """True where `check` raises AuthorizationError."""
    try:
        check(url, reasons, authorized)
    except AuthorizationError:
        return True
    return False


class Leave:
    """Leave to harm the servers of one run: it belongs to an address and to the processes that listened when it was
    checked, and to the program of each, as `exec` keeps pid and time of start. A server that loadchaos started needs it,
    too: a launch command may be a tunnel. `reasons` and `authorized` are those of `check`.
    """

    def __init__(self, reasons: Sequence[str], authorized: Sequence[str], *, launched: bool = False) -> None:
        self._reasons, self._authorized, self._launched = reasons, authorized, launched
        self._checked: dict[str, frozenset[Listener]] = {}

    def check(self, url: str) -> None:
        """Raise AuthorizationError where `check` does, and remember who listens."""
        before = _listening(url)  # a listener that is exchanged meanwhile is found out at the next look
        check(url, self._reasons, self._authorized, launched=self._launched)
        self._checked[url] = before

    def refusal(self, url: str) -> str | None:
        """Return why an attack on this address may not begin now; None where it may. Where other processes listen than
        those that were checked, all is checked again.
        """
        if self._checked.get(url) == _listening(url):
            return None
        try:
            self.check(url)
        except AuthorizationError as e:
            return str(e)
        return None


def _listening(url: str) -> frozenset[Listener]:
    host, port = host_and_port(url)
    return frozenset(listeners(host, port)) if _is_loopback(host) else frozenset()


def _given(text: str) -> str:
    host, _, port = text.rpartition(":")
    if "://" not in text and not (host.strip("[]") and port.isdigit()):
        raise OptionError(f"--authorize {text!r}: HOST:PORT was expected, e.g. 127.0.0.1:8000")
    try:
        return address(text if "://" in text else f"http://{text}")
    except ValueError as e:
        raise OptionError(f"--authorize {text!r}: {e}; HOST:PORT was expected, e.g. 127.0.0.1:8000") from None


def address(url: str) -> str:
    """Return `HOST:PORT` of a URL, as `--authorize` takes it."""
    host, port = host_and_port(url)
    return host_port(host.lower(), port)


def _why_not_local(url: str) -> str | None:
    host, port = host_and_port(url)
    if not _is_loopback(host):
        return "It is not on this machine's loopback."
    owners = listeners(host, port)
    if not owners:
        return (
            "No process that listens there is visible: check the port, and that the server is running. "
            "A container or a forwarded port looks the same."
        )
    return next((why for owner in owners if (why := _why_no_server(owner)) is not None), None)


def _why_no_server(owner: Listener) -> str | None:
    if owner.pid is None:
        return "The process that listens there is not visible from here, so it may forward to another machine."
    shown = repr(owner.command[:80]) if owner.command else "a process whose command line cannot be read"
    if owner.forwards:
        return f"Its listener is {shown}, which forwards to another address."
    if not owner.named_as_engine:
        return f"Its listener is {shown}, which is no known server and may forward to another machine."
    if not owner.runs_models():
        return (
            f"Its listener is {shown}, which has loaded no library that runs models: it may forward to another machine."
        )
    if remote := owner.remote():
        return (
            f"Its listener {shown}, or its process, is connected to {remote[0]}, so it may forward to another machine."
        )
    return None


def _is_loopback(host: str) -> bool:
    try:
        if host.lower() == "localhost":  # /etc/hosts may say otherwise
            return all(ipaddress.ip_address(info[4][0]).is_loopback for info in socket.getaddrinfo(host, None))
        return ipaddress.ip_address(host).is_loopback
    except (OSError, ValueError):
        return False


def listener_pid(url: str) -> int | None:
    """Return the pid of the process that listens on a loopback URL; None where it is not plainly a local server."""
    host, port = host_and_port(url)
    if not _is_loopback(host):
        return None
    # Monitoring harms no server: any process here that is no known forwarder will do.
    owners = listeners(host, port)
    pids = {owner.pid for owner in owners if owner.pid is not None and not owner.forwards}
    if len(pids) < len(owners):
        return None
    # Several processes on one port (an API server's workers): their common parent is the one to monitor.
    if len(pids) > 1:
        children = {child.pid for pid in pids for child in _children(pid)}
        pids -= children
    return min(pids) if pids else None


def refuse_wrong_pid(pid: int, urls: Sequence[str]) -> None:
    """Raise OptionError unless the process, or one that it started, listens on the port of one of the URLs."""
    if not psutil.pid_exists(pid):
        raise OptionError(
            f"--pid {pid}: there is no such process on this machine: `ss -ltnp` shows which process listens on the port"
        )
    tree = {pid, *(child.pid for child in _children(pid))}
    ports = {host_and_port(url)[1] for url in urls}
    owners = {owner.pid: owner.command for port in ports for owner in listeners(None, port)}
    if tree & set(owners):
        return
    shown = "; ".join(
        f"{owner or 'a process that is not visible'}: {command[:80]}" for owner, command in owners.items()
    )
    raise OptionError(
        f"--pid {pid} is not the server: neither it nor a process it started listens on port "
        f"{' or '.join(map(str, sorted(ports)))} (listening there: {shown or 'no process of this machine'})"
    )


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []
