from typing import Any

from loadchaos.analysis.figures.live import LiveFigures
from loadchaos.analysis.figures.series import Series
from loadchaos.report.html.charts import picture
from loadchaos.report.metrics.exporter import families
from tests.rows import S, folded

GB = 2.0**30


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"row": "run", "at_ns": 0, "what": "load_begin"}]
    for second in range(1, 20):
        for n, used in enumerate((70, 35)):
            values = {"gpu_memory_used_bytes": used * GB, "gpu_memory_free_bytes": (80 - used) * GB, "gpu_power_w": 300}
            values |= {"gpu_utilisation_ratio": used / 100, "gpu_temperature_c": used, "gpu_xids_total": n}
            base = {"row": "device", "at_ns": second * S, "source": "dcgm", "host": "h:9400"}
            found.append({**base, "device": f"gpu{n}", "values": values})
        host = {"host_memory_available_bytes": 25 * GB, "host_memory_total_bytes": 100 * GB, "host_oom_kills_total": 2}
        found.append({**found[-1], "source": "node", "host": "h:9100", "device": "host", "values": host})
    return found


def samples(given: list[dict[str, Any]]) -> dict[str, float]:
    fold = folded(LiveFigures(), given)
    return {
        s.name: s.value
        for family in families(fold, "run")
        for s in family.samples
        if "_gpu_" in s.name or "_host_" in s.name
    }


def test_exporter_sums_devices_of_all_hosts() -> None:
    assert samples(rows()) == {
        "loadchaos_gpu_memory_used_bytes": 105 * GB,
        "loadchaos_gpu_memory_free_bytes": 55 * GB,
        "loadchaos_gpu_utilisation_ratio": 0.7,
        "loadchaos_gpu_temperature_celsius": 70,
        "loadchaos_gpu_power_watts": 600,
        "loadchaos_gpu_xids_total": 1,
        "loadchaos_host_memory_available_bytes": 25 * GB,
        "loadchaos_host_oom_kills_total": 2,
    }
    assert samples(rows()[:1]) == {}


def charted(given: list[dict[str, Any]]) -> dict[str, list[str]]:
    series = folded(Series(), given)
    return {chart.title: [line.label for line in chart.lines] for chart in picture(series).charts}


def test_charts_show_hosts_if_there_is_data() -> None:
    charts = charted(rows())
    assert charts["Hosts: memory and GPUs in use"] == [
        "GPU memory (fullest)",
        "GPU busy (busiest)",
        "host memory (fullest)",
    ]
    assert len(charts["GPUs: temperature and power"]) == 2
    assert not [
        title for title in charted([*rows()[:1], {"row": "gap", "at_ns": 9 * S, "source": "x"}]) if "GPU" in title
    ]


def test_charts_show_a_full_disk_and_a_throttled_gpu() -> None:
    strained = [
        {"row": "device", "at_ns": 10 * S, "source": "node", "host": "h", "device": "disk /models",
         "values": {"disk_free_bytes": 1.0, "disk_size_bytes": 100.0}},
        {"row": "device", "at_ns": 10 * S, "source": "node", "host": "h", "device": "host",
         "values": {"host_files_open": 90.0, "host_files_limit": 100.0}},
        {"row": "device", "at_ns": 10 * S, "source": "dcgm", "host": "h", "device": "gpu0",
         "values": {"gpu_throttle_reasons": 64.0}},
    ]  # fmt: skip
    charts = charted([*rows(), *strained])
    assert charts["Hosts: memory and GPUs in use"][-2:] == ["disk (fullest)", "open files (host)"]
    assert charts["GPUs throttled"] == ["thermal or power limit"]
