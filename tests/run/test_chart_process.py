import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.row_check import fits_completely, fits_its_kind
from loadchaos.run import chart_process as charts
from loadchaos.run.finalize import conclude, read_verdict
from tests.report.made_up_run import write_run

WRITTEN = ("verdict.json", "report.html", "junit.xml")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return write_run(tmp_path / "run")


def files(folder: RunFolder) -> dict[str, bytes]:
    conclude(folder)
    return {name: (folder.path / name).read_bytes() for name in WRITTEN}


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is large, and there are two cores."""
    monkeypatch.setattr(charts, "_LEAST_BYTES", 0)
    monkeypatch.setattr(charts, "usable_cores", lambda: 2)


def test_charts_of_a_second_process_give_the_same_files(folder: RunFolder, request: pytest.FixtureRequest) -> None:
    alone = files(folder)
    request.getfixturevalue("large")
    for accept in (fits_its_kind, fits_completely):
        with charts.chart_process(folder, accept) as process:
            assert process is not None
            series = process()
        assert series is not None and series.points()
        assert series.answers.lengths == charts.fold_series(folder, accept).answers.lengths
    assert files(folder) == alone


@pytest.mark.usefixtures("large")
def test_charts_are_folded_here_if_the_process_fails(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    both = files(folder)
    for failing in ("/bin/false", "/bin/true", str(folder.path / "absent")):
        monkeypatch.setattr(sys, "executable", failing)
        assert files(folder) == both


@pytest.mark.usefixtures("large")
def test_chart_process_ends_with_its_block(folder: RunFolder) -> None:
    with charts.chart_process(folder, fits_its_kind) as process:
        assert process is not None
    assert process.args[0].poll() is not None


def test_chart_process_is_for_large_runs_only(folder: RunFolder) -> None:
    with charts.chart_process(folder, fits_its_kind) as process:
        assert process is None


def test_verdict_without_charts_is_the_same(folder: RunFolder) -> None:
    written = conclude(folder)
    folder.verdict.unlink()
    read = read_verdict(folder)
    assert replace(written, notes=()) == replace(read, notes=())
