"""`loadchaos watch --service`: parts of a week, their folder, and what is told."""

import http.server
import json
import os
import random
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from loadchaos.analysis.judge import Judge
from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.soak.child import FinishedRun, SoakChild
from loadchaos.campaigns.watch.service import ServiceOrder, WatchService, delete_old, serve_health, size_of
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.core.ledger.rows import AnyRow
from loadchaos.core.ledger.writer import Writer
from loadchaos.report.export.notify import IncidentNotifier
from tests.embedded_server import EmbeddedServer
from tests.invoking import output_of
from tests.waiting import until
from tests.warm_command import ForkedCommand, outside_ci

HOUR_S, KEEP_BYTES = 3600.0, 2_000_000


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[str]]]:
    """A URL, and the texts that it has got."""
    texts: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            texts.append(str(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", texts
        server.shutdown()


def state(at_ns: int, before: str, after: str) -> AnyRow:
    return {
        "row": "state", "at_ns": at_ns, "replica": "server", "engine": None, "from": before, "to": after,  # type: ignore[typeddict-item]
        "signs": ["connection refused (3 probes)"], "since_ns": at_ns, "noticed_after_s": 0.1,
    }  # fmt: skip


class VirtualParts(SoakChild):
    """Parts of an hour in virtual time. Each writes the ledger of its deaths at its start, and tells them as a follower
    does. `gone` are parts at whose begin the server does not answer for the first minutes.
    """

    def __init__(self, home: Path, deaths: Sequence[Sequence[float]], gone: Collection[int], url: str) -> None:
        super().__init__(home, "watch")
        self.now_s, self.number = 0.0, -1
        self._home_, self._deaths, self._gone, self._url = home, deaths, gone, url
        self._until_s = -1.0
        self._writer: Writer | None = None
        self._late: list[AnyRow] = []

    @property
    def part(self) -> Path:
        return self._home_ / f"watch-{self.number:06d}"

    def start(self, arguments: Sequence[str], *, quiet: bool) -> int:
        assert "--wait-ready" in arguments and quiet
        self.number += 1
        self._until_s = self.now_s + HOUR_S
        self.part.mkdir()
        (self.part / "filler").write_bytes(b"x" * 50_000)
        self._writer = Writer(self.part / "events.jsonl", "run")
        at = int(self.now_s * 1e9)
        rows: list[AnyRow] = [{"row": "run", "at_ns": at, "what": "load_begin"}]
        for death_s in self._deaths[self.number]:
            down = at + int(death_s * 1e9)
            rows += [state(down, "healthy", "dead"), state(down + 30 * 10**9, "dead", "healthy")]
        self._late = rows
        if self.number not in self._gone:
            self.write()
        return 4711

    def write(self) -> None:
        assert self._writer is not None
        for row in self._late:
            self._writer.write(row)
        self._late = []

    def alive(self) -> bool:
        if self._until_s < 0:
            return False
        if self._late and self._until_s - self.now_s < HOUR_S - 300:
            self.write()  # the server is back
        if self.now_s < self._until_s:
            return True
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._tell()
        return False

    def _tell(self) -> None:
        judge, reader = Judge(), Reader(RunFolder(self.part))
        notifier = IncidentNotifier([self._url], self.part, print)
        for row in reader.new(final=True):
            judge.fold(row)
        for _ in range(2):  # a follower looks again and again
            judge.findings()
            for incident in judge.incidents:
                notifier.feed(incident.n, incident.id, incident.record)
        notifier.close()

    def find(self, pid: int | None, started: str, name: str, known: Collection[str]) -> FinishedRun | None:
        return FinishedRun(self.part.name, pid, None, None)

    def exit_code(self) -> int | None:
        return None

    def judge(self, folder: str) -> None:
        """Leave the parts as they are: none of them was killed."""


@pytest.mark.slow
def test_service_of_a_week_tells_each_death_once_in_bounded_memory_and_disk(
    tmp_path: Path, webhook: tuple[str, list[str]]
) -> None:
    url, told = webhook
    rng, parts = random.Random(7), 7 * 24
    gone = set(rng.sample(range(1, parts), 10))
    deaths: list[list[float]] = [[] for _ in range(parts + 1)]
    for n, part in enumerate(rng.choices([p for p in range(parts) if p not in gone], k=40)):
        deaths[part].append(60.0 + 80.0 * (n % 40))
    announced: list[str] = []
    child = VirtualParts(tmp_path, deaths, gone, url)
    campaign = Campaign(tmp_path, lambda _: None)
    order = ServiceOrder((), tmp_path, HOUR_S, KEEP_BYTES)
    service = WatchService(order, campaign, child, announced.append, lambda: child.now_s)
    process = psutil.Process()
    used: list[int] = []
    while service.parts <= parts:
        service.poll()
        child.now_s += 60.0
        if service.parts - 1 > len(used):
            used.append(process.memory_info().rss)
            assert size_of(tmp_path) < KEEP_BYTES
    campaign.close()
    incidents = [text for text in told if "INCIDENT" in text]
    assert len(incidents) == sum(map(len, deaths)) == 40 and len(announced) == 10
    assert max(used[-20:]) - max(used[10:30]) < 8 << 20, used
    kept = sorted(tmp_path.glob("watch-*"))
    assert kept[-1].name == f"watch-{parts:06d}" and len(kept) < 40


def test_service_deletes_healthy_parts_before_those_with_incidents(tmp_path: Path) -> None:
    for n in range(6):
        part = tmp_path / f"watch-{n}"
        (part / "incidents").mkdir(parents=True)
        (part / "events.jsonl").write_bytes(b"x" * 1000)
        if n == 0:
            (part / "incidents" / "001-death").mkdir()
        if n == 1:
            (part / "KEEP").touch()
    delete_old(tmp_path, 4800)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["watch-0", "watch-1", "watch-5"]


def test_service_health_is_503_without_a_part(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, print)
    child = VirtualParts(tmp_path, [[]] * 9, (), "")
    service = WatchService(ServiceOrder((), tmp_path, HOUR_S, KEEP_BYTES), campaign, child, print, lambda: child.now_s)
    server = serve_health(service, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.server_port}/healthz"
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(url)
    service.poll()
    service.poll()
    with urllib.request.urlopen(url) as answer:
        assert json.load(answer)["state"] == "watching"
    server.shutdown()
    server.server_close()
    campaign.close()


@pytest.mark.slow
def test_service_watches_a_real_server_through_a_death_and_judges_a_part_that_was_killed(
    tmp_path: Path, webhook: tuple[str, list[str]], unused_port: int
) -> None:
    url, told = webhook
    out, log = tmp_path / "out", tmp_path / "server.log"
    out.touch()
    server = EmbeddedServer(log=log)
    argv = ("watch", "--target", server.url, "--server-log", str(log), "--service", "--part", "10m", "--notify", url)
    healthz = f"127.0.0.1:{unused_port}"
    env = outside_ci()
    service = ForkedCommand(
        *argv, "--healthz", healthz, "--exporter-port", "0", cwd=tmp_path, env=env, output=(str(out), str(out))
    )
    try:

        def page(path: str) -> bytes:
            try:
                with urllib.request.urlopen(f"http://{healthz}/{path}") as answer:
                    return bytes(answer.read())
            except OSError:  # not yet
                return b""

        until(lambda: b'"watching"' in page("healthz"), "the first part")
        until(lambda: b"loadchaos_" in page("metrics"), "its metrics")
        server.process.kill()
        until(lambda: any("INCIDENT" in text for text in told), "the notification")
        time.sleep(1)
        state = json.loads((tmp_path / "runs" / "service.json").read_bytes())
        os.kill(state["pid"], signal.SIGKILL)
        until(lambda: b"watch-" in out.read_bytes(), "the verdict of the part that was killed", 60)
    finally:
        service.send_signal(signal.SIGTERM)
        assert service.wait(100) == 0, out.read_text()
        server.stop()
    part, *_ = sorted((tmp_path / "runs").glob("watch-*"))
    assert json.loads((part / "verdict.json").read_bytes())["verdict"] == "fail"
    assert len([text for text in told if "INCIDENT" in text]) <= 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--service", "--for", "1h"), "has no end"),
        (("--service", "--keep", "many"), "--keep"),
        (("--service", "--healthz", "x"), "--healthz x: HOST:PORT"),
    ],
)
def test_service_refuses_what_cannot_be(words: tuple[str, ...], message: str) -> None:
    assert message in output_of("watch", "--target", "http://127.0.0.1:9", *words, code=2)
