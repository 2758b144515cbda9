from datetime import timedelta
from typing import Any

import pytest

from loadchaos.report.html.trend import PAST, read
from loadchaos.report.html.trend_page import html
from tests.campaigns.soak.conftest import Make


def run_once(w: Any, soak: Any, ttft_s: float) -> int:
    latency = {"text": {"ttft_s": {"p50": ttft_s, "p99": 3 * ttft_s, "n": 2000}}}
    w.measured = {"profile": "night", "started": w.clock.time.isoformat(), "latency": latency, "outcomes": {"ok": 2000}}
    code: int = soak.once()
    w.clock.time += timedelta(hours=23)
    return code


def test_soak_prints_unusual_figures_and_keeps_the_exit_code(world: Make) -> None:
    w = world()
    soak = w.soak()
    assert [run_once(w, soak, ttft_s) for ttft_s in (0.2, 0.21, 0.2, 0.19, 0.2)] == [0] * 5
    assert not any("higher than" in line for line in w.lines)
    assert run_once(w, soak, 0.4) == 0
    (line,) = [line for line in w.lines if "higher than" in line]
    assert "higher than in the 5 good runs: text TTFT p50, text TTFT p99" in line


def test_soak_survives_an_error_in_the_trend(world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    w = world()
    soak = w.soak()
    monkeypatch.setattr(
        "loadchaos.report.html.trend_page.html", None
    )  # as a package that was replaced under it may fail
    assert run_once(w, soak, 0.2) == 0
    assert any("could not be cleaned up" in line for line in w.lines)


def test_trend_keeps_deleted_runs_in_its_baseline(world: Make) -> None:
    w = world()
    soak = w.soak(keep={"runs": 2})
    for ttft_s in (0.2, 0.21, 0.2, 0.19, 0.2):
        run_once(w, soak, ttft_s)
    assert [n.deleted for n in read(w.home).runs] == [True] * 3 + [False] * 2
    with (w.home / PAST).open("a") as f:
        f.write('{"profile": "night", "ni')  # a kill
    run_once(w, soak, 0.4)
    run_once(w, soak, 0.2)
    found = read(w.home)
    assert [n.unusual for n in found.runs] == [[]] * 5 + [["text TTFT p50", "text TTFT p99"], []]
    assert found.runs[-1].figures["text TTFT p50"].of_nights == 6
    assert found.since_change["failed requests"].of == 7 * 2000
    assert "night-101, deleted" in html(found)
