"""Processes that listen on a TCP port of this machine, and whether they serve a model themselves."""

from __future__ import annotations

import contextlib
import ipaddress
import mmap
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
_MODEL_LIBRARY = re.compile(
    r"/(?:libtorch\w*|libllama|libggml[\w-]*|_turbomind[\w.-]*|libtensorrt_llm\w*|libmlx)\.(?:so|dylib)\b"
    r"|/loadchaos/simulator/server\.py$",
    re.MULTILINE,
)
"""Libraries that run models: torch (vLLM, SGLang, LMDeploy, transformers), TurboMind, ggml, TensorRT-LLM, MLX. The embedded
server maps its own file.
"""
_EMBEDDED = "loadchaos.simulator.server"
_FORWARDING_PART = re.compile(r"(?:\w+_)?(?:proxy|proxy_server|router|gateway|lb|load_balancer|tunnel|gradio)")
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
    `name`: may be a title that the process set itself; `began_s`: seconds since 1970 (a pid alone may be another process
    by now).
    """

    pid: int | None
    argv: tuple[str, ...] = ()
    name: str = ""
    program: str = ""
    began_s: float = 0.0
    port: int = 0

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
        return self._is_compiled or (self.pid is not None and _has_library(self.pid))

    def remote(self) -> list[str]:
        """Return the addresses of other machines that it, or a process that belongs to it, is connected to. Clients do not
        count: they are at the port that it listens on. The processes' connections are read at each call.
        """
        here = {str(_address(a.address)) for nic in psutil.net_if_addrs().values() for a in nic}
        family = {process.pid for process in _family(self)}
        return [
            host_port(c.raddr.ip, c.raddr.port)
            for c in psutil.net_connections(kind="tcp")
            if c.pid in family
            and c.status == psutil.CONN_ESTABLISHED
            and c.raddr
            and c.laddr
            and c.laddr.port != self.port
            if not _is_here(c.raddr.ip, here)
        ]

    @property
    def named_as_engine(self) -> bool:
        """True for a process whose program, script, `-m` module or own title is an engine's. Other arguments prove
        nothing: `litellm --model openai/vllm` forwards.
        """
        argv = _multiprocessing_parent(self)[1]
        titles = tuple(f"{word}::" for word in command_words())
        # Servers title their processes, such as `VLLM::EngineCore`. Where the command line is cut, the name has the title.
        return any(text.lower().startswith(titles) for text in (*argv[:1], self.name)) or is_engine(argv)

    @property
    def _is_compiled(self) -> bool:
        """True where the program file itself is an engine (llama-server): its name alone may be that of a copied tunnel."""
        return PurePath(self.program).name in command_words() and _contains(Path(self.program), b"ggml_")

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
        pid: None
        for c in connections
        if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port and _covers(c.laddr.ip, host)
        for pid in _sharing(c)
    }
    return [_describe(pid, port) for pid in found]


def _sharing(connection: Any) -> set[int | None]:
    """Return all processes that hold a socket: each of them may accept, as a child inherits it, and psutil names one."""
    found: set[int | None] = {connection.pid}
    try:
        socket = Path(f"/proc/{connection.pid}/fd/{connection.fd}").readlink()
    except OSError:
        return found
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if any(file.readlink() == socket for file in Path(f"/proc/{pid}/fd").iterdir()):
                found.add(pid)
    return found


def is_engine(argv: Sequence[str]) -> bool:
    kind, what, rest = _start(argv)
    engines = command_words()
    parts = [arg for arg in rest[:2] if not arg.startswith("-")]
    if kind == "module":  # which may have subcommands, too: `python -m lmdeploy serve proxy`
        known, parts = what == _EMBEDDED or what.partition(".")[0] in engines, [*what.split("."), *parts]
    else:
        known = PurePath(what).name in engines
    return known and not any(_FORWARDING_PART.fullmatch(part) for part in parts)


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
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _describe(pid: int | None, port: int) -> Listener:
    if pid is None:
        return Listener(None, port=port)
    try:
        process = psutil.Process(pid)
        argv, name = tuple(process.cmdline()), process.name()
    except psutil.Error:
        return Listener(pid, port=port)
    try:
        program, began_s = process.exe(), process.create_time()
    except psutil.Error:  # of another user
        return Listener(pid, argv, name, port=port)
    return Listener(pid, argv, name, program, began_s, port)


def _contains(program: Path, text: bytes) -> bool:
    try:
        with program.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(text) >= 0
    except (OSError, ValueError):
        return False


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


def _family(listener: Listener) -> list[psutil.Process]:
    """Return the processes of the server that a listener belongs to: its API servers, engine cores and workers."""
    try:
        top = psutil.Process(_multiprocessing_parent(listener)[0])
        return [top, *top.children(recursive=True)]
    except psutil.Error:
        return []


def _is_here(ip: str, here: set[str]) -> bool:
    address = _address(ip)
    return address is not None and (address.is_loopback or str(address) in here)


def _multiprocessing_parent(listener: Listener) -> tuple[int | None, Sequence[str]]:
    """Return pid and command line, of a multiprocessing child those of its parent, as vLLM's API servers are."""
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
    return pid, argv
