import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from loadchaos.chaos import authorization, listeners
from loadchaos.chaos.listeners import Listener
from loadchaos.core.errors import AuthorizationError, OptionError
from tests.embedded_server import EmbeddedServer

HARM = ["the attack reset_mm_cache"]


LISTENS = """
import os, socket
if "LISTEN_ON" in os.environ:
    if library := os.environ.pop("LOADS", ""):
        import mmap
        file = open(library, "rb")
        loaded = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    host = os.environ.pop("LISTEN_ON")
    if before := os.environ.pop("LISTEN_FD", ""):
        s = socket.socket(fileno=int(before))
    else:
        s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        s.bind((host, int(os.environ.pop("LISTEN_PORT", 0)))); s.listen()
    if "CONNECT_TO" in os.environ:
        host, port = os.environ.pop("CONNECT_TO").split(":")
        other = socket.create_connection((host, int(port)))
    print(s.getsockname()[1], flush=True)
    s.settimeout(60)
    clients = []
    while True:
        clients.append(s.accept()[0])
        if becomes := os.environ.pop("BECOMES", ""):
            s.set_inheritable(True)
            os.environ |= {"LISTEN_ON": host, "LISTEN_FD": str(s.fileno())}
            os.execv(os.environ["PROGRAM"], becomes.split())
        if "FORWARD_TO" not in os.environ:
            clients[-1].send(b"accepted")
            continue
        import threading
        host, port = os.environ["FORWARD_TO"].split(":")
        pair = clients[-1], socket.create_connection((host, int(port)))
        def carry(a, b):
            while data := a.recv(65536):
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)
        for ends in (pair, pair[::-1]):
            threading.Thread(target=carry, args=ends, daemon=True).start()
"""


