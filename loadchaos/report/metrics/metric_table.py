"""Table of every metric of /metrics: name, type, labels and help text.

The exporter uses it, and `python -m loadchaos.report.metrics.metric_table` prints docs/metrics.md from it. Labels are
ids and names from bounded sets, never free text.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Literal

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
SERIES_A_LOAD = 16
CAPACITY_LOADS = 60


@dataclass(frozen=True)
class MetricSpec:
    """One metric family, `name` without the `_total` that the format adds to counters. All have the label `run` too."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "summary"]
    help: str
    labels: tuple[str, ...] = ()

    @property
    def sample(self) -> str:
        """Name in a query (for a histogram, without its suffix)."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "loadchaos_requests",
        "counter",
        "Requests by outcome; missed requests were scheduled and not sent",
        ("traffic", "outcome"),
    ),
    MetricSpec(
        "loadchaos_answers",
        "counter",
        f"Answers by label ({', '.join(f'`{label.name}`' for label in LABELS)}) and value as the server gave it; of a label "
        f"{MOST_VALUES} values have series, later ones are `{OTHER}`",
        ("traffic", "label", "value"),
    ),
    MetricSpec("loadchaos_arrivals_due", "counter", "Requests scheduled: sent and missed", ("traffic",)),
    MetricSpec("loadchaos_arrivals_sent", "counter", "Requests sent", ("traffic",)),
    MetricSpec("loadchaos_requests_in_flight", "gauge", "Requests sent and not ended", ("traffic",)),
    MetricSpec("loadchaos_prompt_tokens_sent", "counter", "Prompt tokens sent, as planned", ("traffic",)),
    MetricSpec(
        "loadchaos_prompt_tokens_counted", "counter", "Prompt tokens as reported in the usage of answers", ("traffic",)
    ),
    MetricSpec(
        "loadchaos_completion_tokens", "counter", "Completion tokens as reported in the usage of answers", ("traffic",)
    ),
    MetricSpec("loadchaos_images_sent", "counter", "Images sent", ("traffic",)),
    MetricSpec(
        "loadchaos_images_answered", "counter", "Images in requests that were answered (outcome ok)", ("traffic",)
    ),
    MetricSpec(
        "loadchaos_ttft_seconds",
        "histogram",
        "Time to first token from the scheduled time; timeouts count as lower bounds; vLLM's bounds; exemplars",
        ("traffic",),
    ),
    MetricSpec(
        "loadchaos_itl_seconds",
        "histogram",
        "Gaps between the chunks of answered requests; vLLM's bounds and 1, 2.5 and 5 ms",
        ("traffic",),
    ),
    MetricSpec(
        "loadchaos_tpot_seconds",
        "histogram",
        "Time per output token after the first, of each answered request; the bounds of loadchaos_itl_seconds; exemplars",
        ("traffic",),
    ),
    MetricSpec(
        "loadchaos_e2e_seconds",
        "histogram",
        "Time to the last byte from the scheduled time; timeouts count as lower bounds; vLLM's bounds; exemplars",
        ("traffic",),
    ),
    MetricSpec(
        "loadchaos_slo_requests",
        "counter",
        "With `slo`: requests that had to succeed, also those not sent for want of a free slot; without the warm-up",
        ("traffic",),
    ),
    MetricSpec(
        "loadchaos_slo_good_requests",
        "counter",
        "With `slo`: of these, requests that succeeded within every limit. Their ratio is the goodput",
        ("traffic",),
    ),
    MetricSpec(
        "loadchaos_traffic_info", "gauge", "Endpoint of each kind of traffic; always 1", ("traffic", "endpoint")
    ),
    MetricSpec("loadchaos_sessions_begun", "counter", "With `answers: live`: sessions begun", ("traffic",)),
    MetricSpec(
        "loadchaos_sessions_ended",
        "counter",
        "Sessions by end: finished, lost (an answer was not ok), cut (no room in the context), left (we did not go on)",
        ("traffic", "end"),
    ),
    MetricSpec(
        "loadchaos_session_turns",
        "counter",
        "Turns of ended sessions by result: answered, lost, cut (no room in the context), left (not sent)",
        ("traffic", "result"),
    ),
    MetricSpec(
        "loadchaos_session_tool_calls",
        "counter",
        "Tool calls in ended sessions: ok (got a result), bad (no JSON object, or cut)",
        ("traffic", "result"),
    ),
    MetricSpec(
        "loadchaos_session_e2e_seconds",
        "histogram",
        "Time of finished sessions, time to think included; timeouts count as lower bounds; bounds of "
        "loadchaos_e2e_seconds; exemplars",
        ("traffic",),
    ),
    MetricSpec(
        "loadchaos_arrivals_missed",
        "counter",
        "Requests scheduled and not sent: no_slot (no free user), server_down, stopped, worker_lost",
        ("why",),
    ),
    MetricSpec(
        "loadchaos_server_state",
        "gauge",
        "1 for the current state of a replica, 0 for the others",
        ("replica", "state"),
    ),
    MetricSpec("loadchaos_failures", "counter", "Failures by signature", ("id", "severity", "attribution")),
    MetricSpec(
        "loadchaos_wrong_answers",
        "counter",
        "Answers and probes whose content is wrong; `loadchaos_failures_total` has their ids",
    ),
    MetricSpec("loadchaos_incidents", "counter", "Incidents opened"),
    MetricSpec(
        "loadchaos_incident_open",
        "gauge",
        "1 while an incident is open, 0 when it is closed; its folder is `incident`-`id`; `issue`: known issue on GitHub",
        ("incident", "id", "severity", "issue"),
    ),
    MetricSpec("loadchaos_attacks", "counter", "Attacks by result: ok, failed, skipped", ("attack", "result")),
    MetricSpec("loadchaos_attacks_in_force", "gauge", "Attacks begun and not ended", ("attack",)),
    MetricSpec("loadchaos_users", "gauge", "Users (slots) of the load generator"),
    MetricSpec("loadchaos_workers", "gauge", "Load-generating processes seen so far"),
    MetricSpec("loadchaos_generator_lag_seconds", "gauge", "Send delay of the slowest worker in its last 0.25 s"),
    MetricSpec(
        "loadchaos_send_lag_seconds", "summary", "Send delay of requests (sent minus scheduled): `_sum` and `_count`"
    ),
    MetricSpec(
        "loadchaos_oldest_silence_seconds", "gauge", "Longest time that a request in flight has waited for a byte"
    ),
    MetricSpec("loadchaos_watch_gap_seconds", "counter", "Time without data from a monitor", ("source",)),
    MetricSpec("loadchaos_load_running", "gauge", "1 while load is sent"),
    MetricSpec("loadchaos_load_paused", "gauge", "1 while the load waits for the server to come back"),
    MetricSpec(
        "loadchaos_limit_seconds", "gauge", "Time limits of the profile: first_byte, between_bytes, total", ("limit",)
    ),
    MetricSpec(
        "loadchaos_run_info",
        "gauge",
        "Profile, kind of target and version of the run; always 1",
        ("profile", "target_kind", "version"),
    ),
    MetricSpec(
        "loadchaos_gpu_memory_used_bytes", "gauge", "GPU memory in use, all GPUs that dcgm-exporter or NVML report"
    ),
    MetricSpec("loadchaos_gpu_memory_free_bytes", "gauge", "GPU memory not in use"),
    MetricSpec("loadchaos_gpu_utilisation_ratio", "gauge", "Share of time the busiest GPU computes, 0 to 1"),
    MetricSpec("loadchaos_gpu_temperature_celsius", "gauge", "Temperature of the hottest GPU"),
    MetricSpec("loadchaos_gpu_power_watts", "gauge", "Power draw of all GPUs"),
    MetricSpec("loadchaos_gpu_xids", "counter", "Xids counted on all GPUs, if the exporter reports their number"),
    MetricSpec("loadchaos_host_memory_available_bytes", "gauge", "Memory available on the host with the least"),
    MetricSpec("loadchaos_host_oom_kills", "counter", "Processes killed for lack of memory on all hosts, since boot"),
    MetricSpec(
        "loadchaos_process_resident_bytes",
        "gauge",
        "Resident memory of the server's processes on this machine, by role",
        ("replica", "role"),
    ),
)
"""Metrics in the order of the page."""

_STEP = ("load",)
CAPACITY: tuple[MetricSpec, ...] = (
    MetricSpec(
        "loadchaos_capacity_info",
        "gauge",
        "Profile of the search, and whether it searches a rate or a concurrency; always 1",
        ("profile", "by"),
    ),
    MetricSpec("loadchaos_capacity_running", "gauge", "1 while the search runs, 0 when it has ended"),
    MetricSpec("loadchaos_capacity_goal_ratio", "gauge", "Goodput that a load has to reach, 0 to 1"),
    MetricSpec(
        "loadchaos_capacity_limit_seconds", "gauge", "Limits of a good request, by their names in `slo`", ("limit",)
    ),
    MetricSpec(
        "loadchaos_capacity_load",
        "gauge",
        "Loads found so far: `met` (the capacity: highest load proved to "
        "meet the goal), `not_met` (lowest load proved not to), `interval_low` and `interval_high` (of the capacity in "
        "the long run), `knee` (from there answers slow down)",
        ("what",),
    ),
    MetricSpec(
        "loadchaos_capacity_saturation_requests_per_second", "gauge", "Most requests per second of an overloaded server"
    ),
    MetricSpec(
        "loadchaos_capacity_saturation_tokens_per_second",
        "gauge",
        "Most output tokens per second of an overloaded server",
    ),
    MetricSpec(
        "loadchaos_capacity_limiting_resource",
        "gauge",
        "1 for the limiting resource, 0 for the others; at the end of the search",
        ("resource",),
    ),
    MetricSpec("loadchaos_capacity_steps", "gauge", "Steps that have ended"),
    MetricSpec("loadchaos_capacity_current_load", "gauge", "Load of the step in progress"),
    MetricSpec(
        "loadchaos_capacity_current_requests", "gauge", "Measured requests of the step in progress that have ended"
    ),
    MetricSpec("loadchaos_capacity_current_goodput_ratio", "gauge", "Goodput of the step in progress so far"),
    MetricSpec("loadchaos_capacity_step_load", "gauge", "Load of a step as a number", _STEP),
    MetricSpec(
        "loadchaos_capacity_step_met",
        "gauge",
        "1: proved to meet the goal, 0: proved not to; no sample: undecided",
        _STEP,
    ),
    MetricSpec("loadchaos_capacity_step_requests", "gauge", "Requests measured in a step", _STEP),
    MetricSpec(
        "loadchaos_capacity_step_goodput_ratio",
        "gauge",
        "Goodput of a step: `measured`, and the bounds `low` and `high` of its interval",
        (*_STEP, "bound"),
    ),
    MetricSpec(
        "loadchaos_capacity_step_requests_per_second", "gauge", "Requests per second that a step completed", _STEP
    ),
    MetricSpec(
        "loadchaos_capacity_step_tokens_per_second", "gauge", "Output tokens per second that a step completed", _STEP
    ),
    MetricSpec(
        "loadchaos_capacity_step_latency_seconds",
        "gauge",
        "Latency of a step: ttft, itl, tpot or e2e; p50 or p99",
        (*_STEP, "latency", "statistic"),
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
        "`--csv` and `--parquet` write the tables `requests`, `metrics` and `events`:",
        "",
        "    duckdb -c \"select traffic, quantile_cont(ttft_s, .99) from 'RUN/export/requests.parquet' group by traffic\"",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(markdown())
