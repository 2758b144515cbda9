"""Processes that listen on a TCP port of this machine, and whether they serve a model themselves."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import psutil

from loadchaos.core.urls import host_port
from loadchaos.server.dialects import command_words

_INTERPRETER = re.compile(r"(?:python|pypy)[0-9.]*t?")
_INTERPRETER_VALUES = ("-X", "-W", "--check-hash-based-pycs")  # interpreter options with a value of their own
_SPAWNED = ("multiprocessing.spawn", "multiprocessing.forkserver")
_MOST_PARENTS = 4
_TITLE = re.compile(r"(?:" + "|".join(command_words()) + r")::", re.IGNORECASE)
"""Title that a server gives to its processes: `VLLM::EngineCore`."""
_MODEL_LIBRARY = re.compile(
    r"/(?:libtorch\w*|libllama|libggml[\w-]*|_turbomind[\w.-]*|libtensorrt_llm\w*|libmlx)\.(?:so|dylib)\b"
)
"""Libraries that run models: torch (vLLM, SGLang, LMDeploy, transformers), TurboMind, ggml, TensorRT-LLM, MLX."""
_EMBEDDED = "loadchaos.simulator.server"
_FORWARDING_PART = re.compile(r"(?:\w+_)?(?:proxy|proxy_server|router|gateway|lb|load_balancer|tunnel)")
"""Part of a module, or a subcommand, of an engine's package that only forwards: `lmdeploy serve proxy`."""
_FORWARDERS = {
    "autossh", "az", "boundary", "bore", "caddy", "chisel", "cloudflared", "cloud_sql_proxy", "docker-proxy", "dropbear",
    "envoy", "frpc", "frps", "gcloud", "gost", "haproxy", "iap-tunnel", "kubectl", "kubefwd", "kong", "k9s", "litellm",
    "mitmdump", "mitmproxy", "mitmweb", "nc", "ncat", "netcat", "nginx", "ngrok", "oc", "openresty", "pproxy",
    "rinetd", "rootlessport", "session-manager-plugin", "simpleproxy", "slirp4netns", "socat", "squid", "ssh", "sshd",
    "sshuttle", "ssm-session", "stunnel", "stunnel4", "tailscale", "tailscaled", "teleport", "telepresence",
    "tinyproxy", "traefik", "tsh", "varnishd", "vllm-router", "websocat", "wstunnel",
}  # fmt: skip
"""Programs that forward, even though their arguments name an engine (`kubectl port-forward svc/vllm`)."""


@dataclass(frozen=True)
class Listener:
    """One process that listens on a port. `pid` None: of another user or namespace; `argv`: empty where it cannot be read;
    `name`: may be a title that the process set itself; `remote`: addresses of other machines that it has connected to;
    `began_s`: seconds since 1970 (a pid alone may be another process by now).
    """

    pid: int | None
    argv: tuple[str, ...] = ()
    name: str = ""
    program: str = ""
    remote: tuple[str, ...] = ()
    began_s: float = 0.0

    @property
    def command(self) -> str:
        return " ".join(self.argv) or self.name

    @property
    def forwards(self) -> bool:
        """True for a known proxy or tunnel, by its program, script or module."""
        names = [self.name, self.program, *self._started()]
        return any(_stem(name) in _FORWARDERS for name in names if name)

    def runs_models(self) -> bool:
        """Return True where it can run a model, as anybody can give a name: its program is compiled, or it or a child
        has loaded a library that runs models. Their mapped files are read at each call.
        """
        return (
            self._is_compiled or _start(self.argv)[1] == _EMBEDDED or (self.pid is not None and _has_library(self.pid))
        )

    @property
    def named_as_engine(self) -> bool:
        """True for a process whose program, script, `-m` module or own title is an engine's. Other arguments prove
        nothing: `litellm --model openai/vllm` forwards.
        """
        argv = _multiprocessing_parent(self)
        # A title that the server sets itself is in the name where the command line is cut.
        return any(_TITLE.match(text) for text in (*argv[:1], self.name)) or is_engine(argv)

    @property
    def _is_compiled(self) -> bool:
        """True where the program file itself is an engine (llama-server), and no interpreter."""
        return PurePath(self.program).name in command_words()

    def _started(self) -> Sequence[str]:
        kind, what, _ = _start(self.argv)
        return [*self.argv[:1], what.partition(".")[0] if kind == "module" else what]


def listeners(host: str | None, port: int) -> list[Listener]:
    """Find the processes that listen on a port of this machine; those of another user or namespace have no pid. `host`
    is the loopback address or `localhost` at which they must answer; None for any address of this machine.
    """
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.AccessDenied, OSError):
        return [Listener(None)]
    found = {
        c.pid: None
        for c in connections
        if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port and _covers(c.laddr.ip, host)
    }
    return [_describe(pid, connections) for pid in found]


