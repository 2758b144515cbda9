import io
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadchaos.analysis.capacity.result import CapacityResult
from loadchaos.campaigns.capacity.search_metrics import SearchMetrics
from loadchaos.core.typed_json import from_json
from loadchaos.report.export.export import search_openmetrics
from loadchaos.report.metrics.capacity_metrics import capacity_families
from loadchaos.report.metrics.metric_table import CAPACITY, CAPACITY_LOADS, SERIES_A_LOAD
from tests.invoking import output_of
from tests.report.made_up_search import BEGAN_S, STEP_S, search_data, search_result, step

Samples = dict[tuple[str, ...], float]


def page(data: dict[str, Any]) -> Samples:
    """Samples by name and labels, without `run`."""
    found = {}
    for family in capacity_families(from_json(CapacityResult, data), "capacity-1"):
        for sample in family.samples:
            assert sample.labels["run"] == "capacity-1"
            name = sample.name.removeprefix("loadchaos_capacity_")
            found[name, *(v for k, v in sample.labels.items() if k != "run")] = sample.value
    return found


def test_page_of_a_finished_search_has_its_answer_and_curves() -> None:
    found = page(search_data())
    assert {what: found["load", what] for what in ("met", "not_met", "interval_low", "interval_high", "knee")} == {
        "met": 10, "not_met": 12, "interval_low": 9.7, "interval_high": 12.4, "knee": 10,
    }  # fmt: skip
    assert (found["info", "small", "rate"], found["running",], found["goal_ratio",], found["steps",]) == (1, 0, 0.99, 4)
    assert found["limit_seconds", "itl_p99"] == 0.05
    assert found["saturation_requests_per_second",] == 11.5
    assert [found["limiting_resource", r] for r in ("queue", "kv_cache", "client")] == [1, 0, 0]
    assert [found.get(("step_met", load)) for load in ("4", "10", "12", "16")] == [None, 1, 0, 0]
    assert [found["step_goodput_ratio", "12", bound] for bound in ("low", "measured", "high")] == pytest.approx(
        [0.85, 0.9, 0.92]
    )
    assert found["step_latency_seconds", "10", "ttft", "p99"] == pytest.approx(0.3)
    assert found["step_requests_per_second", "16"] == 11.5


def test_every_metric_of_the_table_has_a_sample() -> None:
    names = {name for name, *_ in page(search_data(current={"load": 5.0, "requests": 7, "goodput": 0.5}))}
    assert names == {spec.name.removeprefix("loadchaos_capacity_") for spec in CAPACITY}


def test_page_of_a_running_search_has_the_step_in_progress_and_no_answer() -> None:
    nothing = {"low": None, "high": None, "interval": [None, None]}
    data = search_data(ended=False, answer=nothing, knee=None, saturation={"reached": False}, steps=[])
    found = page({**data, "current": {"load": 5.0, "requests": 0, "goodput": None}})
    assert (found["running",], found["current_load",], found["steps",]) == (1, 5, 0)
    assert not any(name in ("load", "current_goodput_ratio", "limiting_resource") for name, *_ in found)


def test_longest_step_of_a_load_has_the_series() -> None:
    steps = [
        step(0, 8, "undecided", 1.0, requests=8),
        step(1, 8, "met", 0.995, requests=500),
        step(2, 8, "met", 1, requests=9),
    ]
    found = page(search_data(steps=steps))
    assert (found["step_requests", "8"], found["step_goodput_ratio", "8", "measured"]) == (500, 0.995)


def test_series_of_loads_are_bounded() -> None:
    steps = [step(n, 1 + n / 10, "met", 1.0) for n in range(CAPACITY_LOADS + 9)]
    loads = [labels[0] for name, *labels in page(search_data(steps=steps)) if name.startswith("step_")]
    assert len(set(loads)) == CAPACITY_LOADS
    assert max(map(loads.count, set(loads))) <= SERIES_A_LOAD


def test_search_serves_what_was_published_last() -> None:
    metrics = SearchMetrics("capacity-1", 0)
    try:
        for load in (5.0, 6.0):
            metrics.publish(search_result(ended=False, current={"load": load, "requests": 3, "goodput": 0.5}))
        with urllib.request.urlopen(metrics.url, timeout=5) as answer:
            text = answer.read().decode()
        samples = {s.name: s.value for f in text_string_to_metric_families(text) for s in f.samples}
        assert samples["loadchaos_capacity_current_load"] == 6
        assert samples["loadchaos_capacity_running"] == 1
    finally:
        metrics.close()


def test_exported_search_has_the_times_of_its_steps() -> None:
    out = io.StringIO()
    search_openmetrics(search_result(), "capacity-1", out)
    lines = [line.rsplit(" ", 2) for line in out.getvalue().splitlines() if not line.startswith("#")]
    at: dict[str, list[tuple[float, float]]] = {name: [] for name, *_ in lines}
    for name, value, stamp in lines:
        at[name].append((float(stamp) - BEGAN_S, float(value)))
    met = at['loadchaos_capacity_load{run="capacity-1",what="met"}']
    not_met = dict(at['loadchaos_capacity_load{run="capacity-1",what="not_met"}'])
    running = dict(at['loadchaos_capacity_running{run="capacity-1"}'])
    assert min(met) == (3 * STEP_S, 10)  # after the third step
    assert (not_met[2 * STEP_S], not_met[4 * STEP_S]) == (16, 12)
    assert (running[0], running[4 * STEP_S]) == (1, 0)
    assert dict(at['loadchaos_capacity_current_load{run="capacity-1"}'])[STEP_S] == 16
    stamps = [float(stamp) for name, _, stamp in lines if name.startswith("loadchaos_capacity_running")]
    assert stamps == sorted(set(stamps))


def test_export_command_takes_a_search(tmp_path: Path) -> None:
    import json

    (tmp_path / "capacity.json").write_text(json.dumps(search_data()))
    output_of("export", tmp_path, "--openmetrics")
    text = (tmp_path / "export" / "openmetrics.txt").read_text()
    assert text.endswith("# EOF\n")
    assert f'run="{tmp_path.name}"' in text
    refused = output_of("export", tmp_path, "--csv", code=2)
    assert "is a capacity search: give --openmetrics alone" in refused
