"""Table of every metric of /metrics: name, type, labels and help text. The exporter uses it, and `python -m
loadchaos.report.metrics.metric_table` prints docs/metrics.md from it. Labels are ids and names from bounded sets, never
free text.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import partial
from typing import Literal

from loadchaos.analysis.capacity.step_columns import LATENCIES as CAPACITY_LATENCIES
from loadchaos.core.answer_labels import LABELS, MOST_VALUES, OTHER

# Limits of a page: Prometheus keeps each series for the whole run, and each label value is a series.
TRAFFICS = 12
REPLICAS = 5
ATTACKS = 6
FAILURES = 24
INCIDENTS = 12
GAP_SOURCES = 6
SERIES_A_TRAFFIC = 165 + len(LABELS) * (MOST_VALUES + 1)
SERIES_BESIDE = 208
SERIES_A_LOAD = 8 + len(CAPACITY_LATENCIES)
CAPACITY_LOADS = 60

Kind = Literal["counter", "gauge", "histogram", "summary"]


@dataclass(frozen=True)
class MetricSpec:
    """One metric family, `name` without the `_total` that the format adds to counters. All have the label `run` too."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]

    @property
    def sample(self) -> str:
        """Name in a query (for a histogram, without its suffix)."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _family(kind: Kind, series: str, text: str) -> MetricSpec:
    """A metric by its series as in a query, `name{label,label}`."""
    name, _, labels = series.rstrip("}").partition("{")
    return MetricSpec(name, kind, text, tuple(labels.split(",")) if labels else ())


_counter, _gauge = partial(_family, "counter"), partial(_family, "gauge")
_histogram, _summary = partial(_family, "histogram"), partial(_family, "summary")

METRICS: tuple[MetricSpec, ...] = (
    _counter("loadchaos_requests{traffic,outcome}", "Requests by outcome; missed requests were scheduled and not sent"),
    _counter(
        "loadchaos_answers{traffic,label,value}",
        f"Answers by label ({', '.join(f'`{label.name}`' for label in LABELS)}) and value as the server gave it; of a label "
        f"{MOST_VALUES} values have series, later ones are `{OTHER}`",
    ),
    _counter("loadchaos_arrivals_due{traffic}", "Requests scheduled: sent and missed"),
    _counter("loadchaos_arrivals_sent{traffic}", "Requests sent"),
    _gauge("loadchaos_requests_in_flight{traffic}", "Requests sent and not ended"),
    _counter("loadchaos_prompt_tokens_sent{traffic}", "Prompt tokens sent, as planned"),
    _counter("loadchaos_prompt_tokens_counted{traffic}", "Prompt tokens as reported in the usage of answers"),
    _counter("loadchaos_completion_tokens{traffic}", "Completion tokens as reported in the usage of answers"),
    _counter("loadchaos_images_sent{traffic}", "Images sent"),
    _counter("loadchaos_images_answered{traffic}", "Images in requests that were answered (outcome ok)"),
    _histogram(
        "loadchaos_ttft_seconds{traffic}",
        "Time to first token from the scheduled time; timeouts count as lower bounds; vLLM's bounds; exemplars",
    ),
    _histogram(
        "loadchaos_itl_seconds{traffic}",
        "Gaps between the chunks of answered requests; vLLM's bounds and 1, 2.5 and 5 ms",
    ),
    _histogram(
        "loadchaos_tpot_seconds{traffic}",
        "Time per output token after the first, of each answered request; the bounds of loadchaos_itl_seconds; exemplars",
    ),
    _histogram(
        "loadchaos_e2e_seconds{traffic}",
        "Time to the last byte from the scheduled time; timeouts count as lower bounds; vLLM's bounds; exemplars",
    ),
    _counter(
        "loadchaos_slo_requests{traffic}",
        "With `slo`: requests that had to succeed, also those not sent for want of a free slot; without the warm-up",
    ),
    _counter(
        "loadchaos_slo_good_requests{traffic}",
        "With `slo`: of these, requests that succeeded within every limit. Their ratio is the goodput",
    ),
    _gauge("loadchaos_traffic_info{traffic,endpoint}", "Endpoint of each kind of traffic; always 1"),
    _counter("loadchaos_sessions_begun{traffic}", "With `answers: live`: sessions begun"),
    _counter(
        "loadchaos_sessions_ended{traffic,end}",
        "Sessions by end: finished, lost (an answer was not ok), cut (no room in the context), left (we did not go on)",
    ),
    _counter(
        "loadchaos_session_turns{traffic,result}",
        "Turns of ended sessions by result: answered, lost, cut (no room in the context), left (not sent)",
    ),
    _counter(
        "loadchaos_session_tool_calls{traffic,result}",
        "Tool calls in ended sessions: ok (got a result), bad (no JSON object, or cut)",
    ),
    _histogram(
        "loadchaos_session_e2e_seconds{traffic}",
        "Time of finished sessions, time to think included; timeouts count as lower bounds; bounds of "
        "loadchaos_e2e_seconds; exemplars",
    ),
    _counter(
        "loadchaos_arrivals_missed{why}",
        "Requests scheduled and not sent: no_slot (no free user), server_down, stopped, worker_lost",
    ),
    _gauge("loadchaos_server_state{replica,state}", "1 for the current state of a replica, 0 for the others"),
    _counter("loadchaos_failures{id,severity,attribution}", "Failures by signature"),
    _counter(
        "loadchaos_wrong_answers", "Answers and probes whose content is wrong; `loadchaos_failures_total` has their ids"
    ),
    _counter("loadchaos_incidents", "Incidents opened"),
    _gauge(
        "loadchaos_incident_open{incident,id,severity,issue}",
        "1 while an incident is open, 0 when it is closed; its folder is `incident`-`id`; `issue`: known issue on GitHub",
    ),
    _counter("loadchaos_attacks{attack,result}", "Attacks by result: ok, failed, skipped"),
    _gauge("loadchaos_attacks_in_force{attack}", "Attacks begun and not ended"),
    _gauge("loadchaos_users", "Users (slots) of the load generator"),
    _gauge("loadchaos_workers", "Load-generating processes seen so far"),
    _gauge("loadchaos_generator_lag_seconds", "Send delay of the slowest worker in its last 0.25 s"),
    _summary("loadchaos_send_lag_seconds", "Send delay of requests (sent minus scheduled): `_sum` and `_count`"),
    _gauge("loadchaos_oldest_silence_seconds", "Longest time that a request in flight has waited for a byte"),
    _gauge(
        "loadchaos_longest_stall_seconds",
        "Longest time so far in which requests were in flight and neither a token nor an answer arrived",
    ),
    _counter("loadchaos_watch_gap_seconds{source}", "Time without data from a monitor"),
    _gauge("loadchaos_load_running", "1 while load is sent"),
    _gauge("loadchaos_load_paused", "1 while the load waits for the server to come back"),
    _gauge("loadchaos_limit_seconds{limit}", "Time limits of the profile: first_byte, between_bytes, total"),
    _gauge(
        "loadchaos_run_info{profile,target_kind,version}", "Profile, kind of target and version of the run; always 1"
    ),
    _gauge("loadchaos_gpu_memory_used_bytes", "GPU memory in use, all GPUs that dcgm-exporter or NVML report"),
    _gauge("loadchaos_gpu_memory_free_bytes", "GPU memory not in use"),
    _gauge("loadchaos_gpu_utilisation_ratio", "Share of time the busiest GPU computes, 0 to 1"),
    _gauge("loadchaos_gpu_temperature_celsius", "Temperature of the hottest GPU"),
    _gauge("loadchaos_gpu_power_watts", "Power draw of all GPUs"),
    _counter("loadchaos_gpu_xids", "Xids counted on all GPUs, if the exporter reports their number"),
    _gauge("loadchaos_host_memory_available_bytes", "Memory available on the host with the least"),
    _counter("loadchaos_host_oom_kills", "Processes killed for lack of memory on all hosts, since boot"),
    _gauge(
        "loadchaos_process_resident_bytes{replica,role}",
        "Resident memory of the server's processes on this machine, by role",
    ),
)
"""Metrics in the order of the page."""

CAPACITY: tuple[MetricSpec, ...] = (
    _gauge(
        "loadchaos_capacity_info{profile,by}",
        "Profile of the search, and whether it searches a rate or a concurrency; always 1",
    ),
    _gauge("loadchaos_capacity_running", "1 while the search runs, 0 when it has ended"),
    _gauge("loadchaos_capacity_goal_ratio", "Goodput that a load has to reach, 0 to 1"),
    _gauge("loadchaos_capacity_limit_seconds{limit}", "Limits of a good request, by their names in `slo`"),
    _gauge(
        "loadchaos_capacity_load{what}",
        "Loads found so far: `met` (the capacity: highest load proved to "
        "meet the goal), `not_met` (lowest load proved not to), `interval_low` and `interval_high` (of the capacity in "
        "the long run), `knee` (from there answers slow down)",
    ),
    _gauge("loadchaos_capacity_saturation_requests_per_second", "Most requests per second of an overloaded server"),
    _gauge("loadchaos_capacity_saturation_tokens_per_second", "Most output tokens per second of an overloaded server"),
    _gauge(
        "loadchaos_capacity_limiting_resource{resource}",
        "1 for the limiting resource, 0 for the others; at the end of the search",
    ),
    _gauge("loadchaos_capacity_steps", "Steps that have ended"),
    _gauge("loadchaos_capacity_current_load", "Load of the step in progress"),
    _gauge("loadchaos_capacity_current_requests", "Measured requests of the step in progress that have ended"),
    _gauge("loadchaos_capacity_current_goodput_ratio", "Goodput of the step in progress so far"),
    _gauge("loadchaos_capacity_step_load{load}", "Load of a step as a number"),
    _gauge("loadchaos_capacity_step_met{load}", "1: proved to meet the goal, 0: proved not to; no sample: undecided"),
    _gauge("loadchaos_capacity_step_requests{load}", "Requests measured in a step"),
    _gauge(
        "loadchaos_capacity_step_goodput_ratio{load,bound}",
        "Goodput of a step: `measured`, and the bounds `low` and `high` of its interval",
    ),
    _gauge("loadchaos_capacity_step_requests_per_second{load}", "Requests per second that a step completed"),
    _gauge("loadchaos_capacity_step_tokens_per_second{load}", "Output tokens per second that a step completed"),
    _gauge(
        "loadchaos_capacity_step_latency_seconds{load,latency,statistic}",
        "Latency of a step, one for each latency and statistic of the step's table",
    ),
)
"""Metrics of a capacity search in the order of the page. Loads are requests per second or users."""

SERVER: dict[str, str] = {
    "requests_running": "Requests that the server computes",
    "requests_waiting": "Requests in the server's queue",
    "requests_waiting_for_slot": "Requests that wait for a slot of the API server (LMDeploy)",
    "kv_usage_ratio": "Share of the KV cache in use, 0 to 1",
    "kv_blocks": "Blocks of the KV cache",
    "kv_block_size": "Tokens per block of the KV cache",
    "kv_cache_tokens": "Capacity of the KV cache in tokens",
    "prompt_tokens_total": "Prompt tokens processed",
    "generation_tokens_total": "Tokens generated",
    "iterations_total": "Steps of the engine",
    "preemptions_total": "Requests preempted for lack of KV cache",
    "requests_finished_total": "Requests finished",
    "requests_failed_total": "Requests failed (LMDeploy)",
    "spec_drafts_total": "Drafts of speculative decoding",
    "spec_draft_tokens_total": "Tokens drafted",
    "spec_accepted_tokens_total": "Tokens drafted and accepted",
    "mm_cache_queries_total": "Lookups in the multimodal cache",
    "mm_cache_hits_total": "Lookups that found their image in the multimodal cache",
    "prefix_cache_queries_total": "Tokens looked up in the prefix cache",
    "prefix_cache_hits_total": "Tokens found in the prefix cache",
    "prefix_cache_hit_ratio": "Share of tokens found in the prefix cache, 0 to 1 (LMDeploy)",
    "corrupted_requests_total": "Requests with NaN in their logits (vLLM)",
    "admission_rejections_total": "Requests refused at admission (vLLM)",
    "process_start_time_s": "When the server's process started, Unix time",
    "process_rss_bytes": "Resident memory of the server's process",
}
"""Help text of the server's own metrics, by their name in the ledger."""


