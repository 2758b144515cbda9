"""Nothing that loadchaos writes, prints, serves or sends has the API key, in whatever writing and wherever a server
repeats it.
"""

import json
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from loadchaos.core.redact import REDACTED
from loadchaos.run.ports import free_port
from tests import echo_server
from tests.echo_server import KEY, OTHER, WRITINGS
from tests.http_server import Asked, answering, serving
from tests.waiting import until
from tests.warm_command import ForkedCommand, outside_ci, run_command

pytestmark = pytest.mark.timeout(600)
PROFILE = {
    "name": "small",
    "about": "short answers",
    "traffic": [{"name": "text", "payload": {"text": {"tokens": "16..100"}}, "output": {"max": 8}}],
    "load": [{"rate": "20/s", "law": "constant", "for": "4s", "max_in_flight": 32}],
    "limits": {"first_byte": "10s", "between_bytes": "5s", "total": "20s"},
    "slo": {"ttft": "2s"},
    "schedule": {"cron": "0 2 * * *", "timezone": "Europe/Berlin", "overlap": "queue"},
}
HALVES = {f"begin of {way}": form[: len(form) * 2 // 3] for way, form in WRITINGS.items() if "base64" not in way}
SECRETS = {**WRITINGS, **HALVES, "a secret of another": OTHER}


@dataclass
class Home:
    """A folder that commands run in, the server that they ask, and what they print, serve and send."""

    path: Path
    url: str
    log: Path
    shown: dict[str, str] = field(default_factory=dict)

    def command(self, *words: object, codes: tuple[int, ...] = (0, 1, 3)) -> None:
        done = run_command(*words, cwd=self.path, limit_s=500, THE_KEY=KEY)
        assert done.returncode in codes, done.stderr + done.stdout
        self.shown[f"terminal of {words[0]} {len(self.shown)}"] = done.stdout + done.stderr

    def asks(self, *words: object, **more: tuple[int, ...]) -> None:
        self.command(*words, "--target", self.url, "--api-key-env", "THE_KEY", **more)

    def starts(self, *words: object) -> ForkedCommand:
        out = self.path / f"output-{len(list(self.path.glob('output-*')))}"
        out.touch()
        env = {**outside_ci(), "THE_KEY": KEY}
        return ForkedCommand(*map(str, words), cwd=self.path, env=env, output=(str(out), str(out)))

    def folder(self, pattern: str) -> Path:
        return next(iter(sorted(self.path.glob(pattern))))

    def leaks(self) -> list[str]:
        texts = {path.relative_to(self.path): path.read_bytes() for path in self.path.rglob("*") if path.is_file()}
        texts.pop(self.log.relative_to(self.path), None)
        found = {**{str(name): text for name, text in texts.items()}, **{k: v.encode() for k, v in self.shown.items()}}
        assert any(REDACTED.encode() in text for text in found.values()), "nothing was hidden: the server told nothing"
        return [f"{name}: {way}" for name, text in found.items() for way, s in SECRETS.items() if s.encode() in text]


def of_a_run(home: Home) -> None:
    home.asks("run", "small.yaml", "--server-log", home.log, "--exporter-port", 0)
    run = home.folder("runs/*")
    assert {"http_error", "stream_error", "protocol_error"} <= set(
        json.loads((run / "verdict.json").read_text())["outcomes"]
    )
    home.command("export", run, "--openmetrics", "--csv", "--parquet", "--vllm-bench")
    home.command("report", run)
    home.command("judge", "-v", run)
    home.command("compare", run, run, "--html", "compare.html")
    home.command("trend", "runs", codes=(0, 2))
    home.command("runs", "runs", "--json")
    home.command("classify", home.log, "--json")


def of_the_metrics_page(home: Home) -> None:
    port = free_port()
    words = ("run", "small.yaml", "--target", home.url, "--api-key-env", "THE_KEY", "--exporter-port", port)
    run = home.starts(*words, "--server-log", home.log)

    def page() -> str:
        try:
            text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
        except httpx.HTTPError:
            text = ""
        return text if '"service_tier"' in text else ""

    home.shown["metrics page"] = until(page, "a page of metrics with labels", 60)
    run.wait(60)


def of_a_probe(home: Home) -> None:
    home.command("probe", home.url, "--api-key-env", "THE_KEY", codes=(0, 4))
    home.command("probe", home.url, "--api-key-env", "THE_KEY", "--json", codes=(0, 4))


def of_a_capacity_search(home: Home) -> None:
    home.asks("capacity", "small.yaml", "--budget", "40s", "--start", 5, "--exporter-port", 0)


def of_a_suite(home: Home) -> None:
    home.asks("suite", "--only", "smoke", "--duration", "3s", codes=(0, 1, 3, 4))


def of_a_schedule_with_its_messages(home: Home) -> None:
    def reply(asked: Asked) -> tuple[int, object]:
        home.shown[f"message {len(home.shown)}"] = asked.content.decode()
        return 200, b""

    with answering(reply) as hook:
        home.asks("soak", "small.yaml", "--once", "--server-log", home.log, "--exporter-port", 0, "--notify", hook)
    assert any(name.startswith("message") for name in home.shown)


def of_the_web_ui(home: Home) -> None:
    words = ("run", "small.yaml", "--web", "--web-port", 0, "--no-live", "--exporter-port", 0, "--server-log", home.log)
    session = home.starts(*words, "--target", home.url, "--api-key-env", "THE_KEY")
    output = home.path / "output-0"
    page, _, token = until(lambda: re.search(r"web UI: (http://\S+)", output.read_text()), "its URL", 60)[1].partition(
        "?"
    )
    with httpx.Client(trust_env=False, timeout=20) as http:
        http.get(f"{page}?{token}")
        started = http.post(f"{page}swarm?{token}", data={"user_count": "4", "spawn_rate": "4", "host": home.url})
        assert started.json()["success"], started.text
        until(lambda: next(home.path.glob("runs/*/verdict.json"), None), "the verdict", 90)
        for path in ("", "stats/requests", "exceptions", "tasks", "logs", "stats/report", "stats/failures/csv"):
            home.shown[f"web UI /{path}"] = http.get(f"{page}{path}?{token}").text
    session.send_signal(signal.SIGINT)
    session.wait(60)


def of_a_recording(home: Home) -> None:
    words = ("record", "--upstream", home.url, "--listen", "127.0.0.1:0", "--out", "recorded", "--bodies")
    proxy = home.starts(*words)
    output = home.path / "output-0"
    at = until(lambda: re.search(r"127\.0\.0\.1:\d+", output.read_text()), "its address", 60)[0]
    key = {"Authorization": f"Bearer {KEY}", "X-Request-Id": KEY}
    with httpx.Client(trust_env=False, headers=key, timeout=20) as http:
        for n in range(40):
            said = [{"role": "user", "content": f"{n}: {list(WRITINGS.values())[n % len(WRITINGS)]}"}]
            body = {"model": "m", "messages": said, "stream": n % 2 == 0, "user": KEY}
            http.post(f"http://{at}/v1/chat/completions", json=body)
    proxy.send_signal(signal.SIGINT)
    proxy.wait(60)
    home.command("replay", "recorded", "--export", "exported", codes=(0, 2))


def _deadly_run(home: Home) -> tuple[Path, list[object]]:
    """A run of a server that dies, and the options of commands that start it again."""
    port = free_port()
    launch = shlex.join([sys.executable, echo_server.__file__, "--port", str(port), "--deadly", "--a", "1"])
    known = ["--api-key-env", "THE_KEY"]
    home.command(
        "run", "small.yaml", "--launch", launch, "--target", f"http://127.0.0.1:{port}", "--exporter-port", 0, *known
    )
    assert json.loads((home.folder("runs/*") / "verdict.json").read_text())["failures"]
    return home.folder("runs/*"), [*known, "--authorize", f"127.0.0.1:{port}"]


def of_a_replay(home: Home) -> None:
    run, options = _deadly_run(home)
    home.command("replay", run, "--out", "again", "--times", 1, *options)
    home.command("replay", run, "--export", "exported")


def of_a_minimisation(home: Home) -> None:
    run, options = _deadly_run(home)
    home.command("minimise", run, "--out", "small", "--budget", "6m", *options)
    assert list(home.path.glob("small/*/repro/repro.py"))
    assert list(home.path.glob("small/*/repro/README.md"))


def of_a_bisection(home: Home) -> None:
    run, options = _deadly_run(home)
    home.command("bisect", run, "--flags", "--out", "parts", "--budget", "30s", *options)


def of_a_hunt(home: Home) -> None:
    port = free_port()
    launch = shlex.join([sys.executable, echo_server.__file__, "--port", str(port), "--deadly"])
    options = ["--api-key-env", "THE_KEY", "--authorize", f"127.0.0.1:{port}"]
    home.command("hunt", "--launch", launch, "--budget", "20s", *options)


Place = Callable[[Home], None]
PLACES: tuple[Place, ...] = (
    of_a_run, of_a_probe, of_a_recording,
)  # fmt: skip
SLOW_PLACES: tuple[Place, ...] = (
    of_a_schedule_with_its_messages, of_the_web_ui, of_a_capacity_search, of_a_suite, of_a_replay, of_a_minimisation,
    of_a_bisection, of_a_hunt, of_the_metrics_page,
)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    (tmp_path / "small.yaml").write_text(json.dumps(PROFILE))
    log = tmp_path / "followed.log"
    with ExitStack() as stack:
        file = stack.enter_context(log.open("a", buffering=1))
        yield Home(tmp_path, stack.enter_context(serving(echo_server.handler_of(file.write, deadly=False))), log)


@pytest.mark.parametrize("place", PLACES + tuple(pytest.param(p, marks=pytest.mark.slow) for p in SLOW_PLACES))
def test_key_is_in_no_text(place: Place, home: Home) -> None:
    place(home)
    assert home.leaks() == []
