"""Every metric of /metrics: its name, type, labels and sentence; the exporter and docs/metrics.md are made from it.

`python -m loadchaos.report.metrics.metric_table` prints docs/metrics.md.
Labels are ids and names out of bounded sets, never texts.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Literal

# What keeps a page small: Prometheus holds each series for the whole night, and a label is a series.
TRAFFICS = 12
REPLICAS = 5
ATTACKS = 6
FAILURES = 24
INCIDENTS = 12
GAP_SOURCES = 6
SERIES_A_TRAFFIC = 100
SERIES_BESIDE = 208
OTHER = "other"


@dataclass(frozen=True)
class Spec:
    """One family. `name` stands without `_total`, which the format adds to counters; `run` is a label of all."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "summary"]
    help: str
    labels: tuple[str, ...] = ()

    @property
    def sample(self) -> str:
        """The name a query uses (a histogram's without its suffix)."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


METRICS: tuple[Spec, ...] = (
    Spec("loadchaos_requests", "counter", "Requests by outcome; missed ones were due and never sent",
         ("traffic", "outcome")),
    Spec("loadchaos_arrivals_due", "counter", "Requests that were due: sent and missed", ("traffic",)),
    Spec("loadchaos_arrivals_sent", "counter", "Requests sent", ("traffic",)),
    Spec("loadchaos_requests_in_flight", "gauge", "Requests sent and not ended", ("traffic",)),
    Spec("loadchaos_prompt_tokens_sent", "counter", "Prompt tokens sent, as planned", ("traffic",)),
    Spec("loadchaos_prompt_tokens_counted", "counter", "Prompt tokens as the server counted them in its answers",
         ("traffic",)),
    Spec("loadchaos_completion_tokens", "counter", "Tokens received, as the server counted them in its answers",
         ("traffic",)),
    Spec("loadchaos_images_sent", "counter", "Images sent", ("traffic",)),
    Spec("loadchaos_images_answered", "counter", "Images in requests that were answered (outcome ok)", ("traffic",)),
    Spec("loadchaos_ttft_seconds", "histogram",
         "Time to first token, from the time a request was due; a timeout is a lower bound; vLLM's bounds; exemplars",
         ("traffic",)),
    Spec("loadchaos_itl_seconds", "histogram",
         "Gaps between the chunks of answered requests; vLLM's bounds and 1, 2.5 and 5 ms", ("traffic",)),
    Spec("loadchaos_e2e_seconds", "histogram",
         "Time to the last byte, from the time a request was due; a timeout is a lower bound; vLLM's bounds; exemplars",
         ("traffic",)),
    Spec("loadchaos_arrivals_missed", "counter",
         "Requests that were due and never sent: no_slot (no user free), server_down, stopped, worker_lost", ("why",)),
    Spec("loadchaos_server_state", "gauge", "1 for the state a replica is in, 0 for the others", ("replica", "state")),
    Spec("loadchaos_failures", "counter", "Failures by signature", ("id", "severity", "attribution")),
    Spec("loadchaos_incidents", "counter", "Incidents opened"),
    Spec("loadchaos_incident_open", "gauge",
         "1 while an incident is open, 0 when it is closed; its folder is `incident`-`id`; `issue`: the known one on GitHub",
         ("incident", "id", "severity", "issue")),
    Spec("loadchaos_attacks", "counter", "Attacks by result: ok, failed, skipped", ("attack", "result")),
    Spec("loadchaos_attacks_in_force", "gauge", "Attacks begun and not ended", ("attack",)),
    Spec("loadchaos_users", "gauge", "Users (slots) of the load generator"),
    Spec("loadchaos_workers", "gauge", "Load-generating processes that were heard of"),
    Spec("loadchaos_generator_lag_seconds", "gauge", "How late the latest worker sent in its last quarter of a second"),
    Spec("loadchaos_send_lag_seconds", "summary", "How late requests were sent (sent minus due): `_sum` and `_count`"),
    Spec("loadchaos_oldest_silence_seconds", "gauge", "The longest that a request in flight now waits for a byte"),
    Spec("loadchaos_watch_gap_seconds", "counter", "Time a watcher saw nothing", ("source",)),
    Spec("loadchaos_load_running", "gauge", "1 while load is sent"),
    Spec("loadchaos_load_paused", "gauge", "1 while the load waits for the server to come back"),
    Spec("loadchaos_limit_seconds", "gauge", "What the profile allows: first_byte, between_bytes, total", ("limit",)),
    Spec("loadchaos_run_info", "gauge", "What runs; always 1", ("profile", "target_kind", "version")),
    Spec("loadchaos_gpu_memory_used_bytes", "gauge", "GPU memory in use, all GPUs that dcgm-exporter or NVML tell of"),
    Spec("loadchaos_gpu_memory_free_bytes", "gauge", "GPU memory not in use"),
    Spec("loadchaos_gpu_utilisation_ratio", "gauge", "Share of time the busiest GPU computes, 0 to 1"),
    Spec("loadchaos_gpu_temperature_celsius", "gauge", "Temperature of the hottest GPU"),
    Spec("loadchaos_gpu_power_watts", "gauge", "Power that all GPUs take"),
    Spec("loadchaos_gpu_xids", "counter", "Xids counted on all GPUs, where their number is told"),
    Spec("loadchaos_host_memory_available_bytes", "gauge", "Memory available on the host that has least"),
    Spec("loadchaos_host_oom_kills", "counter", "Processes killed for want of memory on all hosts, since their boot"),
    Spec("loadchaos_process_resident_bytes", "gauge",
         "Memory of the server's processes by role, where they run on this machine", ("replica", "role")),
)  # fmt: skip
"""In the order of the page."""

SERVER: dict[str, str] = {
    "requests_running": "Requests the server computes",
    "requests_waiting": "Requests in the server's queue",
    "requests_waiting_for_slot": "Requests that wait for a place in the API server (LMDeploy)",
    "kv_usage_ratio": "Share of the KV cache in use, 0 to 1",
    "kv_blocks": "Blocks of the KV cache",
    "kv_block_size": "Tokens a block of the KV cache holds",
    "kv_cache_tokens": "Tokens the KV cache holds",
    "prompt_tokens_total": "Prompt tokens the server says it processed",
    "generation_tokens_total": "Tokens the server says it generated",
    "iterations_total": "Steps of the engine",
    "preemptions_total": "Requests the server put back for want of KV cache",
    "requests_finished_total": "Requests the server says it finished",
    "requests_failed_total": "Requests the server says it failed (LMDeploy)",
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
"""The server's own metrics, by their name in the ledger."""


