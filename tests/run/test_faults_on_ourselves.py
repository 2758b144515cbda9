import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.run.conftest import Start, StartSim, StartWorker, limited
from tests.waiting import listens

CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
/* The wall clock of every process jumps an hour back, ten seconds after STEP_FROM (a monotonic second). */
int clock_gettime(clockid_t which, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(which, t);
    if (which == CLOCK_REALTIME && getenv("STEP_FROM")) {
        struct timespec now;
        real(CLOCK_MONOTONIC, &now);
        if (now.tv_sec > atol(getenv("STEP_FROM")) + 10) t->tv_sec -= 3600;
    }
    return done;
}
"""


class Way:
    """Network path to a local port that can be cut: nothing passes."""

    def __init__(self, port: int) -> None:
        self.open = threading.Event()
        self.open.set()
        self.closing = threading.Event()
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._socks: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self.closing.is_set():
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to), timeout=5)
            except OSError:
                continue
            far.settimeout(None)
            self._socks += [near, far]
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(a, b), daemon=True).start()

    def _pump(self, a: socket.socket, b: socket.socket) -> None:
        try:
            while data := a.recv(65536):
                while not self.open.wait(0.1) and not self.closing.is_set():
                    pass
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def close(self) -> None:
        self.closing.set()
        self.open.set()
        for s in (self._listener, *self._socks):
            s.close()


@pytest.fixture
def path() -> Iterator[Callable[[int], Way]]:
    made: list[Way] = []

    def start_cut(port: int) -> Way:
        made.append(Way(port))
        return made[-1]

    yield start_cut
    for it in made:
        it.close()


@pytest.mark.slow
def test_run_folder_that_becomes_read_only_is_judged_without_a_written_verdict(start: Start) -> None:
    run = start()
    assert run.ends() == 0
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = str(run.folder)
    for more in ((folder, folder), ("-o", "remount,ro,bind", folder)):
        argv = [mount, "--bind", *more] if len(more) == 2 else [mount, *more]
        if (done := subprocess.run(argv, capture_output=True, check=False)).returncode:
            pytest.skip(f"no folder could be mounted: {done.stderr.decode().strip()}")
    try:
        judged, reported = run.again("judge"), run.again("report")
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
    assert judged.returncode == 3
    assert "expectations met" in judged.stdout, "results that were proved are counted"
    assert "verdict.json could not be written: Read-only file system" in judged.stdout
    assert (reported.returncode, reported.stdout) == (3, "")
    assert "report.html could not be made" in reported.stderr
    assert run.verdict()["verdict"] == "pass", "as it was judged when it could be"


@pytest.mark.slow
def test_file_descriptor_shortage_is_no_failure_of_the_server(start: Start, sim: StartSim) -> None:
    it = sim()
    slow = [{"name": "text", "payload": {"text": {"tokens": "16..32"}}, "output": {"exact": 200}}]
    load = [{"rate": "40/s", "law": "constant", "for": "6s", "max_in_flight": 200}]
    few_files = limited("RLIMIT_NOFILE", 60)
    run = start("--target", it.url, "--authorize", it.address, prefix=few_files, load=load, traffic=slow)
    assert run.ends(120) in (1, 3)
    verdict = run.verdict()
    assert verdict["verdict"] == "unknown", verdict["failures"]
    assert verdict["failures"] == []
    assert (run.folder / "report.html").exists()


@pytest.mark.slow
def test_wall_clock_jump_changes_nothing(start: Start, tmp_path: Path) -> None:
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("no C compiler: nothing to move the clock with")
    (tmp_path / "clock.c").write_text(CLOCK)
    shim = tmp_path / "clock.so"
    subprocess.run([cc, "-shared", "-fPIC", "-o", str(shim), str(tmp_path / "clock.c"), "-ldl"], check=True)
    env = {"LD_PRELOAD": str(shim), "STEP_FROM": str(int(time.monotonic()))}
    run = start(load=[{"rate": "10/s", "law": "constant", "for": "15s", "max_in_flight": 32}], env=env)
    assert run.ends(120) == 0, run.output
    verdict = run.verdict()
    assert verdict["outcomes"] == {"ok": 150}
    begin, end = (run.rows(row="run", what=w)[0]["at_ns"] for w in ("load_begin", "load_end"))
    assert 14 < (end - begin) / 1e9 < 60
    assert verdict["started"] < verdict["ended"]


@pytest.mark.slow
def test_network_cut_is_no_death_of_the_server(start: Start, sim: StartSim, path: Callable[[int], Way]) -> None:
    it = sim()
    cut = path(it.port)
    load = [{"rate": "10/s", "law": "constant", "for": "20s", "max_in_flight": 64}]
    limits = {"first_byte": "3s", "between_bytes": "3s", "total": "20s"}
    run = start(
        "--target", f"http://127.0.0.1:{cut.port}", "--authorize", f"127.0.0.1:{cut.port}", load=load, limits=limits
    )
    run.wait_for("requests-*.jsonl", 20, 120, row="end")
    cut.open.clear()
    run.wait(
        lambda: [r for r in run.rows("requests-*.jsonl", row="end") if r["outcome"] != "ok"], "what the cut does", 120
    )
    cut.open.set()
    assert run.ends(120) in (1, 3)
    verdict = run.verdict()
    assert verdict["verdict"] != "pass"
    assert not [f for f in verdict["failures"] if f["severity"] == "engine_death"]
    assert (run.folder / "report.html").exists()


@pytest.mark.slow
def test_worker_cut_off_by_the_network_returns_with_every_row(
    start: Start, worker: StartWorker, path: Callable[[int], Way], unused_port: int
) -> None:
    load = [{"rate": "20/s", "law": "constant", "for": "20s", "max_in_flight": 64}]
    run = start("--master", "--expect-workers", "1", "--master-bind-port", str(unused_port), load=load)
    run.wait(lambda: listens(unused_port), "the master's port", 120)
    cut = path(unused_port)
    it = worker(cut.port, host="127.0.0.1")
    run.wait_for("requests-0.jsonl", 40, 120, row="end")
    cut.open.clear()
    run.wait_for("requests-master.jsonl", what="lost")
    cut.open.set()
    run.wait_for("requests-master.jsonl", what="back")
    assert run.ends(120) == 0, run.output
    assert run.verdict()["outcomes"] == {"ok": 400}
    assert it.rows().read_bytes() == (run.folder / "requests-0.jsonl").read_bytes()
    assert it.process.wait(30) == 0