@contextlib.contextmanager
def listening(
    folder: Path, *argv: str, on: str = "127.0.0.1", loads: str = "libtorch_cpu.so", port: int = 0,
    program: Path | str = sys.executable, **more: str,
) -> Iterator[int]:  # fmt: skip
    """Run a process with this command line that listens; yields its port.

    It has the library `loads` mapped. `more`: CONNECT_TO an address, FORWARD_TO one, or a command line that it BECOMES
    by `exec` with its first client.
    Python imports sitecustomize before it looks at its arguments, so they can be those of any program.
    """
    (folder / "sitecustomize.py").write_text(LISTENS, "utf-8")
    variables = {"PYTHONPATH": str(folder), "PYTHONHOME": sys.base_prefix, "LISTEN_ON": on, "LISTEN_PORT": str(port)}
    variables |= {"PROGRAM": str(program), **more}
    if loads:
        (folder / loads).write_bytes(b"library")
        variables["LOADS"] = str(folder / loads)
    process = subprocess.Popen(
        argv, executable=program, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def local_port(tmp_path: Path) -> Iterator[int]:
    """A listener whose command line is a server's."""
    with listening(tmp_path, "/venv/bin/python", "/venv/bin/vllm", "serve", "some-model") as port:
        yield port


@pytest.fixture
def proxy_port(tmp_path: Path) -> Iterator[int]:
    with listening(tmp_path, "python3", "forward.py", "8000") as port:
        yield port


def test_check_allows_a_harmless_run() -> None:
    authorization.check("http://llm.example.com", [], [])


def test_check_needs_the_address_of_a_remote_server() -> None:
    with pytest.raises(AuthorizationError, match=r"--authorize llm\.example\.com:443"):
        authorization.check("https://llm.example.com/prefix", HARM, [])
    authorization.check("https://llm.example.com/prefix", HARM, ["llm.example.com:443"])


def test_check_refuses_authorization_for_another_host_or_port() -> None:
    for other in ("other.example.com:443", "llm.example.com:80"):
        with pytest.raises(AuthorizationError, match="authorized so far: "):
            authorization.check("https://llm.example.com", HARM, [other])


ENGINES = {
    "script": "/venv/bin/python3.11 /venv/bin/vllm serve m --port 8000",
    "module": "python3 -m vllm.entrypoints.openai.api_server --model m",
    "options": "python -X dev -Ou -m sglang.launch_server --model-path m",
    "program": "/usr/bin/lmdeploy serve api_server internlm",
    "title": "VLLM::APIServer_0",
    "embedded": "/venv/bin/python -m loadchaos.simulator.server --port 0",
    "a model's name": "vllm serve my-router",
}


@pytest.mark.parametrize("command", ENGINES.values(), ids=ENGINES)
def test_check_allows_an_engine_by_its_program_or_module(command: str, tmp_path: Path) -> None:
    with listening(tmp_path, *command.split()) as port:
        for host in ("127.0.0.1", "localhost"):
            authorization.check(f"http://{host}:{port}", HARM, [])


@pytest.mark.parametrize("command", ENGINES.values(), ids=ENGINES)
def test_check_refuses_what_is_only_named_as_an_engine(command: str, tmp_path: Path) -> None:
    with listening(tmp_path, *command.split(), loads="") as port:
        with pytest.raises(AuthorizationError, match="has loaded no library that runs models"):
            authorization.check(f"http://127.0.0.1:{port}", HARM, [])
        authorization.check(f"http://127.0.0.1:{port}", HARM, [f"127.0.0.1:{port}"])


def test_who_listens_is_compared_without_a_look_at_the_mapped_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    monkeypatch.setattr(listeners, "_has_library", lambda pid: not pids.append(pid))  # type: ignore[func-returns-value]
    leave = authorization.Leave(HARM, [])
    with listening(tmp_path, "vllm", "serve", "m") as port:
        leave.check(f"http://127.0.0.1:{port}")
        assert leave.refusal(f"http://127.0.0.1:{port}") is None
    assert len(pids) == 1


@pytest.mark.parametrize("library", ["libllama.so.0", "libggml-cuda.so", "_turbomind.cpython-312-x86_64-linux-gnu.so"])
def test_check_knows_an_engine_by_a_library_that_runs_models(library: str, tmp_path: Path) -> None:
    with listening(tmp_path, "/venv/bin/python", "/venv/bin/vllm", "serve", loads=library) as port:
        authorization.check(f"http://127.0.0.1:{port}", HARM, [])


def test_leave_belongs_to_the_process_that_was_checked(tmp_path: Path) -> None:
    engine = ("/venv/bin/python", "/venv/bin/vllm", "serve", "m")
    leave = authorization.Leave(HARM, [])
    with listening(tmp_path, *engine) as port:
        url = f"http://127.0.0.1:{port}"
        leave.check(url)
        assert leave.refusal(url) is None
    with listening(tmp_path, "python3", "forward.py", port=port):
        refusal = leave.refusal(url)
    assert refusal is not None and "no known server" in refusal
    with listening(tmp_path, *engine, port=port):
        assert leave.refusal(url) is None, "a restarted engine is checked again"


def test_leave_does_not_belong_to_another_program_of_the_same_process(tmp_path: Path) -> None:
    """`exec` keeps the pid and the time of the start."""
    leave = authorization.Leave(HARM, [])
    with listening(tmp_path, "vllm", "serve", "m", BECOMES="python3 forward.py") as port:
        leave.check(url := f"http://127.0.0.1:{port}")
        with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)) as second:
            assert second.recv(8) == b"accepted", "by what it became"
        assert "'python3 forward.py', which is no known server" in str(leave.refusal(url))


def test_leave_notes_who_listened_before_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    now = ["engine"]
    monkeypatch.setattr(authorization, "_listening", lambda url: frozenset(now))
    monkeypatch.setattr(authorization, "_why_not_local", lambda url: now.__setitem__(0, "tunnel"))
    leave = authorization.Leave(HARM, [])
    leave.check("http://127.0.0.1:9")
    monkeypatch.setattr(authorization, "_why_not_local", lambda url: "It forwards.")
    assert "It forwards." in str(leave.refusal("http://127.0.0.1:9"))


ENGINE = ("/venv/bin/python", "/venv/bin/vllm", "serve", "m")


@pytest.mark.parametrize("on", [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "::1"), ("::", "127.0.0.1")])
def test_check_refuses_a_tunnel_beside_an_engine_on_one_port(on: tuple[str, str], tmp_path: Path) -> None:
    """By SO_REUSEPORT, and by IPv4 and IPv6: `localhost` is either."""
    with listening(tmp_path, *ENGINE, on=on[0]) as port:
        authorization.check(f"http://localhost:{port}", HARM, [])
        (tmp_path / "other").mkdir()
        with (
            listening(tmp_path / "other", "python3", "forward.py", on=on[1], port=port),
            pytest.raises(AuthorizationError, match="no known server"),
        ):
            authorization.check(f"http://localhost:{port}", HARM, [])