def is_engine(argv: Sequence[str]) -> bool:
    kind, what, rest = _start(argv)
    engines = command_words()
    if kind == "module":
        known = what == _EMBEDDED or what.partition(".")[0] in engines
        return known and not any(_FORWARDING_PART.fullmatch(part) for part in what.split("."))
    subcommands = [arg for arg in rest[:2] if not arg.startswith("-")]
    return PurePath(what).name in engines and not any(_FORWARDING_PART.fullmatch(part) for part in subcommands)


def _start(argv: Sequence[str]) -> tuple[str, str, Sequence[str]]:
    """Return (kind, what, arguments) of what a command line starts. The kind is `module` for `python -m MODULE`, `code`
    for `python -c CODE`, else `program`, also for a script.
    """
    if not argv:
        return "program", "", ()
    if not _INTERPRETER.fullmatch(PurePath(argv[0]).name):
        return "program", argv[0], argv[1:]
    i = 1
    while i < len(argv) and argv[i].startswith("-"):
        option = argv[i]
        # Options of one letter may be joined: `-Im module`, `-mmodule`.
        joined = re.fullmatch(r"-[A-Za-ln-z]*?([mc])(.*)", option) if not option.startswith("--") else None
        if joined is not None and not option.startswith(("-X", "-W")):
            what = joined[2] or (argv[i + 1] if i + 1 < len(argv) else "")
            return "module" if joined[1] == "m" else "code", what, argv[i + (1 if joined[2] else 2) :]
        i += 2 if option in _INTERPRETER_VALUES else 1
    return "program", argv[i] if i < len(argv) else "", argv[i + 1 :]


def _stem(name: str) -> str:
    return PurePath(name).name.lower().removesuffix(".py").removesuffix(".exe")


def _covers(listens_on: str, host: str | None) -> bool:
    address = _address(listens_on)
    if host is None or address is None or address.is_unspecified:
        return True
    asked = _address(host)
    return address.is_loopback if asked is None else address == asked


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _describe(pid: int | None, connections: Sequence[Any]) -> Listener:
    if pid is None:
        return Listener(None)
    try:
        process = psutil.Process(pid)
        argv, name = tuple(process.cmdline()), process.name()
    except psutil.Error:
        return Listener(pid)
    try:
        program, began_s = process.exe(), process.create_time()
    except psutil.Error:  # of another user
        return Listener(pid, argv, name, remote=_remote(pid, connections))
    return Listener(pid, argv, name, program, _remote(pid, connections), began_s)


def _has_library(pid: int) -> bool:
    family = []
    with contextlib.suppress(psutil.Error):
        family.append(psutil.Process(pid))
        family += family[0].children(recursive=True)
    return any(_MODEL_LIBRARY.search(_loaded(one)) is not None for one in family)


def _loaded(process: psutil.Process) -> str:
    """Return the files that are mapped into a process; "" where they cannot be read."""
    try:
        maps = Path(f"/proc/{process.pid}/maps")
        if maps.exists():
            return maps.read_text("utf-8", "replace")  # psutil reads what each page costs, too: seconds for an engine
        return "\n".join(file.path for file in process.memory_maps())
    except (OSError, psutil.Error):
        return ""


def _remote(pid: int, connections: Sequence[Any]) -> tuple[str, ...]:
    """Return the addresses of other machines that a process connected to; those of its clients do not count."""
    own = [c for c in connections if c.pid == pid]
    ports = {c.laddr.port for c in own if c.status == psutil.CONN_LISTEN and c.laddr}
    here = {str(_address(a.address.partition("%")[0])) for nic in psutil.net_if_addrs().values() for a in nic}
    return tuple(
        host_port(c.raddr.ip, c.raddr.port)
        for c in own
        if c.status == psutil.CONN_ESTABLISHED and c.raddr and c.laddr.port not in ports
        if not _is_here(c.raddr.ip, here)
    )


def _is_here(ip: str, here: set[str]) -> bool:
    address = _address(ip.partition("%")[0])
    return address is not None and (address.is_loopback or str(address) in here)


def _multiprocessing_parent(listener: Listener) -> Sequence[str]:
    """Return the command line, of a multiprocessing child that of its parent, as vLLM's API servers are."""
    argv: Sequence[str] = listener.argv
    pid = listener.pid
    for _ in range(_MOST_PARENTS):
        kind, code, _rest = _start(argv)
        if pid is None or kind != "code" or not any(f"from {module} import" in code for module in _SPAWNED):
            break
        try:
            parent = psutil.Process(pid).parent()
            if parent is None:
                break
            pid, argv = parent.pid, parent.cmdline()
        except psutil.Error:
            break
    return argv
