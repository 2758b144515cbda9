from typing import Any

from loadchaos.analysis.coverage import WorkloadCoverage, steps_up_to, tenths_up_to
from loadchaos.analysis.log_templates import TemplateMiner, masked
from tests.rows import S, folded, metrics_row


def covered(*rows: dict[str, Any]) -> WorkloadCoverage:
    return folded(WorkloadCoverage(), rows)


BEGIN = {"row": "run", "what": "load_begin", "at_ns": 2 * S}


def test_counter_gives_a_feature_for_each_power_of_two() -> None:
    found = covered(
        metrics_row(1, preemptions_total=100),
        BEGIN,
        metrics_row(3, preemptions_total=103),
        metrics_row(4, preemptions_total=105),
    )
    assert {f for f in found.features if f.startswith("grew")} == {f"grew:preemptions_total:{n}" for n in (0, 1, 2)}
    assert list(steps_up_to("x", 0)) == []
    assert list(steps_up_to("x", 9)) == ["x:0", "x:1", "x:2", "x:3"]


def test_growth_before_the_load_and_process_gauges_are_no_features() -> None:
    found = covered(
        metrics_row(0, preemptions_total=0), metrics_row(1, preemptions_total=9, process_rss_bytes=1), BEGIN,
        metrics_row(3, preemptions_total=9, process_rss_bytes=1 << 30),
    )  # fmt: skip
    assert found.features == set()


def test_pairs_are_events_between_the_same_two_scrapes() -> None:
    idle = metrics_row(3, preemptions_total=0, mm_cache_hits_total=0)
    once = metrics_row(4, preemptions_total=1, mm_cache_hits_total=0)
    apart = covered(BEGIN, idle, once, metrics_row(5, preemptions_total=1, mm_cache_hits_total=2))
    together = covered(BEGIN, idle, metrics_row(4, preemptions_total=1, mm_cache_hits_total=40))
    assert not any(f.startswith("pair:") for f in apart.features)
    assert "pair:mm_cache_hits_total+&preemptions_total" in together.features


def test_aborts_and_attacks_pair_with_counters() -> None:
    found = covered(
        BEGIN, metrics_row(3, spec_draft_tokens_total=0, spec_accepted_tokens_total=0),
        {"row": "heartbeat", "at_ns": 3 * S, "aborted": 2, "images_in_prefill": 1},
        {"row": "attack", "what": "end", "attack": "reset_mm_cache", "ok": True, "status": 200, "at_ns": 3 * S},
        metrics_row(4, spec_draft_tokens_total=10, spec_accepted_tokens_total=7, requests_waiting=3, kv_usage_ratio=0.96),
    )  # fmt: skip
    pairs = {f for f in found.features if f.startswith("pair:")}
    assert {"pair:aborts&drafts_rejected", "pair:attack&kv_high", "pair:aborts&images_in_prefill"} <= pairs
    assert {"kv_usage_ratio:0.9", "kv_usage_ratio:0.95", "requests_waiting:1"} <= found.features
    assert "kv_usage_ratio:0.99" not in found.features
    assert list(tenths_up_to("x", 0.25)) == ["x:0.1", "x:0.2"]


def test_states_outcomes_and_lines_of_the_load() -> None:
    found = covered(
        {"row": "log", "at_ns": S, "source": "server.log", "text": "INFO:     Started server process [7]"},
        BEGIN,
        {
            "row": "log",
            "at_ns": 3 * S,
            "source": "server.log",
            "text": "WARNING 11-22 10:00:00 [s.py:7] preempted req-17",
        },
        {"row": "log", "at_ns": 3 * S, "source": "watch/logs/kernel.log", "text": "usb disconnected"},
        {"row": "state", "at_ns": 3 * S, "from": "healthy", "to": "dead", "replica": "server"},
        {"row": "end", "at_ns": 3 * S, "outcome": "http_error", "status": 500, "finish_reason": None},
    )
    assert {"state:healthy>dead", "outcome:http_error:500"} <= found.features
    assert list(found.lines) == ["WARNING preempted REQUEST"]
    assert list(found.idle_lines) == ["INFO Started server process Q"]


def test_templates_join_lines_that_differ_in_names_and_numbers() -> None:
    miner = TemplateMiner()
    first = miner.add("INFO Loading adapter alpha from store took N seconds")
    assert miner.add("INFO Loading adapter beta from store took N seconds") == first
    assert miner.add("INFO Unloading of every adapter took N seconds") != first
    assert len(miner) == 2
    assert miner.add("INFO Loading adapter gamma from shelf took N seconds") == first, "it has become more general"
    line = '(APIServer pid=7) INFO:     127.0.0.1:52000 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
    assert masked(line) == masked(line.replace("52000", "9").replace("pid=7", "pid=8"))
