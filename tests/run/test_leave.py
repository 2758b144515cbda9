"""A server behind a tunnel is harmed only with leave, even where loadchaos launched the tunnel."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import psutil
import pytest

from loadchaos.chaos.base import AttackContext, AttackedReplica
from loadchaos.chaos.injector import make_attack
from loadchaos.core import http_client
from loadchaos.core.exit_codes import FAIL, TARGET_ERROR, USER_ERROR
from loadchaos.core.redact import Redactor
from loadchaos.profile import request_trace
from loadchaos.profile.request_trace import TraceSend
from loadchaos.run.discovery_client import discovery_client
from loadchaos.run.ports import ReservedPort
from loadchaos.run.server_under_test import DOWN, ServerUnderTest, TargetSpec
from loadchaos.server.dialects import DIALECTS
from tests.campaigns.traces import stored_chat, trace_of
from tests.chaos.test_authorization import ENGINE as ENGINE_ARGV
from tests.chaos.test_authorization import ENGINES, FORWARDERS, NO_ENGINES, listening
from tests.embedded_server import EmbeddedServer
from tests.http_server import Asked, Handler, answering, serving
from tests.invoking import output_of
from tests.report.made_up_run import write_run
from tests.report.made_up_search import search_data
from tests.run.conftest import SMALL, Start, StartSim, embedded_target

RESETS = [{"admin": "reset_mm_cache", "every": "200ms"}]


@pytest.fixture
def victim(sim: StartSim) -> EmbeddedServer:
    """A server whose log says what reached it."""
    return sim("--dialect", "vllm", "--era", "0.18")


def resets(victim: EmbeddedServer) -> int:
    return victim.text.count("reset_mm_cache HTTP")


def tunnel(folder: Path, port: int, victim: EmbeddedServer, name: str = "tunnel.py") -> list[str]:
    shutil.copy(Path(__file__).with_name("gateway.py"), folder / name)
    return [sys.executable, str(folder / name), str(victim.port), str(port)]


@pytest.mark.parametrize("name", ["tunnel.py", "vllm"])
def test_launched_tunnel_needs_leave(
    start: Start, victim: EmbeddedServer, tmp_path: Path, name: str, unused_port: int
) -> None:
    launch = {"command": tunnel(tmp_path, unused_port, victim, name), "url": f"http://127.0.0.1:{unused_port}"}
    run = start(target={"launch": launch}, attacks=RESETS)
    assert run.ends() == USER_ERROR
    assert f"--authorize 127.0.0.1:{unused_port}" in run.output
    assert resets(victim) == 0


@pytest.mark.slow
def test_launched_tunnel_is_attacked_with_leave(
    start: Start, victim: EmbeddedServer, tmp_path: Path, unused_port: int
) -> None:
    launch = {"command": tunnel(tmp_path, unused_port, victim), "url": f"http://127.0.0.1:{unused_port}"}
    run = start("--authorize", f"127.0.0.1:{unused_port}", target={"launch": launch}, attacks=RESETS)
    run.ends()
    assert resets(victim) > 0


def test_replica_beside_a_server_of_ours_needs_leave(
    start: Start, victim: EmbeddedServer, tmp_path: Path, unused_port: int
) -> None:
    process = subprocess.Popen(tunnel(tmp_path, unused_port, victim))
    try:
        replicas = [{"name": "b", "url": f"http://127.0.0.1:{unused_port}"}]
        run = start(target={**embedded_target(), "replicas": replicas}, attacks=RESETS)
        assert run.ends() == USER_ERROR
        assert resets(victim) == 0
    finally:
        process.terminate()
        process.wait()


@dataclass
class Counted:
    """A server that loadchaos may not harm, because it is none that runs models. `reached`: what came, but reads."""

    url: str = ""
    reached: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")

    def reply(self, asked: Asked) -> tuple[int, object]:
        if asked.method == "POST":
            self.reached.append(asked.path)
        return 200, {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 4096}]}


@pytest.fixture
def counted() -> Iterator[Counted]:
    found = Counted()
    with answering(found.reply) as found.url:
        yield found


@pytest.fixture
def home(tmp_path: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working folder with profiles that harm, a trace that killed a server, and a file of requests."""
    monkeypatch.chdir(tmp_path)
    for name in ("CI", "OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    failure = {"id": "engine_died", "severity": "engine_death", "title": "it died"}
    send = TraceSend(id="r0", body=stored_chat(tmp_path), path="/sleep")
    request_trace.write(trace_of(tmp_path, [send], source="test", failure=failure), tmp_path)
    attacks = {**SMALL, "target": {}, "attacks": RESETS}
    near = [{"name": "near", "payload": {"near_limit": {}}}]
    replicas = [{"name": "a", "url": "http://127.0.0.1:9"}, {"name": "b", "url": counted.url}]
    recorded = [{"name": "replay", "payload": {"recorded": {"trace": "trace.jsonl"}}}]
    profiles = {
        "attacks": attacks,
        "near": {**SMALL, "target": {}, "traffic": near},
        "replicas": {**attacks, "target": {"replicas": replicas}},
        "recorded": {**SMALL, "target": {}, "traffic": recorded, "load": [{"replay": "trace.jsonl"}]},
        **{key: {**SMALL, "target": {key: counted.url}} for key in ("url", "admin_url", "authorize")},
        "top": {**SMALL, "authorize": [counted.address]},
    }
    for name, profile in profiles.items():
        (tmp_path / f"{name}.yaml").write_text(json.dumps(profile))
    body = {"messages": [{"role": "user", "content": "x"}], "model": "m"}
    for name, path in {"sleep": "/sleep?level=1", "coded": "/%73leep", "prefixed": "/x/reset_prefix_cache/"}.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"custom_id": "1", "url": path, "body": body}) + "\n")
    return tmp_path


