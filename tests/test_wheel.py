"""What people install: the wheel carries profiles, schemas and templates, and works away from any checkout."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from hatch_build import BUILT
from loadchaos import __version__
from loadchaos.load.wire.native import PURE, is_native
from tests.warm_command import outside_ci

ROOT = Path(__file__).parent.parent


def built(source: Path, kind: str, folder: Path, **more: str) -> Path:
    build = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", **more}
    subprocess.run(build, cwd=source, check=True, capture_output=True, timeout=100, env=env)
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with loadchaos as the wheel installs it; dependencies come from this environment."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def loadchaos(installed: Path, cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loadchaos", *args],
        cwd=cwd,
        env={**outside_ci(), "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_wheel_of_the_sdist_has_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    """A build elsewhere and later gives what was published, and the sdist lacks nothing."""
    with tarfile.open(built(ROOT, "sdist", tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("loadchaos-*")
    again = built(source, "wheel", tmp_path / "again")
    assert (again.name, again.read_bytes()) == (wheel.name, wheel.read_bytes())


def test_wheel_is_pure_where_nothing_can_be_compiled(tmp_path: Path) -> None:
    for name, env in {"wanted": {PURE: "1"}, "no compiler": {PURE: "0", "PATH": str(tmp_path)}}.items():
        wheel = built(ROOT, "wheel", tmp_path / name, **env)
        assert wheel.name.endswith("-py3-none-any.whl")
        with zipfile.ZipFile(wheel) as archive:
            assert not [file for file in archive.namelist() if file.endswith((".so", ".c"))]


@pytest.mark.skipif(not is_native(), reason="there is no native reader")
def test_wheel_has_the_native_reader_for_every_python_from_3_11(wheel: Path) -> None:
    assert "-cp311-abi3-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        assert [file for file in archive.namelist() if file.endswith((".so", ".c"))] == [BUILT]


def test_it_holds_what_a_user_starts_from(installed: Path) -> None:
    package = installed / "loadchaos"
    shipped = package / "_shipped"
    assert {p.name for p in (ROOT / "profiles").glob("*.yaml")} == {p.name for p in (shipped / "profiles").iterdir()}
    assert (shipped / "schemas" / "verdict.json").is_file()
    assert (shipped / "images" / "manifest.json").is_file()
    assert sorted((shipped / "docs" / "repros").glob("*/repro.py")) != []
    assert (package / "report" / "html" / "report.html.j2").is_file()
    assert {p.name for p in (package / "report" / "html" / "uplot").iterdir()} >= {
        "uPlot.iife.min.js",
        "uPlot.min.css",
        "LICENSE",
    }
    assert list((package / "analysis" / "signatures").glob("*.toml"))


def test_it_holds_no_tools_of_the_repository(installed: Path) -> None:
    assert {p.name for p in installed.iterdir()} == {"loadchaos", f"loadchaos-{__version__}.dist-info"}
    assert {p.name for p in (installed / "loadchaos" / "_shipped").iterdir()} == {
        "profiles",
        "schemas",
        "images",
        "docs",
    }
    assert list(installed.rglob("*grafana*")) == []


@pytest.mark.slow
def test_init_copies_the_profiles_and_overwrites_nothing(installed: Path, tmp_path: Path) -> None:
    first = loadchaos(installed, tmp_path, "init")
    assert first.returncode == 0, first.stderr
    mine = tmp_path / "profiles" / "mtp_mm.yaml"
    mine.write_text(mine.read_text().replace("users: 80", "users: 8"))
    again = loadchaos(installed, tmp_path, "init")
    assert "not overwritten" in again.stdout
    assert "users: 8," in mine.read_text()
    assert loadchaos(installed, tmp_path, "check", "profiles/mtp_mm.yaml").returncode == 0


@pytest.mark.slow
def test_a_shipped_profile_runs_by_name_away_from_any_checkout(installed: Path, tmp_path: Path) -> None:
    done = loadchaos(
        installed,
        tmp_path,
        "run",
        "smoke",
        "--no-live",
        "--exporter-port",
        "0",
        "--set",
        "load.0.for=1s",
        "--set",
        "load.1.for=8s",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = tmp_path.glob("runs/*/report.html")
    assert "smoke" in report.read_text()
