"""Every mistake of a user has its own message before anything is sent.

Exit code 2, or 4 if the target is the problem. Each row of a table is one command.
"""

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.http_server import Asked, answering
from tests.raw_sockets import ConnectionServer
from tests.warm_command import run_command

GOOD = """\
name: small
about: a profile to break
target: {embedded: {dialect: vllm, era: "0.18"}}
traffic:
  - {name: text, payload: {text: {tokens: 16..32}}, output: {max: 4}}
load:
  - {users: 2, requests: 4}
"""
BOMB = "x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
"""Each line is nine times the one before it: the sixth has more values than a profile may have."""


def profile(tmp_path: Path, change: Callable[[str], str] = lambda t: t) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(change(GOOD))
    return str(path)


def replaced(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return change


PROFILES = [
    ("not YAML", replaced("name: small", "name: [small"), r"small\.yaml:\d+:\d+"),
    ("an unknown key", replaced("users: 2", "user: 2"), r"small\.yaml:7:\d+.*user.*did you mean.*users"),
    ("aliases of aliases", lambda t: t + BOMB, r"small\.yaml:13:\d+: aliases make more than 100000 values"),
    ("an attack the dialect does not have", lambda t: t + "attacks: [{admin: reset_mm_cash, every: 2s}]\n",
     r"reset_mm_cash.*did you mean.*reset_mm_cache"),
    ("an expectation that cannot be read", lambda t: t + 'expect: ["engine_deaths ==="]\n', r"small\.yaml:8:\d+"),
    ("a defect nobody knows", replaced('era: "0.18"', 'era: "0.18", defects: [encoder_free]'), r"encoder_free"),
    ("a tokenizer that is no folder", replaced('era: "0.18"}', 'era: "0.18"}, tokenizer: Qwen/Qwen3-8B'),
     r"tokenizer Qwen/Qwen3-8B: there is no such folder"),
    ("an empty file", lambda _: "", r"small\.yaml"),
]  # fmt: skip
"""One of each place that finds mistakes; all that a profile can have: tests/profile/test_profile.py."""


@pytest.mark.parametrize(("what", "change", "says"), PROFILES, ids=[row[0] for row in PROFILES])
def test_run_refuses_a_profile_with(what: str, change: Callable[[str], str], says: str, tmp_path: Path) -> None:
    done = run_command("run", profile(tmp_path, change), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert re.search(says, done.stderr, re.DOTALL | re.IGNORECASE), done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists(), "nothing may begin"


def test_check_lists_every_mistake(tmp_path: Path) -> None:
    done = run_command(
        "check", profile(tmp_path, lambda t: t.replace("users: 2", "user: 2") + "abot: x\n"), cwd=tmp_path
    )
    assert done.returncode == 2
    assert len([line for line in done.stderr.splitlines() if line.startswith(str(tmp_path))]) >= 2


OPTIONS = [
    ("no such profile", ["run", "mtp_m"], 2, r"mtp_m.*did you mean mtp_mm"),
    ("a URL in the place of the profile", ["run", "http://127.0.0.1:9"], 2, r"smoke --target http://127\.0\.0\.1:9"),
    ("two servers", ["probe", "http://127.0.0.1:9", "-H", "http://127.0.0.1:8"], 2, r"two servers: .*:9 and --target .*:8"),
    ("two --target", ["capacity", "smoke", "-H", "http://127.0.0.1:9", "-H", "http://127.0.0.1:8"], 2,
     r"two servers: --target .*:9 and --target .*:8"),
    ("a run folder in the place of the profile", ["run", "FOLDER"], 2,
     r"a YAML file: .*profile.yaml is one; --resume .*/r "),
    ("the path of an endpoint", ["probe", "http://127.0.0.1:9/v1/chat/completions"], 4,
     r"note: the target is http://127.0.0.1:9: /v1/chat/completions is an endpoint.*http://127.0.0.1:9: connection refused"),
    ("probe by --target", ["probe", "--target", "http://127.0.0.1:9"], 4, r"127\.0\.0\.1:9: connection refused"),
    ("suite by --target", ["suite", "--target", "http://127.0.0.1:9"], 4, r"127\.0\.0\.1:9: connection refused"),
    ("an empty target", ["run", "PROFILE", "--target", ""], 2, r"--target is empty"),
    ("a target that is no URL", ["run", "PROFILE", "--target", "ftp://x"], 2, r"ftp://x"),
    ("a port that is none", ["run", "PROFILE", "--target", "http://127.0.0.1:99999"], 2, r"99999|port"),
    ("an address that is none", ["run", "PROFILE", "--target", "http://[::1:8000"], 2, r"Invalid IPv6"),
    ("an override that leads nowhere", ["run", "PROFILE", "--set", "load.7.users=3"], 2, r"load\.7\.users|load\.7"),
    ("an override without a value", ["run", "PROFILE", "--set", "users"], 2, r"--set"),
    ("target and embedded at once", ["run", "PROFILE", "--target", "http://127.0.0.1:1", "--embedded"], 2, r"exclude"),
    ("a key variable that is not set", ["run", "PROFILE", "--api-key-env", "NO_SUCH_KEY"], 2, r"NO_SUCH_KEY is not set"),
    ("a tokenizer that is no folder", ["run", "PROFILE", "--tokenizer", "Qwen/Qwen3-8B"], 2,
     r"tokenizer Qwen/Qwen3-8B: there is no such folder"),
    ("a header without its value", ["run", "PROFILE", "--header", "X-Team"], 2, r"NAME=env:VAR"),
    ("a duration without sense", ["run", "PROFILE", "--duration", "soon"], 2, r"--duration"),
    ("missing authorisation", ["run", "mtp_mm", "--target", "http://127.0.0.1:9"], 2, r"--authorize 127\.0\.0\.1:9"),
    ("authorisation for another host", ["run", "mtp_mm", "--target", "http://127.0.0.1:9", "--authorize", "h:9"], 2,
     r"authorized so far: h:9"),
    ("a log source that cannot be read", ["run", "PROFILE", "--server-log", "dokker:x:y:"], 2, r"dokker|log"),
    ("a log that is not there", ["run", "PROFILE", "--server-log", "/no/such/server.log"], 2, r"no such file"),
    ("a log that is a folder", ["run", "PROFILE", "--server-log", "/tmp"], 2, r"is a folder"),
    ("an authorisation that names no address", ["run", "mtp_mm", "--target", "http://127.0.0.1:9", "--authorize", "it"], 2,
     r"HOST:PORT was expected"),
    ("no such run", ["judge", "nothing"], 2, r"not a run folder"),
    ("a defect nobody knows", ["sim", "--defect", "encoder"], 2, r"encoder"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "args", "code", "says"), OPTIONS, ids=[row[0] for row in OPTIONS])
def test_command_refuses_options_with(what: str, args: list[str], code: int, says: str, tmp_path: Path) -> None:
    run_folder = tmp_path / "r"
    run_folder.mkdir()
    for name in ("profile.yaml", "events.jsonl"):
        (run_folder / name).touch()
    names = {"PROFILE": profile(tmp_path), "FOLDER": str(run_folder)}
    done = run_command(*[names.get(a, a) for a in args], cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert re.search(says, done.stderr, re.DOTALL), done.stderr
    assert "Traceback" not in done.stderr


def test_run_refuses_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        done = run_command("run", profile(tmp_path), "--exporter-port", str(port), cwd=tmp_path)
    assert done.returncode == 2
    assert f"--exporter-port {port} is in use" in done.stderr


def test_run_refuses_a_run_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = run_command("run", profile(tmp_path), "--out", "file/runs", cwd=tmp_path)
    assert done.returncode == 2
    assert "run folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_run_with_embedded_simulates_a_server_for_any_profile(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        "name: own\ntraffic: [{name: text, payload: {text: {tokens: 16}}}]\nload: [{users: 1, requests: 1}]\n"
    )
    refused = run_command("run", "own.yaml", cwd=tmp_path)
    assert "own needs a server: give --target URL, or --embedded for a simulated one" in refused.stderr
    taken = run_command("run", "own.yaml", "--embedded", "--dry-run", cwd=tmp_path)
    assert taken.returncode == 0, taken.stderr
    assert "embedded server" in taken.stdout


def test_run_under_ci_needs_embedded(tmp_path: Path) -> None:
    done = run_command("run", profile(tmp_path), cwd=tmp_path, CI="true")
    assert done.returncode == 2
    assert "--embedded" in done.stderr


# --- the target is the trouble ---------------------------------------------------------------------------------------


def http(status: str, body: str, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return (head + body).encode()


def test_run_reports_a_target_that_refuses_the_connection(tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    done = run_command("run", profile(tmp_path), "--target", f"127.0.0.1:{port}", "--wait-ready", "1s", cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.endswith("connection refused; check that it runs and that this is its port"), line
    assert (done.stdout, list(tmp_path.glob("runs/*"))) == ("", []), "a run that found no server leaves no verdict"


def test_run_and_probe_tell_that_a_port_speaks_plain_http(tmp_path: Path) -> None:
    asked: list[Asked] = []

    def reply(request: Asked) -> tuple[int, object]:
        asked.append(request)
        return 404, {"detail": "Not Found"}

    with answering(reply) as url:
        target = url.replace("http:", "https:")
        for words in (["run", profile(tmp_path), "--target", target], ["probe", target]):
            done = run_command(*words, "--header", "X-Key=secret", cwd=tmp_path)
            assert done.returncode == 4, done.stderr
            assert done.stderr.splitlines()[-1] == f"loadchaos: {target}: this port speaks plain http; give {url}"
    assert asked
    assert not any("secret" in str(one.headers) for one in asked), "a key is not sent in the clear"


TARGETS = [
    ("does not speak HTTP", b"SSH-2.0-OpenSSH_9.2\r\n", r"does not use HTTP"),
    ("answers 401", http("401 Unauthorized", '{"error":"Unauthorized"}'), r"401.*--api-key-env OPENAI_API_KEY"),
    (
        "has another path",
        http("404 Not Found", '{"detail":"Not Found"}'),
        r"answered 404 '{\"detail\":\"Not Found\"}'; it has",
    ),
    ("is a web page", http("200 OK", "<html>hello</html>", "text/html"), r"no OpenAI-compatible API"),
    ("serves no model", http("200 OK", '{"object":"list","data":[]}'), r"--model"),
]


@pytest.mark.parametrize(("what", "reply", "says"), TARGETS, ids=[row[0] for row in TARGETS])
def test_run_reports_a_target_that(what: str, reply: bytes, says: str, tmp_path: Path) -> None:
    def answer(peer: socket.socket) -> None:
        peer.recv(65536)
        peer.sendall(reply)

    with ConnectionServer(answer) as server:
        done = run_command("run", profile(tmp_path), "--target", server.url, "--wait-ready", "1s", cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    assert re.search(says, done.stderr, re.DOTALL), done.stderr
    assert "Traceback" not in done.stderr


EMBEDDED = [
    ("does not know the model", ["PROFILE", "--embedded", "--model", "gpt-9"], r"does not serve.*gpt-9.*it has"),
    ("takes no images", ["mtp_mm", "--embedded", "--set", "target.embedded.flags.images=false"],
     r"traffic images, step_ends\).*takes none"),
    ("lacks the development endpoints", ["mtp_mm", "--embedded", "--set", "target.embedded.flags.dev_mode=false"],
     r"VLLM_SERVER_DEV_MODE=1"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "args", "says"), EMBEDDED, ids=[row[0] for row in EMBEDDED])
def test_run_reports_a_server_that(what: str, args: list[str], says: str, tmp_path: Path) -> None:
    done = run_command("run", *[profile(tmp_path) if a == "PROFILE" else a for a in args], cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    assert re.search(says, done.stderr, re.DOTALL), done.stderr
    verdicts = list(tmp_path.glob("runs/*/verdict.json"))
    assert len(verdicts) == 1, "what was found is kept"
