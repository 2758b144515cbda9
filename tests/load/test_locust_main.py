import os
import subprocess
from pathlib import Path

import pytest

from loadchaos.load.locust_main import LOCUST

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