def test_check_looks_at_every_process_that_shares_the_socket(tmp_path: Path) -> None:
    """A child that inherits the socket may accept; here an engine's, of a process that is none."""
    (tmp_path / "sitecustomize.py").write_text("import os, time; 'HOLD' in os.environ and time.sleep(60)")
    with socket.create_server(("127.0.0.1", 0)) as shared:
        variables = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONHOME": sys.base_prefix, "HOLD": "1"}
        engine = subprocess.Popen(ENGINE, executable=sys.executable, env=variables, pass_fds=[shared.fileno()])
        try:
            assert {one.pid for one in listeners.listeners(None, shared.getsockname()[1])} == {os.getpid(), engine.pid}
        finally:
            engine.kill()
            engine.wait()


def test_check_allows_the_embedded_server() -> None:
    with EmbeddedServer() as server:
        authorization.check(server.url, HARM, [])
        with pytest.raises(AuthorizationError, match=r"Workers on other machines reach another server"):
            authorization.check(server.url, HARM, [], elsewhere=True)


def test_check_refuses_a_copied_program_that_is_named_as_an_engine(tmp_path: Path) -> None:
    program = Path(shutil.copy(Path(sys.executable).resolve(), tmp_path / "llama-server"))
    for text in (b"", b"ggml_init"):
        with program.open("ab") as file:
            file.write(text)
        with listening(tmp_path, "llama-server", "-m", "x", loads="", program=program) as port:
            url = f"http://127.0.0.1:{port}"
            if text:
                authorization.check(url, HARM, [])
            else:
                with pytest.raises(AuthorizationError, match="has loaded no library that runs models"):
                    authorization.check(url, HARM, [])


def test_connections_of_the_whole_engine_count_but_those_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_is_here", lambda ip, here: False)
    code = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"
    with socket.create_server(("127.0.0.1", 0)) as served, socket.create_server(("127.0.0.1", 0)) as workers:
        port, other = served.getsockname()[1], workers.getsockname()[1]
        this = Listener(os.getpid(), ENGINE, port=port)
        with socket.create_connection(("127.0.0.1", port)) as client, served.accept()[0]:
            mine = f"127.0.0.1:{client.getsockname()[1]}"
            assert mine not in this.remote(), "it is a client"
        for argv_port in (port, other):  # of a child to another machine; of a worker elsewhere to the engine
            child = subprocess.Popen([sys.executable, "-c", code, str(argv_port)], stdin=subprocess.PIPE)
            listening_there = served if argv_port == port else workers
            peer, address = listening_there.accept()
            with peer:
                expected = f"127.0.0.1:{port}" if argv_port == port else f"127.0.0.1:{address[1]}"
                assert expected in this.remote()
            child.communicate()