ENGINE = "http://127.0.0.1:9"
WAYS = {
    "replay": "replay trace.jsonl --target URL --times 1",
    "run of a trace": "run recorded.yaml --target URL",
    "attack": "run attacks.yaml --target URL",
    "payload": "run near.yaml --target URL",
    "admin URL": f"run attacks.yaml --target {ENGINE} --authorize 127.0.0.1:9 --admin-url URL",
    "replica": f"run replicas.yaml --target {ENGINE} --authorize 127.0.0.1:9",
    "--set": f"run replicas.yaml --target {ENGINE} --authorize 127.0.0.1:9 --set target.replicas.0.url=URL",
    "authorised elsewhere": "run attacks.yaml --target URL --authorize localhost:PORT",
    "capacity": "capacity near.yaml --target URL --slo ttft=1s",
    "probe": f"probe URL --lengths --admin-url {ENGINE} --authorize 127.0.0.1:9",
    "probe of the admin URL": f"probe {ENGINE} --lengths --admin-url URL --authorize 127.0.0.1:9",
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_nothing_reaches_a_server_without_leave(way: str, home: Path, counted: Counted) -> None:
    port = counted.url.rpartition(":")[2]
    words = [w.replace("URL", counted.url).replace("PORT", port) for w in way.split()]
    assert f"add --authorize {counted.address}" in output_of(*words, code=USER_ERROR)
    assert counted.reached == []


TUNNELS = FORWARDERS | NO_ENGINES | ENGINES


@pytest.mark.parametrize("name", TUNNELS)
def test_nothing_reaches_a_server_behind_a_tunnel(name: str, home: Path, counted: Counted) -> None:
    """The tunnels that are named as an engine have loaded no library that runs models."""
    loads = "" if name in ENGINES else "libtorch_cpu.so"
    with listening(home, *TUNNELS[name].split(), loads=loads, FORWARD_TO=counted.address) as port:
        text = output_of("run", "attacks.yaml", "--target", f"http://127.0.0.1:{port}", code=USER_ERROR)
        assert f"add --authorize 127.0.0.1:{port}" in text
        assert counted.reached == []
        httpx.post(f"http://127.0.0.1:{port}/x", trust_env=False)
        assert counted.reached == ["/x"], "it is a tunnel"


@pytest.mark.parametrize(
    ("asked", "engine", "on"),
    [("localhost", "127.0.0.1", "::1"), ("localhost", "::1", "127.0.0.1"), ("localhost", "::", "127.0.0.1"),
     ("127.0.0.1", "127.0.0.1", "127.0.0.1"), ("127.0.0.1", "0.0.0.0", "127.0.0.1"), ("[::1]", "::", "::1"),
     ("[::1%25lo]", "::", "::1"), ("127.0.0.2", "0.0.0.0", "127.0.0.2")],
)  # fmt: skip
def test_nothing_reaches_a_server_behind_a_tunnel_beside_an_engine(
    asked: str, engine: str, on: str, home: Path, counted: Counted
) -> None:
    """On the same port: the kernel gives a connection to either, or to the one with the closer address."""
    (other := home / "other").mkdir()
    with (
        listening(home, *ENGINE_ARGV, on=engine) as port,
        listening(other, "python3", "forward.py", on=on, port=port, FORWARD_TO=counted.address),
    ):
        text = output_of("run", "attacks.yaml", "--target", f"http://{asked}:{port}", code=USER_ERROR)
    assert "which is no known server" in text
    assert counted.reached == []


@pytest.mark.parametrize(
    ("variables", "way"),
    [({"OPENAI_BASE_URL": "URL"}, "run attacks.yaml"), ({"LOADCHAOS_RUN_TARGET": "URL"}, "run attacks.yaml"),
     ({"LOADCHAOS_RUN_ADMIN_URL": "URL", "LOADCHAOS_RUN_AUTHORIZE": "127.0.0.1:9"}, f"run attacks.yaml --target {ENGINE}"),
     ({"LOADCHAOS_REPLAY_TARGET": "URL"}, "replay trace.jsonl --times 1")],
)  # fmt: skip
def test_a_variable_that_names_the_server_gives_no_leave(
    variables: dict[str, str], way: str, home: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("URL", counted.url))
    assert f"add --authorize {counted.address}" in output_of(*way.split(), code=USER_ERROR)
    assert counted.reached == []


@pytest.mark.parametrize("key", ["url", "admin_url", "authorize", "top"])
def test_profile_names_no_server_and_gives_no_leave(key: str, home: Path) -> None:
    assert "authorize" in (text := output_of("run", f"{key}.yaml", code=USER_ERROR)) or key in text


@pytest.mark.parametrize("file", ["sleep", "coded", "prefixed"])
def test_file_of_requests_reaches_no_admin_endpoint(file: str, home: Path, counted: Counted) -> None:
    words = ("--dataset-name", "custom", "--dataset-path", f"{file}.jsonl", "--num-prompts", 1, "--rate", 1)
    assert "is an admin endpoint" in output_of("run", "--target", counted.url, *words, code=USER_ERROR)
    assert counted.reached == []


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_attack_follows_no_redirect_and_no_proxy_of_the_environment(
    status: int, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Elsewhere(Handler):
        def reply(self, request: Asked) -> None:
            asked.append(request.path)
            self.answer(status, b"", {"Location": counted.url + request.path})

    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, counted.url)
    operations = [(dialect, name) for dialect in DIALECTS.values() for name in dialect.admin]
    with serving(Elsewhere) as url:
        async with http_client.client() as client:
            for dialect, name in operations:
                attack = make_attack({"admin": name}, {}, AttackContext(dialect, client, Redactor()))[1]
                result = await attack.begin(AttackedReplica("server", url))
                assert (result.ok, result.status) == (False, status)
        async with discovery_client(url) as discovery:
            await discovery.ask("GET", "/health")
    assert [path.partition("?")[0] for path in asked] == [d.admin[name].path for d, name in operations] + ["/health"]
    assert counted.reached == []


def test_replay_of_a_launched_tunnel_needs_leave(home: Path, victim: EmbeddedServer, unused_port: int) -> None:
    command = shlex.join(tunnel(home, unused_port, victim))
    launch = shlex.join(["sh", "-c", f"exec {command}", "sh", "--port", str(unused_port)])
    text = output_of("replay", "trace.jsonl", "--launch", launch, "--times", 1, code=USER_ERROR)
    assert f"add --authorize 127.0.0.1:{unused_port}" in text
    assert "POST /sleep" not in victim.text


def foreign_run(home: Path, counted: Counted) -> Path:
    """A folder that somebody else made: its record names a server and gives leave, its profile starts a command."""
    folder = home / "foreign"
    folder.mkdir()
    argv = ["loadchaos", "run", "attacks.yaml", "--target", counted.url, "--authorize", counted.address]
    begin = {
        "row": "run",
        "what": "begin",
        "at_ns": 1,
        "profile": "small",
        "argv": argv,
        "target": {"kind": "launched"},
    }
    rows = [begin, {"row": "launch", "what": "start", "at_ns": 2, "command": ["touch"], "pid": 1}]
    (folder / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    launch = {"command": ["touch", str(home / "harm")], "url": counted.url}
    profile = {**SMALL, "target": {"launch": launch}, "attacks": RESETS}
    (folder / "profile.yaml").write_text(json.dumps(profile))
    header = {"event": "trace", "version": 1, "server": {"kind": "launched"}, "failure": {"id": "engine_died"}}
    send = {"event": "send", "id": "r0", "body": stored_chat(folder)}
    (folder / "trace.jsonl").write_text("".join(json.dumps(event) + "\n" for event in (header, send)))
    return folder


@pytest.mark.parametrize("command", ["replay", "minimise", "bisect --flags"])
def test_launch_command_of_somebody_elses_folder_is_shown_and_not_run(
    command: str, home: Path, counted: Counted
) -> None:
    folder = foreign_run(home, counted)
    text = output_of(*command.split(), folder / "trace.jsonl", code=USER_ERROR)
    assert f"starts touch {home / 'harm'}" in text
    assert "type it with --launch, or give --yes" in text
    assert not (home / "harm").exists()
    assert counted.reached == []


@pytest.mark.parametrize("command", ["replay", "run --resume"])
def test_command_of_somebody_else_is_shown_whole(command: str, home: Path, counted: Counted) -> None:
    """No escape sequence, turned text or length hides a part, and nothing of it is redacted: it may be code."""
    folder = foreign_run(home, counted)
    script = "echo \x1b]0;\ntouch harm #\x07 \u202eab\u200b" + "x" * 3000 + "; API_KEY=$(touch harm)"
    profile = json.loads((folder / "profile.yaml").read_text())
    profile["target"]["launch"] |= {"command": ["sh", "-c", script], "env": {"API_KEY": "$(touch harm)"}}
    (folder / "profile.yaml").write_text(json.dumps(profile))
    source = folder if "run" in command else folder / "trace.jsonl"
    shown = shlex.join(["API_KEY=$(touch harm)", "sh", "-c", script])
    for character, escaped in {
        "\x1b": r"\x1b",
        "\n": r"\n",
        "\x07": r"\x07",
        "\u202e": r"\u202e",
        "\u200b": r"\u200b",
    }.items():
        shown = shown.replace(character, escaped)
    assert f"starts {shown}\n" in output_of(*command.split(), source, code=USER_ERROR)
    assert not (home / "harm").exists()


def test_profile_of_somebody_else_is_shown_whole_before_its_load(home: Path) -> None:
    profile = {
        **SMALL,
        "about": "a\x1b[2Jb",
        "target": {"launch": {"command": ["false", "\x1b]0;harm\x07"], "url": ENGINE}},
    }
    (home / "launch.yaml").write_text(json.dumps(profile))
    for command in ("check", "run --wait-ready 2s", "run --dry-run"):
        text = output_of(*command.split(), "launch.yaml", code=TARGET_ERROR if "ready" in command else 0)
        assert "\x1b" not in text
        assert r"starts false '\x1b]0;harm\x07'" in text or "dry" in command


def test_launch_command_of_somebody_elses_folder_runs_with_yes(home: Path, unused_port: int, counted: Counted) -> None:
    folder = foreign_run(home, counted)
    profile = json.loads((folder / "profile.yaml").read_text())
    profile["target"]["launch"]["url"] = f"http://127.0.0.1:{unused_port}"
    (folder / "profile.yaml").write_text(json.dumps(profile))
    output_of("replay", folder / "trace.jsonl", "--yes", "--times", 1, "--wait-ready", "2s", code=TARGET_ERROR)
    assert (home / "harm").exists()


def test_resume_of_somebody_elses_run_gives_no_leave(home: Path, counted: Counted) -> None:
    folder = foreign_run(home, counted)
    text = output_of("run", "--resume", folder, code=USER_ERROR)
    for asked in (f"--authorize: ('{counted.address}',)", "starts touch", "the attack reset_mm_cache"):
        assert asked in text
    assert not (home / "harm").exists()
    assert counted.reached == []


@pytest.mark.slow
def test_load_ends_where_a_tunnel_takes_the_place_of_the_server(
    start: Start, sim: StartSim, victim: EmbeddedServer, tmp_path: Path
) -> None:
    """The payload can kill; there are no attacks, each of which looks for itself."""
    first = sim("--dialect", "vllm", "--era", "0.18")
    load = [{"rate": "10/s", "law": "constant", "for": "5m", "max_in_flight": 64}]
    target = {"on_death": {"wait": {"at_most": "60s"}}}
    run = start("--target", first.url, target=target, load=load, can_kill=True).loaded()
    first.process.kill()
    first.process.wait()
    run.wait(lambda: any(row["to"] in DOWN for row in run.rows(row="state")), "the end of the server")
    before = victim.text.count("POST /v1/chat/completions")
    process = subprocess.Popen(tunnel(tmp_path, first.port, victim))
    try:
        assert run.ends(120) == FAIL, "the first server died"
        assert "the load was ended: " in run.output
        assert f"--authorize 127.0.0.1:{first.port}" in run.output
        assert victim.text.count("POST /v1/chat/completions") - before < 30, "the server was known by then"
    finally:
        process.terminate()
        process.wait()


def test_search_and_hunt_of_somebody_else_go_on_only_with_a_word(home: Path, counted: Counted) -> None:
    hunt = home / "hunts" / "hunt-1"
    hunt.mkdir(parents=True)
    (hunt / "hunt.json").write_text(json.dumps({"schema": 1, "launch": f"touch {home / 'harm'} --port 9"}))
    assert "--launch: touch" in output_of("hunt", "--resume", "--out", hunt.parent, code=USER_ERROR)
    search = home / "search"
    search.mkdir()
    wanted = {"profile": "near.yaml", "target": counted.url, "authorize": [counted.address]}
    (search / "capacity.json").write_text(json.dumps({**search_data(), "wanted": wanted}))
    text = output_of("capacity", "--resume", search, "--budget", "1s", code=USER_ERROR)
    assert f"--authorize: ('{counted.address}',)" in text
    assert not (home / "harm").exists()
    assert counted.reached == []


@pytest.mark.parametrize("command", ["judge", "report", "export --csv", "compare", "replay"])
@pytest.mark.parametrize("link", ["verdict.json.part", "incidents", "report.html.part", "requests-0.jsonl"])
def test_folder_of_somebody_else_is_no_way_to_other_files(command: str, link: str, home: Path) -> None:
    run, outside = write_run(home / "run", seconds=4, death_s=3).path, home / "outside"
    outside.mkdir()
    (outside / "kept").write_text("mine")
    (run / link).unlink(missing_ok=True)
    (run / link).symlink_to(outside if link == "incidents" else outside / "kept")
    more = [run] if command == "compare" else []
    assert "leads out of" in output_of(*command.split(), run, *more, code=USER_ERROR)
    assert [(file.name, file.read_text()) for file in outside.iterdir()] == [("kept", "mine")]


@pytest.mark.parametrize("name", ["bodies", "bodies/0123456789abcdef.json", "profile.yaml"])
def test_trace_of_somebody_else_is_no_way_to_other_files(name: str, home: Path, counted: Counted) -> None:
    folder, outside = foreign_run(home, counted), home / "outside"
    outside.mkdir()
    (outside / "0123456789abcdef.json").write_text("{}")
    if (file := folder / name).is_dir():
        shutil.rmtree(file)
    file.unlink(missing_ok=True)
    file.symlink_to(outside if name == "bodies" else outside / "0123456789abcdef.json")
    words = ("--target", counted.url, "--authorize", counted.address)
    assert "leads out of" in output_of("replay", folder / "trace.jsonl", *words, code=USER_ERROR)
    assert counted.reached == []


def test_incident_of_somebody_else_is_read_alone(home: Path) -> None:
    """Where its run is not beside it, the folder above may be the user's home."""
    (home / "mine").symlink_to("/etc/hostname")
    (incident := home / "downloads" / "001").mkdir(parents=True)
    (incident / "incident.json").write_text("{}")
    assert "no body of a request is stored here" in output_of("replay", incident, "--target", ENGINE, code=USER_ERROR)


@pytest.mark.parametrize("path", ["/x HTTP/1.1\r\nHost: prod", "http://prod/sleep", "@prod/sleep", "sleep", "/a b"])
def test_trace_of_somebody_else_has_plain_paths(path: str, home: Path, counted: Counted) -> None:
    folder = foreign_run(home, counted)
    send = {"event": "send", "id": "r0", "body": stored_chat(folder), "path": path}
    header = (folder / "trace.jsonl").read_text().splitlines()[0]
    (folder / "trace.jsonl").write_text(f"{header}\n{json.dumps(send)}\n")
    words = ("--target", counted.url, "--authorize", counted.address)
    assert "path" in output_of("replay", folder / "trace.jsonl", *words, code=USER_ERROR)
    assert counted.reached == []


@pytest.mark.parametrize("command", ["runs", "trend"])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_list_of_runs_reads_no_pipe_and_no_file_outside(command: str, kind: str, home: Path) -> None:
    outside = write_run(home / "outside", seconds=4, death_s=3).path
    output_of("judge", outside, code=FAIL)
    (folder := home / "runs" / "foreign").mkdir(parents=True)
    (folder / "events.jsonl").write_text("")
    os.mkfifo(folder / "verdict.json") if kind == "pipe" else (folder / "verdict.json").symlink_to(
        outside / "verdict.json"
    )
    assert "engine" not in output_of(command, home / "runs")


@pytest.mark.parametrize("name", ["plan", "facts"])
def test_trace_of_somebody_else_names_no_file_of_another_folder(name: str, home: Path) -> None:
    (home / "outside.json").write_text("{}")
    folder = home / "trace"
    folder.mkdir()
    header = {"event": "trace", "version": 1, "plan": "plan.json", "facts": "facts.json", name: "../outside.json"}
    header["failure"] = {"id": "engine_died", "severity": "engine_death"}
    send = {"event": "send", "id": "r0", "plan": {"phase": 0, "step": 0}}
    (folder / "trace.jsonl").write_text("".join(json.dumps(event) + "\n" for event in (header, send)))
    (folder / "plan.json").write_text("{}")
    text = output_of("replay", folder, "--target", ENGINE, code=USER_ERROR)
    assert name == "facts" or "leads out of" in text


def test_given_pid_is_that_process_and_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerUnderTest.__new__(ServerUnderTest)
    server.target, server._replicas, server.url = TargetSpec("external", ENGINE, None, (), {}), (), ENGINE
    server._given = psutil.Process()
    assert server.pid_of("server") == os.getpid()
    monkeypatch.setattr(psutil.Process, "is_running", lambda self: False)  # another process has the pid by now
    assert server.pid_of("server") is None


@pytest.mark.slow
def test_attacks_stop_where_a_tunnel_joins_the_server(
    start: Start, sim: StartSim, victim: EmbeddedServer, tmp_path: Path
) -> None:
    """By SO_REUSEPORT: the kernel gives it every other connection, and no sign of the server changes."""
    reserved = ReservedPort()
    sim("--dialect", "vllm", "--era", "0.18", "--port", str(reserved.port), "--reserved-port")
    load = [{"rate": "10/s", "law": "constant", "for": "5m", "max_in_flight": 64}]
    run = start("--target", f"http://127.0.0.1:{reserved.port}", load=load, attacks=RESETS).loaded()
    run.wait(lambda: run.rows(row="attack", what="end", ok=True), "an attack")
    with listening(tmp_path, "python3", "forward.py", port=reserved.port, FORWARD_TO=victim.address):
        skipped = run.wait(lambda: run.rows(row="attack", what="skipped"), "a refusal")
        assert f"add --authorize 127.0.0.1:{reserved.port}" in skipped[0]["text"]
        before = resets(victim)
        run.wait(lambda: len(run.rows(row="attack", what="skipped")) > 10, "more refusals")
        # An attack that was checked just before the tunnel joined may still reach it.
        assert resets(victim) == before <= 1
    run.signal(signal.SIGINT)
    run.ends()
    reserved.release()


@pytest.mark.parametrize("tunnel_url", [ENGINE, "http://127.0.0.1:8"], ids=["admin URL", "load"])
def test_load_loses_its_leave_where_any_server_that_came_back_is_a_tunnel(tunnel_url: str) -> None:
    """Of two servers that come back at once one is checked last; the load goes to another one than the attacks."""
    server = ServerUnderTest.__new__(ServerUnderTest)
    server.target, server._replicas, server.url = (
        TargetSpec("external", ENGINE, ENGINE, (), {}),
        (),
        "http://127.0.0.1:8",
    )
    server._monitor, server._record, server.no_leave = None, cast("Any", SimpleNamespace(event=lambda row: None)), None
    refusals = iter(["It forwards.", None])
    server.leave = cast("Any", SimpleNamespace(refusal=lambda url: next(refusals) if url == tunnel_url else None))
    back = cast("Any", {"replica": "server", "from": "dead", "to": "healthy"})
    server._record_changes([back, back])
    assert server.no_leave == "It forwards."


@pytest.mark.slow
@pytest.mark.parametrize("command", ["minimise trace.jsonl", "bisect trace.jsonl --flags", "hunt --budget 5s"])
def test_search_on_a_launched_tunnel_needs_leave(
    command: str, home: Path, victim: EmbeddedServer, unused_port: int
) -> None:
    inner = shlex.join(tunnel(home, unused_port, victim))
    launch = shlex.join(["sh", "-c", f"exec {inner}", "sh", "--port", str(unused_port)])
    text = output_of(*command.split(), "--launch", launch, "--budget", "20s", code=USER_ERROR)
    assert f"add --authorize 127.0.0.1:{unused_port}" in text
    assert victim.text.count("POST /v1/chat/completions") < 20, "only what identifies a server"
