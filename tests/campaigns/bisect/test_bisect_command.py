import json
import sys
from pathlib import Path
from typing import Any

import pytest

from loadchaos.campaigns.bisect.installs import InstallPlan, index_options, range_of, releases_between
from loadchaos.core.errors import OptionError
from loadchaos.run.ports import free_port
from tests.campaigns.bisect.conftest import write_trace, write_wheel
from tests.invoking import output_of
from tests.warm_command import run_command

INSTALL = "{venv}/bin/pip install fakellm=={version}"
SIMULATOR = f"{sys.executable} -m loadchaos.simulator.server --dialect vllm --era 0.18"
RANGE = ("--install", INSTALL, "--launch", "{venv}/bin/serve")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "choose what to bisect: --flags or --versions"),
        (("--flags", "--versions", "1..2", *RANGE), "choose what to bisect"),
        (("--versions", "1..2", "--launch", "{venv}/bin/serve"), "--versions needs --install and --launch"),
        (("--versions", "1..2", "--install", "pip install x", "--launch", "{venv}/s"), r"{version} was expected"),
        (("--versions", "1..2", "--install", INSTALL, "--launch", "serve"), r"{venv} was expected"),
        (("--versions", "1..2", "--install", "make {version}", "--launch", "{venv}/s"), "give its name with --package"),
        (("--flags",), "--launch 'vllm serve MODEL"),
        (("--flags", "--launch", SIMULATOR, "--change", "eager"), "one launch flag was expected"),
        (("--flags", "--resume"), "start one without --resume"),
    ],
)
def test_bisect_mistakes_have_a_message(
    deadly_trace: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    assert message in output_of("bisect", deadly_trace, *options, "--out", tmp_path / "out", code=2)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Releases of a server: 3.0 to 4.0 are bad, 2.5 does not start, 3.1 cannot be installed."""
    folder = tmp_path / "wheels"
    for version in ("1.0", "2.0", "2.1", "5.0", "6.0"):
        write_wheel(folder, version)
    for version in ("3.0", "4.0"):
        write_wheel(folder, version, bad=True)
    write_wheel(folder, "2.5", breaks=True)
    write_wheel(folder, "3.1", bad=True, needs="fakellm-kernels==9")
    return folder


def install_from(wheels: Path) -> str:
    return f"{{venv}}/bin/pip install --disable-pip-version-check --no-index --find-links {wheels} fakellm=={{version}}"


EVERY = ["1.0", "2.0", "2.1.post1", "2.5", "3.0.0"]


def test_range_of_releases() -> None:
    assert range_of("2", "3", EVERY, "fakellm") == ["2.0", "2.1.post1", "2.5", "3.0.0"]
    assert range_of("1.0", "2.1.post1", EVERY, "fakellm") == ["1.0", "2.0", "2.1.post1"]
    with pytest.raises(OptionError, match=r"pip has no release 2\.6 of fakellm; there are 5, such as 2\.5"):
        range_of("2.0", "2.6", EVERY, "fakellm")
    with pytest.raises(OptionError, match=r"3\.0 is not older than 2\.0"):
        range_of("3.0", "2.0", EVERY, "fakellm")
    with pytest.raises(OptionError, match="a range was expected"):
        releases_between("3.0", InstallPlan(INSTALL, "{venv}/x"))


@pytest.mark.slow
def test_releases_are_those_that_pip_has(wheels: Path) -> None:
    plan = InstallPlan(install_from(wheels), "{venv}/bin/python -m fakellm")
    assert releases_between("2..3", plan) == ["2.0", "2.1", "2.5", "3.0"]
    with pytest.raises(OptionError, match=r"pip lists no release of otherllm: ERROR: .*--package"):
        releases_between("1..2", InstallPlan(install_from(wheels), "{venv}/x", "otherllm"))


def test_index_options_of_an_install_command() -> None:
    install = "{venv}/bin/pip install --pre -q -i https://a/simple --extra-index-url=https://b x=={version} --no-deps"
    assert index_options(install) == ["--pre", "-i", "https://a/simple", "--extra-index-url=https://b"]


def result(folder: Path) -> dict[str, Any]:
    return dict(json.loads(next(folder.glob("bisect-*/bisect/result.json")).read_text()))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_bisect_command_finds_needed_flags_and_remedies(deadly_trace: Path, tmp_path: Path) -> None:
    launch = f"{SIMULATOR} --port {free_port()} --defect near_max_oob --flag max_model_len=2048 --flag speed=4"
    options = (
        "--flags",
        "--launch",
        launch,
        "--change",
        "--max-model-len 8192",
        "--change",
        "--no-such-flag",
        "--out",
        "o",
    )
    done = run_command("bisect", deadly_trace, *options, cwd=tmp_path, limit_s=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NEEDED 2 of 3 flags; with these it fails 2 of 2" in done.stdout
    assert "CURED with --flag max-model-len=8192: 0 of 9" in done.stdout
    assert "CURED without --defect near_max_oob" in done.stdout
    assert "not a remedy with --flag async-scheduling=false: still fails, 1 of 1" in done.stdout
    assert "not proved with --flag such-flag=false: the server does not start" in done.stdout
    found = result(tmp_path / "o")
    assert found["finished"]
    assert [part["flag"] for part in found["needed"]] == [
        ["--defect", "near_max_oob"],
        ["--flag", "max_model_len=2048"],
    ]
    readme = next((tmp_path / "o").glob("bisect-*/bisect/README.md")).read_text()
    assert "--defect near_max_oob --flag max_model_len=2048\n" in readme
    again = run_command("bisect", deadly_trace, *options, "--resume", cwd=tmp_path, limit_s=900)
    assert again.returncode == 0
    assert again.stdout.splitlines()[0] == done.stdout.splitlines()[0]
    assert not list((tmp_path / "o").glob("bisect-*-*/tries/0100"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_bisect_command_of_a_server_that_never_starts(deadly_trace: Path, tmp_path: Path) -> None:
    launch = f"{SIMULATOR} --port {free_port()} --flag no_such_flag=1"
    done = run_command("bisect", deadly_trace, "--flags", "--launch", launch, cwd=tmp_path, limit_s=900)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "did not become healthy" in done.stderr
    assert "unknown flag" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_bisect_command_of_a_failure_that_does_not_come(tmp_path: Path) -> None:
    harmless = write_trace(tmp_path / "trace", 10)
    launch = f"{SIMULATOR} --port {free_port()} --defect near_max_oob --flag max_model_len=2048"
    done = run_command("bisect", harmless, "--flags", "--launch", launch, "--budget", "150s", cwd=tmp_path, limit_s=900)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("NOT REPRODUCED")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_bisect_command_finds_the_first_bad_and_good_release(deadly_trace: Path, wheels: Path, tmp_path: Path) -> None:
    serve = (
        f"{{venv}}/bin/python -m fakellm {sys.executable} --dialect vllm --port {free_port()} --flag max_model_len=2048"
    )
    options = ("--versions", "1.0..6.0", "--install", install_from(wheels), "--launch", serve, "--bad", "3.0")
    done = run_command("bisect", deadly_trace, *options, "--venvs", "venvs", "--out", "o", cwd=tmp_path, limit_s=900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = result(tmp_path / "o")
    first_bad, first_good = found["first_bad"], found["first_good"]
    assert (first_bad["good"], first_bad["bad"], first_bad["untested"]) == ("2.1", "3.0", ["2.5"])
    assert (first_good["bad"], first_good["good"], first_good["untested"]) == ("4.0", "5.0", [])
    assert first_bad["confidence"] >= 0.97
    states = {release["version"]: release["state"] for release in found["releases"]}
    assert states["2.5"] == "skipped"
    assert states["3.0"] == states["4.0"] == "bad"
    assert states["2.1"] == states["5.0"] == "good"
    assert "FIRST BAD 3.0 (last good 2.1; confidence" in done.stdout
    assert "FIRST GOOD 5.0 (last bad 4.0; confidence" in done.stdout
    assert "not tested between 2.1 and 3.0: 2.5" in done.stdout
    assert "skipped 2.5: the server does not start" in done.stdout
    if "3.1" in states:
        assert (
            "skipped 3.1: it cannot be installed: ERROR: No matching distribution found for fakellm-kernels"
            in done.stdout
        )
    installed = {file.stem: file.stat().st_mtime_ns for file in (tmp_path / "venvs").glob("*.installed")}
    again = run_command(
        "bisect", deadly_trace, *options, "--venvs", "venvs", "--out", "o", "--resume", cwd=tmp_path, limit_s=900
    )
    assert again.stdout.splitlines()[:2] == done.stdout.splitlines()[:2]
    assert {file.stem: file.stat().st_mtime_ns for file in (tmp_path / "venvs").glob("*.installed")} == installed
