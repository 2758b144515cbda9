import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from loadchaos.analysis.figures.live import LiveFigures
from loadchaos.core.errors import OptionError
from loadchaos.core.latency import INTERRUPTED
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.core.ledger.rows import at_ns_of
from loadchaos.report.metrics.exporter import Exporter, LiveCollector
from tests.report.made_up_run import counted_by_hand
from tests.rows import folded

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def fold_of(folder: RunFolder) -> LiveFigures:
    return folded(LiveFigures(), Reader(folder).new(final=True))


def page_of(fold: LiveFigures) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LiveCollector(fold))
    return generate_latest(registry).decode()


def samples(page: str) -> Samples:
    return {
        (s.name, tuple(sorted((k, v) for k, v in s.labels.items() if k != "run"))): s.value
        for family in parse(page)
        for s in family.samples
    }


@pytest.fixture
def exporter(run_folder: RunFolder) -> Iterator[Exporter]:
    served = Exporter(LiveCollector(fold_of(run_folder)), 0)
    yield served
    served.close()


def get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_request_counters_equal_the_ledger(run_folder: RunFolder, exporter: Exporter) -> None:
    rows = list(Reader(run_folder).new(final=True))
    found = samples(get(exporter.port))
    totals = {k: v for k, v in found.items() if k[0] == "loadchaos_requests_total"}
    found_totals = {(dict(labels)["traffic"], dict(labels)["outcome"]): v for (_, labels), v in totals.items() if v}
    assert found_totals == {key: n for key, n in counted_by_hand(run_folder).items() if key[1] != "unfinished"}
    ok = sum(1 for r in rows if r["row"] == "end" and r["outcome"] == "ok")
    counted = {"ok", *INTERRUPTED}  # the gaps of an interrupted answer count, too
    gaps = sum(sum(r["itl_hist"].values()) for r in rows if r["row"] == "end" and r["outcome"] in counted)
    for kind, n in (("ttft", ok), ("e2e", ok), ("itl", gaps)):
        assert sum(v for (name, _), v in found.items() if name == f"loadchaos_{kind}_seconds_count") == n


def test_state_metric_is_1_for_one_state(run_folder: RunFolder) -> None:
    found = samples(page_of(fold_of(run_folder)))
    states = {dict(labels)["state"]: v for (name, labels), v in found.items() if name == "loadchaos_server_state"}
    assert len(states) == 9
    assert [s for s, v in states.items() if v == 1] == ["dead"]


def test_server_metrics_disappear_when_the_server_dies(run_folder: RunFolder) -> None:
    fold = LiveFigures()
    for row in Reader(run_folder).new(final=True):
        if row["row"] == "header" or at_ns_of(row) <= 5_010_000_000_000:
            fold.fold(row)
    found = samples(page_of(fold))
    labels = (("engine", "0"), ("replica", "a"))
    assert 0 < found["loadchaos_server_kv_usage_ratio", labels] < 1
    assert found["loadchaos_server_generation_tokens_total", labels] == 9000
    assert "loadchaos_server_kv_usage_ratio" not in page_of(fold_of(run_folder))


def test_failures_incidents_and_attacks_are_counted_by_id(run_folder: RunFolder) -> None:
    fold = fold_of(run_folder)
    for count in (1, 3):
        fold.fold({"row": "failure", "id": "boom", "severity": "hang", "attribution": "server", "count": count})
    fold.fold({"row": "incident", "what": "open", "n": 1})
    fold.fold({"row": "incident", "what": "close", "n": 1})
    found = samples(page_of(fold))
    assert found["loadchaos_failures_total", (("attribution", "server"), ("id", "boom"), ("severity", "hang"))] == 3
    assert found["loadchaos_incidents_total", ()] == 1
    assert found["loadchaos_attacks_total", (("attack", "reset_mm_cache"), ("result", "ok"))] == 7


def test_page_is_valid_openmetrics_with_exemplars(run_folder: RunFolder) -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LiveCollector(fold_of(run_folder)))
    families = {f.name: f for f in parse_openmetrics(generate_openmetrics(registry).decode())}  # type: ignore[no-untyped-call]  # prometheus_client has no types there
    with_exemplar = [s for s in families["loadchaos_ttft_seconds"].samples if s.exemplar]
    assert with_exemplar
    assert with_exemplar[0].exemplar.labels["request_id"].startswith("chatcmpl-")


def test_traffic_beyond_the_limit_is_summed_as_other() -> None:
    fold = LiveFigures()
    for i in range(30):
        fold.fold({"row": "end", "id": str(i), "traffic": f"t{i}", "outcome": "ok", "at_ns": i})
    found = {k: v for k, v in samples(page_of(fold)).items() if k[0] == "loadchaos_requests_total"}
    assert {dict(labels)["traffic"] for _, labels in found} == {*(f"t{i}" for i in range(12)), "other"}
    assert sum(found.values()) == 30
    assert found["loadchaos_requests_total", (("outcome", "ok"), ("traffic", "other"))] == 18


def test_hostile_ids_are_escaped() -> None:
    fold = LiveFigures()
    fold.fold({"row": "failure", "id": 'x"} 1\n# EOF\n', "severity": "hang", "count": 1})
    fold.fold(
        {"row": "metrics", "replica": 'a"\n', "values": {"bad name{}": 1, "ok_name": 2, "text": "no"}, "at_ns": 1}
    )
    found = samples(page_of(fold))
    assert [v for (name, _), v in found.items() if name == "loadchaos_failures_total"] == [1]
    assert not any("bad" in name for name, _ in found)


def test_default_port_in_use_falls_back_to_a_free_one(unused_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadchaos.report.metrics.exporter.DEFAULT_PORT", unused_port)
    first, second = Exporter(LiveCollector(LiveFigures()), "default"), Exporter(LiveCollector(LiveFigures()), "default")
    try:
        assert first.port == unused_port
        assert second.port not in (0, unused_port)
        url = f"http://127.0.0.1:{second.port}/metrics"
        assert b"loadchaos_" in urllib.request.urlopen(url, timeout=10).read()
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("port", [-1, 70000])
def test_invalid_port_is_refused(port: int) -> None:
    with pytest.raises(OptionError):
        Exporter(LiveCollector(LiveFigures()), port)


def test_process_before_the_first_state_is_not_other() -> None:
    fold = LiveFigures()
    fold.fold(
        {"row": "process", "what": "seen", "at_ns": 1, "replica": "a", "pid": 7, "role": "engine_core", "rss_bytes": 5}
    )
    assert "resident" not in page_of(fold)
    fold.fold({"row": "state", "at_ns": 2, "replica": "a", "from": "starting", "to": "healthy", "signs": []})
    assert 'loadchaos_process_resident_bytes{replica="a",role="engine_core",run=""} 5.0' in page_of(fold)
