import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from loadchaos.run.ports import free_port
from tests.campaigns.traces import embedded_command
from tests.waiting import until
from tests.warm_command import outside_ci

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
PROFILE = """\
name: small
target: {{launch: {{command: {launch}, url: "http://127.0.0.1:{port}"}}}}
traffic:
  - {{name: text, payload: {{text: {{tokens: 16..32}}}}, output: {{exact: 32}}}}
load:
  - {{rate: 4/s, law: poisson, for: 5m}}
slo: {{ttft: 2s}}
schedule: {{cron: "0 2 * * *"}}
"""


@dataclass
class Campaign:
    """A command in a folder of its own, with the server that it starts."""

    home: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Write a profile, and requests that a server answers for minutes."""
        launch = embedded_command(port=self.port, quiet=True)
        (self.home / "small.yaml").write_text(PROFILE.format(launch=json.dumps(launch), port=self.port))
        body = {
            "messages": [{"role": "user", "content": "time"}],
            "max_tokens": 3000,
            "ignore_eos": True,
            "stream": True,
        }
        lines = [
            json.dumps({"custom_id": f"r{n}", "method": "POST", "url": "/v1/chat/completions", "body": body})
            for n in range(300)
        ]
        (self.home / "requests.jsonl").write_text("\n".join(lines) + "\n")
        self.launch = shlex.join(launch)

    def start(self, words: list[str]) -> None:
        self.begun_s = time.time()
        with (self.home / "output").open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "loadchaos", *words],
                cwd=self.home, env=outside_ci(), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # tests under nohup, too
            )  # fmt: skip

    @property
    def output(self) -> str:
        return (self.home / "output").read_text()

    def tries(self) -> bool:
        """True when this process has begun a try: a request of its load, or a script of the minimiser."""
        assert self.process is not None
        assert self.process.poll() is None, self.output
        try:
            begun = [f for f in self.home.glob("runs/**/*") if f.stat().st_mtime > self.begun_s]
            requests = any(b'"row":"begin"' in f.read_bytes() for f in begun if f.match("requests-*.jsonl"))
        except FileNotFoundError:  # a folder of the try before was just removed
            return False
        return requests or any(f.match("tries/*/repro.py") for f in begun)

    def ended_by(self, number: signal.Signals) -> int:
        """Send a signal at the first try; returns the exit code."""
        assert self.process is not None
        until(self.tries, "the first try", 120)
        self.process.send_signal(number)
        return self.process.wait(60)

    def left(self) -> list[list[str]]:
        found = (p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"]))
        return [words for words in found if str(self.port) in words]


@pytest.fixture
def campaign(tmp_path: Path) -> Iterator[Campaign]:
    found = Campaign(tmp_path)
    found.prepare()
    yield found
    if found.process is not None and found.process.poll() is None:
        found.process.kill()
        found.process.wait()


REPLAYED = ["requests.jsonl", "--any-death", "--launch"]
COMMANDS = {
    "replay": (["replay", *REPLAYED], "replay.json"),
    "minimise": (["minimise", *REPLAYED], "minimise.json"),
    "bisect": (["bisect", "--flags", *REPLAYED], "bisect.json"),
    "hunt": (["hunt", "--launch"], "hunt.json"),
    "capacity": (["capacity", "small.yaml", "--exporter-port", "0", "--launch"], "capacity.json"),
    "suite": (["suite", "--only", "smoke", "--launch"], "suite.json"),
    "soak": (["soak", "small.yaml", "--once"], "soak.json"),
}
NOT_SLOW = [("replay", signal.SIGTERM)]
CASES = [
    pytest.param(name, number, marks=() if (name, number) in NOT_SLOW else pytest.mark.slow)
    for name in COMMANDS
    for number in CODES
]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "number"), CASES)
def test_campaign_ended_by_a_signal_at_its_first_try_can_be_continued(
    campaign: Campaign, name: str, number: signal.Signals
) -> None:
    words, journal = COMMANDS[name]
    campaign.start([*words, *([campaign.launch] if words[-1] == "--launch" else [])])
    assert campaign.ended_by(number) == CODES[number], campaign.output
    assert "Traceback" not in campaign.output
    until(lambda: not campaign.left(), "the end of the server", 20)
    json.loads(next(campaign.home.glob(f"runs/**/{journal}")).read_bytes())
    if name == "soak":  # it continues by itself
        return
    found = re.search(r"^interrupted; continue with: loadchaos (.+)$", campaign.output, re.MULTILINE)
    assert found is not None, campaign.output
    campaign.start(shlex.split(found[1]))
    assert campaign.ended_by(signal.SIGTERM) == 143, campaign.output
