import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from loadchaos.core.lifetime import PARENT_VARIABLE
from loadchaos.load.locust_main import LOCUST
from loadchaos.run.ports import free_port
from tests.waiting import gone, until

LOCUSTFILE = """\
import os
from locust import User, events, task
@events.init.add_listener
def show(environment, **_):
    print("run_time", environment.parsed_options.run_time, flush=True)
    os._exit(0)
class One(User):
    @task
    def nothing(self): pass
"""


@pytest.mark.parametrize("where", ["variable", "locust.conf", "pyproject.toml", "home"])
def test_settings_of_locust_do_not_reach_our_load(where: str, tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(LOCUSTFILE)
    env = {**os.environ, "HOME": str(tmp_path / "home")}
    (tmp_path / "home").mkdir()
    if where == "variable":
        env["LOCUST_RUN_TIME"] = "2s"
    elif where == "pyproject.toml":
        (tmp_path / where).write_text('[tool.locust]\nrun-time = "2s"\n')
    else:
        (tmp_path / ("home/.locust.conf" if where == "home" else where)).write_text("run-time = 2s\n")
    argv = [*LOCUST[:-1], str(file), "--headless", "--users", "1"]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "run_time None" in done.stdout, done
    plain = [LOCUST[0], "-m", "locust", *argv[argv.index("-f") :]]
    seen = subprocess.run(plain, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "run_time 2" in seen.stdout, "the setting of this test has no effect on Locust itself"


def test_forked_worker_that_has_not_met_its_master_ends_with_the_run(tmp_path: Path) -> None:
    """Locust tries for five minutes to reach a master. A run that is killed early leaves its workers in that loop."""
    file = tmp_path / "x.py"
    file.write_text(LOCUSTFILE)
    run = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    argv = [*LOCUST[:-1], str(file), "--headless", "--worker", "--processes", "2", "--master-port", str(free_port())]
    env = {**os.environ, PARENT_VARIABLE: str(run.pid)}
    started = psutil.Popen(argv, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
    workers: list[psutil.Process] = []
    try:
        workers = until(lambda: found if len(found := started.children()) == 2 else None, "two workers")
        run.kill()
        run.wait()
        until(lambda: all(gone(p.pid) for p in workers), "the end of the workers", 20)
    finally:
        for left in [*workers, started]:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
        started.wait()
