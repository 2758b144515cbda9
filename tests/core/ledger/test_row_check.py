import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadchaos.cli import runs
from loadchaos.cli.main import main
from loadchaos.core.ledger.row_check import fits_completely, fits_its_kind
from loadchaos.core.whole_file import write_json
from tests.invoking import output_of
from tests.warm_command import run_command

ODD: list[Any] = [
    {"row": ["end"], "at_ns": 5},
    {"row": {"a": 1}, "at_ns": 5},
    {"row": None, "at_ns": "x"},
    {"row": "end"},
    {"row": "end", "at_ns": "soon", "id": 3},
    {"row": "end", "at_ns": {"a": []}},
    {"row": "end", "at_ns": -5, "id": "a"},
    {"row": "begin", "at_ns": 10**18, "id": ["x"], "traffic": {}, "expect": 7},
    {"row": "metrics", "at_ns": 10**17, "engine": "0", "replica": "server", "values": {"requests_running": "many"}},
    {"row": "metrics", "at_ns": 10**17, "engine": {}, "replica": [], "values": []},
    {"row": "metrics", "at_ns": 10**17, "engine": "0", "replica": "server", "values": {"requests_running": True}},
    {"row": "metrics", "at_ns": 10**17, "engine": "0", "replica": "server", "values": {"requests_running": 1e300}},
    {"row": "state", "at_ns": 10**17, "from": 1, "to": []},
    {"row": "run", "what": "end", "at_ns": None},
    {"row": "run", "what": {}, "at_ns": 3, "terms": "none"},
    {"row": "header", "schema": "x", "mono_ns": "y", "utc_ns": []},
    {"row": "attack", "at_ns": 1e30, "name": {}},
    {"row": "log", "at_ns": 3, "text": 5, "source": []},
    {"row": "facts", "at_ns": 3, "facts": [1]},
    {"row": "probe", "at_ns": 3, "ok": {}, "status": "x"},
    {"row": "well", "n": "x"},
    {"row": "process", "at_ns": 3, "pid": "x", "what": 4},
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("run")
    profile = {
        "name": "small", "target": {"embedded": {"dialect": "vllm", "era": "0.18"}},
        "traffic": [{"name": "t", "payload": {"text": {"tokens": "16..32"}}, "output": {"max": 4}}],
        "load": [{"users": 2, "requests": 10}],
    }  # fmt: skip
    (home / "p.yaml").write_text(json.dumps(profile))
    argv = ["run", "p.yaml", "--embedded", "--exporter-port", "0", "--no-live", "--out", "runs"]
    run_command(*argv, cwd=home)
    (run,) = (home / "runs").iterdir()
    return run


def judged(run: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    done = run_command("judge", str(run), "--json", cwd=Path.cwd())
    return done, json.loads(done.stdout) if done.stdout.startswith("{") else {}


@pytest.mark.parametrize("row", ODD)
def test_row_check_refuses_odd_rows(row: Any) -> None:
    assert not fits_its_kind(row)


def test_row_check_looks_into_each_row_of_a_known_shape() -> None:
    row = {"row": "metrics", "at_ns": 10**17, "engine": "0", "replica": "server", "values": {"requests_running": 1.0}}
    assert fits_its_kind(row)
    assert not fits_its_kind({**row, "values": {"requests_running": "many"}})
    assert not fits_its_kind({**row, "row": "run"})
    assert not fits_completely({"row": "end", "at_ns": 5, "id": "a", "outcome": "ok"})


@pytest.mark.parametrize("file", ["events.jsonl", "metrics.jsonl", "requests-0.jsonl"])
def test_judge_skips_and_counts_rows_of_an_odd_shape(file: str, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    path = run / file
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], *map(json.dumps, ODD), *lines[2:]]) + "\n")
    done, verdict = judged(run)
    assert "Traceback" not in done.stderr
    assert done.returncode == 3
    (check,) = [c for c in verdict["checks"] if c["name"] == "ledger"]
    assert check["verdict"] == "unknown"
    assert str(len(ODD)) in check["actual"], check


@pytest.mark.parametrize("row", [*ODD[:8], *ODD[11:14]], ids=str)
def test_judge_survives_a_single_odd_row(row: Any, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    with (run / "requests-0.jsonl").open("a") as f:
        f.write(json.dumps(row) + "\n")
    result = CliRunner().invoke(main, ["judge", str(run)])
    assert result.exit_code in (0, 3), result.output


def test_bug_of_ours_ends_with_70_and_a_traceback(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(_: object) -> None:
        raise ZeroDivisionError("of the test")

    monkeypatch.setattr(runs, "_run_folder", bug)
    printed = output_of("judge", finished, code=70)
    assert "ZeroDivisionError: of the test" in printed
    assert "a bug in loadchaos (exit code 70)" in printed


def test_sums_beyond_64_bits_are_written(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"tokens": 10**19 + 10**19})
    assert json.loads((tmp_path / "x.json").read_text()) == {"tokens": 2 * 10**19}


@pytest.mark.parametrize("key", ["0.5", "-1", "x", "", "\u00b2", "999999999", 10**6, -1])
def test_histogram_with_a_key_that_is_no_bucket_does_not_fit(key: str | int) -> None:
    end = {"row": "end", "at_ns": 5, "id": "a", "outcome": "ok"}
    assert fits_its_kind({**end, "itl_hist": {"7": 1, "0": 2, 1234: 1}})
    assert not fits_its_kind({**end, "itl_hist": {"7": 1, key: 1}})