def server_sample(name: str) -> str:
    """`process_start_time_s` -> `loadchaos_server_process_start_time_seconds`."""
    return "loadchaos_server_" + re.sub(r"_s$", "_seconds", name)


def markdown() -> str:
    """docs/metrics.md."""
    lines = [
        "# /metrics: every series, for Prometheus",
        "",
        "The follower of a run serves them on `http://127.0.0.1:9646/metrics` (`--exporter-port`, 0: a free port; the",
        "port is in `findings.jsonl`). They are folded from the ledger's rows: totals equal the ledger's, with one worker",
        "or many, and after a restart of the follower. When a run ends, its last numbers stay until they were scraped",
        "once more, for at most five seconds.",
        "",
        "Every series has the label `run`, the name of the run folder. Labels are ids and names, never messages. A traffic",
        f"has at most {SERIES_A_TRAFFIC} series, everything else together at most {SERIES_BESIDE}: later ones than the",
        f"first {TRAFFICS} kinds of traffic, {REPLICAS} replicas, {FAILURES} failures and {ATTACKS} attacks add up as",
        f"`{OTHER}`; of incidents the first {INCIDENTS} have a series.",
        "",
        "| name | type | labels | |",
        "|---|---|---|---|",
        *(f"| `{s.sample}` | {s.kind} | {', '.join(f'`{x}`' for x in s.labels)} | {s.help} |" for s in METRICS),
        "",
        "## The server's own numbers, under one name over dialects and versions",
        "",
        "Labels: `replica`, `engine`. They are there while the server gives them, and gone five seconds after it stops;",
        "engines beyond what the page has room for add up as `other` (ratios: the highest).",
        "",
        "| name | type | |",
        "|---|---|---|",
        *(
            f"| `{server_sample(n)}` | {'counter' if n.endswith('_total') else 'gauge'} | {text} |"
            for n, text in SERVER.items()
        ),
        "",
        "Histograms have vLLM's own bounds, so that a panel can lay client and server over each other bucket by bucket.",
        "p99 from buckets is coarse: exact quantiles, from every request's row, are in `verdict.json` and `report.html`.",
        "",
        "## A finished run",
        "",
        "`loadchaos export RUN --openmetrics` writes the same series with the times of the run, for Prometheus",
        "",
        "    promtool tsdb create-blocks-from openmetrics RUN/export/openmetrics.txt blocks/",
        "    mv blocks/* PROMETHEUS_DATA/",
        "",
        "(a running Prometheus sees the blocks within a minute; its retention must reach back to the run), and for",
        "VictoriaMetrics",
        "",
        "    curl --data-binary @RUN/export/openmetrics.txt http://127.0.0.1:8428/api/v1/import/prometheus",
        "",
        "`--csv` and `--parquet` write the rows themselves: `requests`, `metrics` and `events`.",
        "",
        "    duckdb -c \"select traffic, quantile_cont(ttft_s, .99) from 'RUN/export/requests.parquet' group by traffic\"",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(markdown())
