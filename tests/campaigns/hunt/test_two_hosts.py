"""A hunt on two hosts: real commands in two network namespaces with addresses, host names and clocks of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadchaos.core.exit_codes import FAIL, PASS, UNKNOWN

pytestmark = pytest.mark.slow
_LOADCHAOS = (sys.executable, "-m", "loadchaos")
_PORT = 8000  # each host has all ports for itself
_MASTER = "10.77.0.1"


def _ip(*argv: str) -> None:
    subprocess.run([shutil.which("ip") or "ip", *argv], check=True, capture_output=True, text=True)


@dataclass
class Host:
    """A network namespace with one end of a cable."""

    name: str
    device: str
    folder: Path

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """Start a command of loadchaos on this host; its output goes to `output`."""
        hours = "3600" if self.name.endswith("b") else "0"
        inside = ("ip", "netns", "exec", self.name, "unshare", "-u", "-T", "--monotonic", hours)
        named = ("sh", "-c", f'hostname {self.name}; exec "$@"', "sh")
        self.folder.mkdir(exist_ok=True)
        environment = {**os.environ, "HOME": str(self.folder), "PYTHONPATH": str(Path(__file__).parents[3])}
        with (self.folder / "output").open("w") as output:
            return subprocess.Popen(
                [*inside, *named, *_LOADCHAOS, *argv], cwd=self.folder, env=environment, text=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def wait_for(self, text: str, limit_s: float = 60.0) -> None:
        """Wait until the output has a text."""
        until_s = time.monotonic() + limit_s
        while text not in self.output:
            assert time.monotonic() < until_s, f"no {text!r} within {limit_s:g} s:\n{self.output}"
            time.sleep(0.1)

    def cable(self, state: str) -> None:
        """Pull the cable (`down`) or put it back (`up`)."""
        _ip("-n", self.name, "link", "set", self.device, state)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    """Two hosts with one cable between them."""
    own = f"lc{os.getpid()}"
    a, b = (Host(f"{own}{x}", f"{x}{os.getpid()}", tmp_path / x) for x in "ab")
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("needs ip and unshare: apt-get install iproute2 util-linux")
    try:
        _ip("netns", "add", a.name)
    except subprocess.CalledProcessError:
        pytest.skip("needs the right to make network namespaces")
    try:
        _ip("netns", "add", b.name)
        _ip("-n", a.name, "link", "add", a.device, "type", "veth", "peer", "name", b.device, "netns", b.name)
        for host, address in ((a, _MASTER), (b, "10.77.0.2")):
            _ip("-n", host.name, "addr", "add", f"{address}/24", "dev", host.device)
            _ip("-n", host.name, "link", "set", "lo", "up")
            host.cable("up")
        yield a, b
    finally:
        for host in (a, b):
            subprocess.run(["ip", "netns", "del", host.name], check=False, capture_output=True)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start commands on hosts, and end them with the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(host: Host, *argv: str) -> subprocess.Popen[str]:
        started.append(host.start(*argv))
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            process.terminate()
    for process in started:
        process.wait(60)


def _server(*defects: str) -> str:
    planted = " ".join(f"--defect {name}" for name in defects)
    return f"{' '.join(_LOADCHAOS)} sim --port {_PORT} {planted}"


def _hunt(start: Callable[..., subprocess.Popen[str]], host: Host, *options: str) -> subprocess.Popen[str]:
    """Start the hunt of the master, whose own server has no defect."""
    given = ("--budget", "100s", "--seed", "3", "--master", "--master-bind-host", _MASTER, *options)
    hunt = start(host, "hunt", "--launch", _server(), *given)
    host.wait_for("files are in")
    return hunt


def _workloads(host: Host) -> list[dict[str, str]]:
    rows = next(host.folder.glob("runs/hunt-*/workloads.jsonl")).read_text().splitlines()
    return [json.loads(row) for row in rows]


def test_hunt_on_two_hosts_has_the_finding_of_the_other_host(
    hosts: tuple[Host, Host], start: Callable[..., subprocess.Popen[str]]
) -> None:
    near, far = hosts
    genes = near.folder.parent / "genes.yaml"
    genes.write_text("traffic: {near_limit: [{band: -8..-1, step: 1}]}\n")
    hunt = _hunt(start, near, "--genes", str(genes))
    worker = start(far, "worker", "--master-host", _MASTER, "--launch", _server("near_max_oob"))
    near.wait_for(f"worker {far.name}-1 hunts, too")
    near.wait_for("NEW FINDING: index_oob_indexkernel")
    assert hunt.wait(180) == FAIL, near.output
    assert worker.wait(60) == PASS, far.output
    assert f"first on {far.name}-1" in near.output, "the master's own server has no defect"
    found = next(near.folder.glob("runs/hunt-*/findings/01-*/finding.json"))
    assert json.loads(found.read_text())["failure"]["id"] == "index_oob_indexkernel"
    assert (found.parent / "run" / "events.jsonl").exists()
    assert {row.get("server", "") for row in _workloads(near)} == {"", f"{far.name}-1"}


def test_worker_without_its_cable_is_lost_and_ends_its_server(
    hosts: tuple[Host, Host], start: Callable[..., subprocess.Popen[str]]
) -> None:
    near, far = hosts
    hunt = _hunt(start, near)
    worker = start(far, "worker", "--master-host", _MASTER, "--launch", _server())
    near.wait_for(f"on {far.name}-1")
    far.cable("down")
    time.sleep(6)  # shorter than a worker may be silent: nothing is lost
    far.cable("up")
    seen = near.output.count(f" on {far.name}-1")
    near.wait_for("hunts, too")
    until_s = time.monotonic() + 40
    while near.output.count(f" on {far.name}-1") <= seen and time.monotonic() < until_s:
        time.sleep(0.2)
    assert near.output.count(f" on {far.name}-1") > seen, near.output
    assert "lost" not in near.output
    far.cable("down")
    assert worker.wait(60) == UNKNOWN, far.output
    assert "the master sent nothing for 15 s; the server is stopped" in far.output
    assert hunt.wait(180) == PASS, near.output
    assert f"lost: {far.name}-1 sent nothing for" in near.output