@pytest.mark.parametrize("found", ["192.0.2.7", "2001:db8::7"])
def test_check_refuses_a_localhost_that_is_another_machine(
    found: str, local_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", (ip, 0)) for ip in ("127.0.0.1", found)])
    with pytest.raises(AuthorizationError, match="not on this machine's loopback"):
        authorization.check(f"http://localhost:{local_port}", HARM, [])


@pytest.mark.parametrize(
    "given",
    ["*:8000", "127.0.0.1:80", "localhost:8000", "0.0.0.0:8000", "[::1]:8000", "[::ffff:127.0.0.1]:8000", "127.1:8000",
     "127.0.0.1.:8000", "127.0.0.01:8000", "127.0.0.2:8000", "127.0.0.1:8000@prod:8000", "http://prod:8000/127.0.0.1:8000",
     "127.0.0.1:80000", "127.0.0.1:8000-8001", "127.0.0.1:*", "127.0.0.1:-8000", "127.0.0.1:8000,127.0.0.1:8001"],
)  # fmt: skip
def test_check_takes_no_other_spelling_for_an_authorization(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "listeners", lambda host, port: [])
    with pytest.raises((AuthorizationError, OptionError)):
        authorization.check("http://127.0.0.1:8000", HARM, [given])


FORWARDERS = {
    "docker": "docker-proxy 172.17.0.2:8000",
    "rootless": "rootlessport vllm serve",
    "cloudflared": "cloudflared access tcp --hostname vllm.example.com --url 127.0.0.1:8000",
    "caddy": "/usr/bin/caddy reverse-proxy --from :8000 --to vllm.example.com:8000",
    "iap": "/usr/bin/python3 /usr/lib/google-cloud-sdk/lib/gcloud.py compute start-iap-tunnel vllm-0 8000",
    "litellm": "/venv/bin/python /venv/bin/litellm --model openai/vllm --api_base https://prod.example.com",
    "kubectl": "kubectl port-forward svc/vllm 8000",
    "module": "python3 -m mitmproxy --mode reverse:http://vllm:8000",
}


@pytest.mark.parametrize("command", FORWARDERS.values(), ids=FORWARDERS)
def test_check_refuses_a_proxy_or_tunnel_on_loopback(command: str, tmp_path: Path) -> None:
    with listening(tmp_path, *command.split()) as port:
        with pytest.raises(AuthorizationError, match="which forwards to another address"):
            authorization.check(f"http://127.0.0.1:{port}", HARM, [])
        assert authorization.listener_pid(f"http://127.0.0.1:{port}") is None


NO_ENGINES = {
    "argument": "python3 forward.py vllm serve",
    "code": "python3 -c pass vllm serve",
    "file of vllm": "python3 /opt/vllm/forward.py",
    "lmdeploy's proxy": "python /venv/bin/lmdeploy serve proxy --server-port 8000",
    "vllm's router": "python -m vllm_router.app --static-backends http://prod",
    "sglang's balancer": "python -m sglang.srt.disaggregation.mini_lb --prefill http://prod",
    "lmdeploy's proxy by its package": "python -m lmdeploy serve proxy --server-port 8000",
    "folder": "/opt/vllm/tunnel",
    "lmdeploy's proxy as a module": "python -m lmdeploy.serve.proxy.proxy --port 8000",
    "vllm's proxy in its package": "python -m vllm.entrypoints.proxy_server",
    "module joined": "python -mvllm_router",
    "options with values": "python -X dev -W ignore -m sglang.router",
    "gateway of llama": "pypy3 -m transformers.serving.gateway",
    "ASGI server": "uvicorn vllm:app",
    "shell": "bash -c vllm",
    "script of another language": "perl /usr/bin/vllm",
    "wrapper": "env vllm serve",
    "remote shell": "mosh vllm",
    "balancer": "ray serve run vllm",
    "lmdeploy's web page": "python /venv/bin/lmdeploy serve gradio http://prod",
    "name with an end": "vllm.sh serve",
    "name in capitals": "VLLM serve",
    **{f"title {title}": title for title in ("vllm_proxy", "sglang_router", "vllm-gateway", "lmdeploy_proxy")},
}


@pytest.mark.parametrize("command", NO_ENGINES.values(), ids=NO_ENGINES)
def test_check_refuses_a_program_that_only_names_an_engine(command: str, tmp_path: Path) -> None:
    with listening(tmp_path, *command.split()) as port:
        with pytest.raises(AuthorizationError, match="which is no known server"):
            authorization.check(f"http://127.0.0.1:{port}", HARM, [])
        authorization.check(f"http://127.0.0.1:{port}", HARM, [f"127.0.0.1:{port}"])


def test_check_refuses_an_engine_that_is_connected_to_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ("vllm", "serve", "m")
    with socket.create_server(("127.0.0.7", 0)) as other:
        remote = f"127.0.0.7:{other.getsockname()[1]}"
        with listening(tmp_path, *engine, CONNECT_TO=remote) as port:
            authorization.check(f"http://127.0.0.1:{port}", HARM, [])  # a connection within this machine
            monkeypatch.setattr(listeners, "_is_here", lambda ip, here: ip != "127.0.0.7")
            with pytest.raises(AuthorizationError, match=rf"is connected to {remote}, so it may forward"):
                authorization.check(f"http://127.0.0.1:{port}", HARM, [])


def test_check_allows_an_engine_whose_client_is_another_machine(
    local_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "_is_here", lambda ip, here: False)
    with socket.create_connection(("127.0.0.1", local_port)) as client:
        assert client.recv(8) == b"accepted"  # before that no process owns the connection
        authorization.check(f"http://127.0.0.1:{local_port}", HARM, [])


@pytest.mark.parametrize(
    "host",
    ["10.0.0.1", "192.0.2.7", "0.0.0.0", "[2001:db8::1]", "[::ffff:10.0.0.1]", "llm.example.com",
     "localhost.example.com", "127.0.0.1.example.com", "vllm", "127.1", "2130706433"],
)  # fmt: skip
def test_check_refuses_every_host_but_loopback(host: str, local_port: int) -> None:
    """An engine listens on that port here, so only the host can be the reason."""
    with pytest.raises(AuthorizationError, match="not on this machine's loopback"):
        authorization.check(f"http://{host}:{local_port}", HARM, [])
    assert authorization.listener_pid(f"http://{host}:{local_port}") is None


def test_check_refuses_a_port_whose_listener_has_another_address(tmp_path: Path) -> None:
    with listening(tmp_path, "vllm", "serve", "m", on="127.0.0.2") as port:
        authorization.check(f"http://127.0.0.2:{port}", HARM, [])
        with pytest.raises(AuthorizationError, match="No process that listens there is visible"):
            authorization.check(f"http://127.0.0.1:{port}", HARM, [])


@pytest.mark.parametrize(
    ("owners", "message"), [([Listener(None)], "is not visible"), ([], "No process that listens there is visible")]
)
def test_check_refuses_a_loopback_port_without_a_visible_owner(
    owners: list[Listener], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorization, "listeners", lambda host, port: owners)
    with pytest.raises(AuthorizationError, match=message):
        authorization.check("http://127.0.0.1:9", HARM, [])
    authorization.check("http://127.0.0.1:9", HARM, ["127.0.0.1:9"])


@pytest.mark.parametrize("order", [1, -1])
def test_check_refuses_a_port_that_an_engine_shares_with_a_tunnel(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    owners = [Listener(1 << 30, ("vllm", "serve", "m")), Listener(2, ("ssh", "-L", "8000:prod:8000"))][::order]
    monkeypatch.setattr(listeners, "_has_library", lambda pid: True)
    monkeypatch.setattr(authorization, "listeners", lambda host, port: owners)
    with pytest.raises(AuthorizationError, match="which forwards to another address"):
        authorization.check("http://127.0.0.1:9", HARM, [])


@pytest.mark.parametrize(("code", "engine"), [("from multiprocessing.spawn import spawn_main; spawn_main()", True),
                                              ("import proxy; proxy.main()", False)])  # fmt: skip
def test_check_refuses_code_that_an_engine_started(code: str, engine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = SimpleNamespace(pid=1, cmdline=lambda: ["vllm", "serve", "m"])
    monkeypatch.setattr(psutil, "Process", lambda pid: SimpleNamespace(parent=lambda: parent))
    assert Listener(2, ("python3", "-c", code)).named_as_engine == engine


def test_check_takes_localhost_and_127_0_0_1_for_two_addresses(
    local_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorization, "listeners", lambda host, port: [])
    with pytest.raises(AuthorizationError):
        authorization.check(f"http://localhost:{local_port}", HARM, [f"127.0.0.1:{local_port}"])


@pytest.mark.parametrize("text", ["nonsense", "host", "host:", ":80", "host:x", "127.0.0.1:99999"])
def test_check_refuses_an_authorization_without_host_and_port(text: str) -> None:
    with pytest.raises(OptionError, match="HOST:PORT"):
        authorization.check("http://llm.example.com", [], [text])


def test_refuse_wrong_pid_accepts_the_server_and_its_parent_only(local_port: int, proxy_port: int) -> None:
    pid = authorization.listener_pid(f"http://127.0.0.1:{local_port}")
    assert pid is not None
    authorization.refuse_wrong_pid(pid, [f"http://127.0.0.1:{local_port}"])
    authorization.refuse_wrong_pid(os.getpid(), [f"http://127.0.0.1:{local_port}"])  # the test started it
    authorization.refuse_wrong_pid(pid, [f"http://127.0.0.1:{proxy_port}", f"http://127.0.0.1:{local_port}"])
    with pytest.raises(
        OptionError, match=rf"--pid {pid} is not the server: .*port {proxy_port} \(listening there: \d+: "
    ):
        authorization.refuse_wrong_pid(pid, [f"http://127.0.0.1:{proxy_port}"])
    with pytest.raises(OptionError, match="no such process"):
        authorization.refuse_wrong_pid(1 << 30, [f"http://127.0.0.1:{local_port}"])