def server_sample(name: str) -> str:
    """Name of a server metric on the page: `loadchaos_server_process_start_time_seconds` for `process_start_time_s`."""
    return "loadchaos_server_" + re.sub(r"_s$", "_seconds", name)


def markdown() -> str:
    lines = [
        "# Prometheus metrics",
        "",
        "A run serves its metrics on `http://127.0.0.1:9646/metrics`, or on a free port if 9646 is in use.",
        "`--exporter-port` gives another (0: a free one). The port is printed and written to `findings.jsonl`. The metrics",
        "come from the ledger: totals equal those of the ledger, with one worker or many, and after a restart of the",
        "follower. At the end of a run the last values stay for one more scrape, for at most five seconds.",
        "",
        "Every series has the label `run`, the name of the run folder. Label values are ids and names, never messages.",
        f"A kind of traffic has at most {SERIES_A_TRAFFIC} series, everything else together at most {SERIES_BESIDE}.",
        "Only traffic of [sessions](how-to/agentic.md) has the series of sessions.",
        f"The first {TRAFFICS} kinds of traffic, {REPLICAS} replicas, {FAILURES} failures and {ATTACKS} attacks have series",
        f"of their own; later ones are summed as `{OTHER}`. Only the first {INCIDENTS} incidents have a series.",
        "",
        "| name | type | labels | meaning |",
        "|---|---|---|---|",
        *(f"| `{s.sample}` | {s.kind} | {', '.join(f'`{x}`' for x in s.labels)} | {s.help} |" for s in METRICS),
        "",
        "## Metrics of the server",
        "",
        "These are the server's own metrics, with one name for all dialects and versions. Labels: `replica`, `engine`.",
        "They disappear five seconds after the server stops. Engines beyond the limit of series are summed as `other`",
        "(ratios: the highest).",
        "",
        "| name | type | meaning |",
        "|---|---|---|",
        *(
            f"| `{server_sample(n)}` | {'counter' if n.endswith('_total') else 'gauge'} | {text} |"
            for n, text in SERVER.items()
        ),
        "",
        "## A capacity search",
        "",
        "`loadchaos capacity` serves these at the same address, from its start to its end; `run` is the name of its folder.",
        "Loads are requests per second, or users with `--by concurrency`. The label `load` is the load of a step as text.",
        f"Of several steps with one load the longest has the series. A load has at most {SERIES_A_LOAD} series; only the",
        f"first {CAPACITY_LOADS} loads have series.",
        "",
        "| name | type | labels | meaning |",
        "|---|---|---|---|",
        *(f"| `{s.sample}` | {s.kind} | {', '.join(f'`{x}`' for x in s.labels)} | {s.help} |" for s in CAPACITY),
        "",
        "## Buckets",
        "",
        "Histograms have vLLM's own bounds, so that a panel can show client and server bucket by bucket. A p99 from",
        "buckets is coarse: `verdict.json` and `report.html` have quantiles from every request.",
        "",
        "## A finished run",
        "",
        "`loadchaos export RUN --openmetrics` writes the same series with the times of the run. RUN may be the folder of a",
        "capacity search. For Prometheus:",
        "",
        "    promtool tsdb create-blocks-from openmetrics RUN/export/openmetrics.txt blocks/",
        "    mv blocks/* PROMETHEUS_DATA/",
        "",
        "A running Prometheus finds the blocks within a minute. Its retention must reach back to the run.",
        "",
        "For VictoriaMetrics:",
        "",
        "    curl --data-binary @RUN/export/openmetrics.txt http://127.0.0.1:8428/api/v1/import/prometheus",
        "",
        "`--csv` and `--parquet` write the tables `requests`, `metrics` and `events` ([columns](how-to/tables.md)):",
        "",
        "    duckdb -c \"select traffic, quantile_cont(ttft_s, .99) from 'RUN/export/requests.parquet' group by traffic\"",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(markdown())
