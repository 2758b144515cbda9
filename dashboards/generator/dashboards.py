"""Generate the five Grafana dashboards, one function for each.

`python -m dashboards.generator.dashboards FOLDER` writes them. They are committed under dashboards/, which a test
holds against this module. docs/metrics.md lists the metrics they query.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dashboards.generator.grafana import (
    Json,
    annotation,
    bars,
    curve,
    dashboard,
    data_source,
    heatmap,
    lines,
    row,
    single,
    stat,
    states,
    table,
    target,
    variable,
)

_RUN = 'run=~"$run"'
_TRAFFIC = f'{_RUN},traffic=~"$traffic"'
_SERVER = f'{_RUN},replica=~"$server"'
_RATE = "[$__rate_interval]"


def _rate(metric: str, selector: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{selector}}}{_RATE}))"


def _share(part: str, whole: str) -> str:
    """Query of a ratio, without samples where the denominator is 0."""
    return f"{part} / ({whole} > 0)"


def _quantile(q: float, kind: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, {_rate(f'loadchaos_{kind}_seconds_bucket', _TRAFFIC, labels)})"


def _server_hit_ratio(cache: str) -> str:
    hits, queries = (f"loadchaos_server_{cache}_cache_{x}_total" for x in ("hits", "queries"))
    return _share(_rate(hits, _SERVER, "replica"), _rate(queries, _SERVER, "replica"))


_STATE_QUERY = target(f"loadchaos_server_state{{{_SERVER}}} > 0", "{{replica}} {{state}}")
_STATE = states(
    "Server state",
    "State of each replica, from probes, processes, metrics, logs and received tokens (loadchaos_server_state).",
    _STATE_QUERY,
)
_STATE_NOW = stat("State", "Server state now (loadchaos_server_state).", _STATE_QUERY, name=True)

ANNOTATIONS = [
    annotation("Attacks", f"sum by (attack) (increase(loadchaos_attacks_total{{{_RUN}}}[2s])) > 0 or "
               f"sum by (attack) (loadchaos_attacks_in_force{{{_RUN}}}) > 0", "orange", "{{attack}}"),
    annotation("Deaths and hangs", f'sum by (replica, state) (loadchaos_server_state{{{_RUN},state=~"dead|hung"}}) > 0',
               "dark-red", "{{replica}} {{state}}"),
]  # fmt: skip


def _latency(kind: str, name: str, about: str) -> list[Json]:
    return [
        lines(
            f"{name} by traffic",
            f"{about} p50, p90 and p99 of the last seconds; attacks are shaded.",
            *(target(_quantile(q, kind, "traffic"), f"{{{{traffic}}}} p{round(q * 100)}") for q in (0.5, 0.9, 0.99)),
            unit="s",
        ),
        heatmap(
            f"{name} heatmap",
            f"{about} Answers per bucket; dots are single requests.",
            _rate(f"loadchaos_{kind}_seconds_bucket", _TRAFFIC, "le"),
        ),
    ]


def _run_summary() -> list[Json]:
    """Panels of the run at a glance."""
    outcomes = "loadchaos_requests_total"
    good = _share(_rate(outcomes, f'{_TRAFFIC},outcome="ok"'), _rate(outcomes, f'{_TRAFFIC},outcome!="missed"'))
    total = f"sum(loadchaos_requests_total{{{_TRAFFIC}}})"
    missed = f'sum(loadchaos_requests_total{{{_TRAFFIC},outcome="missed"}})'
    return [
        row("Summary"),
        _STATE_NOW,
        stat("Requests", "Requests scheduled so far (loadchaos_requests_total).", target(total), decimals=0),
        stat(
            "Answered",
            "Share of the requests sent in the last seconds that ended ok.",
            target(good),
            unit="percentunit",
            bad="below",
            limit=0.95,
        ),
        stat(
            "Not sent",
            "Share of scheduled requests that were not sent: no free user, server down (outcome missed).",
            target(_share(missed, total)),
            unit="percentunit",
            bad="above",
            limit=0.01,
        ),
        stat(
            "Failures",
            "Failures found, by any id (loadchaos_failures_total).",
            target(f"sum(loadchaos_failures_total{{{_RUN}}}) or vector(0)"),
            bad="above",
            decimals=0,
        ),
        stat(
            "Generator delay",
            "Send delay of the slowest worker (loadchaos_generator_lag_seconds). Above a few ms, latencies "
            "include the generator's own delay.",
            target(f"max(loadchaos_generator_lag_seconds{{{_RUN}}})"),
            unit="s",
            bad="above",
            limit=0.1,
        ),
        _STATE,
    ]


def _run_load() -> list[Json]:
    """Panels of requests, arrivals, users and attacks."""
    outcomes = "loadchaos_requests_total"
    return [
        row("Load"),
        lines(
            "Requests by outcome",
            "Requests ended per second by outcome (loadchaos_requests_total); only ok is an answer.",
            target(_rate(outcomes, _TRAFFIC, "outcome") + " > 0", "{{outcome}}"),
            unit="reqps",
            stack=True,
        ),
        lines(
            "Arrivals",
            "Scheduled, sent and not sent per second (loadchaos_arrivals_*). Scheduled above sent: the generator "
            "is too slow or the server is down.",
            target(_rate("loadchaos_arrivals_due_total", _TRAFFIC), "due"),
            target(_rate("loadchaos_arrivals_sent_total", _TRAFFIC), "sent"),
            target(_rate("loadchaos_arrivals_missed_total", _RUN, "why"), "missed: {{why}}"),
            unit="reqps",
        ),
        lines(
            "Users and requests in flight",
            "Users of the generator, and requests that wait for the server (loadchaos_users, loadchaos_requests_in_flight).",
            target(f"sum by (run) (loadchaos_users{{{_RUN}}})", "users"),
            target(f"sum by (traffic) (loadchaos_requests_in_flight{{{_TRAFFIC}}})", "in flight: {{traffic}}"),
        ),
        lines(
            "Attacks",
            "Attacks per second by result (loadchaos_attacks_total).",
            target(_rate("loadchaos_attacks_total", _RUN, "attack, result") + " > 0", "{{attack}} {{result}}"),
            unit="ops",
            points=True,
        ),
    ]


def _run_latency() -> list[Json]:
    """Panels of TTFT, ITL, TPOT and E2E."""
    return [
        row("Latency of answered requests"),
        *_latency("ttft", "TTFT", "Time to first token, from the scheduled time of the request."),
        *_latency("itl", "ITL", "Gaps between the chunks of an answer."),
        *_latency("tpot", "TPOT", "Time per output token of a request, after its first token."),
        *_latency("e2e", "E2E", "Time to the last byte, from the scheduled time of the request."),
    ]


def _run_throughput() -> list[Json]:
    """Panels of tokens, images and the generator's delay."""
    return [
        row("Throughput"),
        lines(
            "Tokens",
            "Prompt tokens sent and tokens received per second (loadchaos_prompt_tokens_sent_total, "
            "loadchaos_completion_tokens_total). Received tokens count when an answer ends.",
            target(_rate("loadchaos_prompt_tokens_sent_total", _TRAFFIC), "sent"),
            target(_rate("loadchaos_completion_tokens_total", _TRAFFIC), "received"),
        ),
        lines(
            "Requests answered",
            "Requests with the outcome ok per second, and those within every limit of slo "
            "(loadchaos_slo_good_requests_total), where the profile has one.",
            target(_rate("loadchaos_requests_total", f'{_TRAFFIC},outcome="ok"'), "answered"),
            target(_rate("loadchaos_slo_good_requests_total", _TRAFFIC), "within slo"),
        ),
        lines(
            "Goodput",
            "Share of requests within every limit of slo, of those that had to succeed.",
            target(
                _share(
                    _rate("loadchaos_slo_good_requests_total", _TRAFFIC, "traffic"),
                    _rate("loadchaos_slo_requests_total", _TRAFFIC, "traffic"),
                ),
                "{{traffic}}",
            ),
            unit="percentunit",
        ),
        lines(
            "Images",
            "Images sent, and images in answered requests, per second.",
            target(_rate("loadchaos_images_sent_total", _TRAFFIC), "sent"),
            target(_rate("loadchaos_images_answered_total", _TRAFFIC), "answered"),
        ),
        lines(
            "Longest wait",
            "Longest time that a request in flight has waited for a byte "
            "(loadchaos_oldest_silence_seconds): the first sign of a hang.",
            target(f"max by (run) (loadchaos_oldest_silence_seconds{{{_RUN}}})", "{{run}}"),
            unit="s",
        ),
        lines(
            "Send delay",
            "Mean and worst send delay of the generator (loadchaos_send_lag_seconds, loadchaos_generator_lag_seconds).",
            target(
                _share(_rate("loadchaos_send_lag_seconds_sum", _RUN), _rate("loadchaos_send_lag_seconds_count", _RUN)),
                "mean",
            ),
            target(f"max by (run) (loadchaos_generator_lag_seconds{{{_RUN}}})", "worst"),
            unit="s",
        ),
    ]


def _run_sessions() -> list[Json]:
    """Folded panels of sessions, for profiles with `answers: live`."""
    begun, ended = "loadchaos_sessions_begun_total", "loadchaos_sessions_ended_total"
    turns = "loadchaos_session_turns_total"
    return [
        row(
            "Sessions (conversations with live answers)",
            [
                lines(
                    "Sessions by end",
                    "Sessions ended so far (loadchaos_sessions_ended_total). lost: an answer was not ok; cut: no room in "
                    "the context; left: we did not send the rest.",
                    target(f"sum by (end) ({ended}{{{_TRAFFIC}}})", "{{end}}"),
                ),
                lines(
                    "Turns without an answer",
                    "Turns of ended sessions so far (loadchaos_session_turns_total): lost with an answer that was not "
                    "ok, cut for want of room in the context, left when we stopped.",
                    target(f'sum by (result) ({turns}{{{_TRAFFIC},result!="answered"}})', "{{result}}"),
                ),
                lines(
                    "Session time by traffic",
                    "Time of finished sessions, time to think included: p50 and p90 of the last seconds.",
                    *(
                        target(_quantile(q, "session_e2e", "traffic"), f"{{{{traffic}}}} p{round(q * 100)}")
                        for q in (0.5, 0.9)
                    ),
                    unit="s",
                ),
                lines(
                    "Open sessions and tool calls",
                    "Sessions begun and not ended, and tool calls of ended sessions per second "
                    "(loadchaos_session_tool_calls_total; bad: its arguments were no JSON object).",
                    target(
                        f"sum by (traffic) ({begun}{{{_TRAFFIC}}}) - sum by (traffic) ({ended}{{{_TRAFFIC}}})",
                        "open: {{traffic}}",
                    ),
                    target(_rate("loadchaos_session_tool_calls_total", _TRAFFIC, "result"), "tool calls/s: {{result}}"),
                ),
            ],
        ),
    ]


def _by_endpoint(expr: str) -> str:
    """Query of a metric by traffic, joined with the endpoint of the traffic."""
    return f"{expr} * on (run, traffic) group_left (endpoint) loadchaos_traffic_info{{{_TRAFFIC}}}"


def _run_endpoints() -> list[Json]:
    """Folded panels by endpoint, for profiles with more than one."""
    ok, all_ends = (
        f"sum by (endpoint) ({_by_endpoint(f'rate(loadchaos_requests_total{{{selector}}}{_RATE})')})"
        for selector in (f'{_TRAFFIC},outcome="ok"', f'{_TRAFFIC},outcome!="missed"')
    )
    slow = _by_endpoint(f"rate(loadchaos_e2e_seconds_bucket{{{_TRAFFIC}}}{_RATE})")
    first = _by_endpoint(f"rate(loadchaos_ttft_seconds_bucket{{{_TRAFFIC}}}{_RATE})")
    return [
        row(
            "By endpoint",
            [
                lines(
                    "Requests answered by endpoint",
                    "Requests with the outcome ok per second (loadchaos_requests_total, loadchaos_traffic_info).",
                    target(ok, "{{endpoint}}"),
                    unit="reqps",
                ),
                lines(
                    "Share answered by endpoint",
                    "Share of the requests ended in the last seconds that were ok.",
                    target(_share(ok, f"({all_ends})"), "{{endpoint}}"),
                    unit="percentunit",
                    top=1,
                ),
                *(
                    lines(
                        f"{title} by endpoint",
                        f"{about} p50 and p99 of the last seconds.",
                        *(
                            target(
                                f"histogram_quantile({q}, sum by (le, endpoint) ({expr}))",
                                f"{{{{endpoint}}}} p{round(q * 100)}",
                            )
                            for q in (0.5, 0.99)
                        ),
                        unit="s",
                    )
                    for title, about, expr in (
                        ("TTFT", "Time to first token; embeddings and scores have none.", first),
                        ("E2E", "Time to the last byte.", slow),
                    )
                ),
            ],
        ),
    ]


def run() -> Json:
    """Dashboard of the load as its clients see it."""
    panels = [
        *_run_summary(),
        *_run_load(),
        *_run_latency(),
        *_run_throughput(),
        *_run_sessions(),
        *_run_endpoints(),
    ]
    return dashboard(
        "loadchaos-run",
        "loadchaos / Run",
        "The load of loadchaos as its clients see it",
        panels,
        ANNOTATIONS,
        "now-15m",
    )


def _gauge(name: str) -> str:
    return f"loadchaos_server_{name}{{{_SERVER}}}"


def _all_hosts(name: str, aggregate: str = "sum") -> str:
    return f"{aggregate} (loadchaos_{name}{{{_RUN}}})"


def _server_summary() -> list[Json]:
    """Panels of the server at a glance."""
    return [
        row("Summary"),
        _STATE_NOW,
        stat(
            "Running",
            "Requests that the server computes (loadchaos_server_requests_running).",
            target(f"sum({_gauge('requests_running')})"),
            decimals=0,
        ),
        stat(
            "Waiting",
            "Requests in the server's queue (loadchaos_server_requests_waiting).",
            target(f"sum({_gauge('requests_waiting')})"),
            decimals=0,
        ),
        stat(
            "KV cache",
            "Share of the KV cache in use, the fullest engine (loadchaos_server_kv_usage_ratio).",
            target(f"max({_gauge('kv_usage_ratio')})"),
            unit="percentunit",
            bad="above",
            limit=0.95,
        ),
        stat(
            "Uptime",
            "Time since the server process started (loadchaos_server_process_start_time_seconds).",
            target(f"time() - max({_gauge('process_start_time_seconds')})"),
            unit="s",
        ),
        stat(
            "Monitoring gaps",
            "Time without data from a monitor (loadchaos_watch_gap_seconds_total).",
            target(f"sum(loadchaos_watch_gap_seconds_total{{{_RUN}}}) or vector(0)"),
            unit="s",
            bad="above",
            limit=10,
        ),
        _STATE,
    ]


def _server_queues() -> list[Json]:
    """Panels of queues, KV cache and cache hits."""
    prefix = f"{_server_hit_ratio('prefix')} or {_gauge('prefix_cache_hit_ratio')}"
    return [
        row("Queues and KV cache"),
        lines(
            "Queue",
            "Requests running and waiting (server), and in flight (client).",
            target(_gauge("requests_running"), "{{replica}}/{{engine}} running"),
            target(_gauge("requests_waiting"), "{{replica}}/{{engine}} waiting"),
            target(f"sum by (run) (loadchaos_requests_in_flight{{{_RUN}}})", "in flight (client)"),
        ),
        lines(
            "KV cache in use",
            "Share in use per engine (loadchaos_server_kv_usage_ratio).",
            target(_gauge("kv_usage_ratio"), "{{replica}}/{{engine}}"),
            unit="percentunit",
            top=1,
        ),
        lines(
            "Preemptions",
            "Requests preempted for lack of KV cache, per second (loadchaos_server_preemptions_total; vLLM and SGLang).",
            target(_rate("loadchaos_server_preemptions_total", _SERVER, "replica"), "{{replica}}"),
            unit="ops",
        ),
        lines(
            "Cache hits",
            "Hit ratio of the prefix cache and the multimodal cache.",
            target(prefix, "{{replica}} prefix"),
            target(_server_hit_ratio("mm"), "{{replica}} multimodal"),
            unit="percentunit",
            top=1,
        ),
    ]


def _server_engine() -> list[Json]:
    """Panels of tokens, steps and finished requests."""
    tokens_per_step = _share(
        _rate("loadchaos_server_generation_tokens_total", _SERVER, "replica"),
        _rate("loadchaos_server_iterations_total", _SERVER, "replica"),
    )
    return [
        row("Engine"),
        lines(
            "Tokens",
            "Prompt tokens processed and tokens generated per second (server).",
            target(_rate("loadchaos_server_prompt_tokens_total", _SERVER, "replica"), "{{replica}} prompt"),
            target(_rate("loadchaos_server_generation_tokens_total", _SERVER, "replica"), "{{replica}} generated"),
        ),
        lines(
            "Engine steps",
            "Engine steps per second (loadchaos_server_iterations_total): 0 while requests run means a hang.",
            target(_rate("loadchaos_server_iterations_total", _SERVER, "replica"), "{{replica}}"),
            unit="ops",
        ),
        lines(
            "Tokens per step",
            "Tokens generated per engine step: how full the batches are.",
            target(tokens_per_step, "{{replica}}"),
        ),
        lines(
            "Requests finished",
            "Per second, by server (loadchaos_server_requests_finished_total) and client.",
            target(_rate("loadchaos_server_requests_finished_total", _SERVER, "replica"), "{{replica}}"),
            target(_rate("loadchaos_requests_total", f'{_RUN},outcome="ok"'), "ok (client)"),
            unit="reqps",
        ),
    ]


def _server_drafts() -> list[Json]:
    """Panels of speculative decoding."""
    accepted = _share(
        _rate("loadchaos_server_spec_accepted_tokens_total", _SERVER, "replica"),
        _rate("loadchaos_server_spec_draft_tokens_total", _SERVER, "replica"),
    )
    return [
        row("Speculative decoding"),
        lines(
            "Drafts accepted",
            "Share of drafted tokens that were accepted.",
            target(accepted, "{{replica}}"),
            unit="percentunit",
            top=1,
        ),
        lines(
            "Drafting",
            "Drafts and drafted tokens per second.",
            target(_rate("loadchaos_server_spec_drafts_total", _SERVER, "replica"), "{{replica}} drafts"),
            target(_rate("loadchaos_server_spec_draft_tokens_total", _SERVER, "replica"), "{{replica}} tokens"),
            unit="ops",
        ),
    ]


def _server_processes() -> list[Json]:
    """Panels of process memory."""
    return [
        row("Processes"),
        lines(
            "Memory by process",
            "Resident memory of the server's processes on this machine (loadchaos_process_resident_bytes).",
            target(f"loadchaos_process_resident_bytes{{{_SERVER}}}", "{{replica}} {{role}}"),
            unit="bytes",
        ),
        lines(
            "Memory (server metric)",
            "Resident memory of the API server (loadchaos_server_process_rss_bytes).",
            target(_gauge("process_rss_bytes"), "{{replica}}"),
            unit="bytes",
        ),
    ]


def _server_hosts() -> list[Json]:
    """Folded panels of GPUs and hosts."""
    return [
        row(
            "Hosts (from dcgm-exporter, node-exporter or NVML)",
            [
                lines(
                    "GPU memory",
                    "All GPUs together (loadchaos_gpu_memory_used_bytes, loadchaos_gpu_memory_free_bytes).",
                    target(_all_hosts("gpu_memory_used_bytes"), "used"),
                    target(_all_hosts("gpu_memory_free_bytes"), "free"),
                    unit="bytes",
                    stack=True,
                ),
                lines(
                    "GPU busy",
                    "Share of time the busiest GPU computes (loadchaos_gpu_utilisation_ratio): 0 while "
                    "requests run means that the engine waits.",
                    target(_all_hosts("gpu_utilisation_ratio", "max"), "busiest"),
                    unit="percentunit",
                    top=1,
                ),
                lines(
                    "GPU temperature",
                    "The hottest GPU (loadchaos_gpu_temperature_celsius).",
                    target(_all_hosts("gpu_temperature_celsius", "max"), "hottest"),
                    unit="celsius",
                ),
                lines(
                    "GPU power",
                    "All GPUs together (loadchaos_gpu_power_watts).",
                    target(_all_hosts("gpu_power_watts"), "power"),
                    unit="watt",
                ),
                lines(
                    "Host memory available",
                    "On the host with the least (loadchaos_host_memory_available_bytes).",
                    target(_all_hosts("host_memory_available_bytes", "min"), "available"),
                    unit="bytes",
                ),
                lines(
                    "Xids and processes killed for memory",
                    "Counted by the hosts (loadchaos_gpu_xids_total, "
                    "loadchaos_host_oom_kills_total): each increase is an incident.",
                    target(_all_hosts("gpu_xids_total"), "Xids"),
                    target(_all_hosts("host_oom_kills_total"), "OOM kills"),
                ),
            ],
        ),
    ]


def server() -> Json:
    """Dashboard of the server's own metrics next to those of the client."""
    panels = [
        *_server_summary(),
        *_server_queues(),
        *_server_engine(),
        *_server_drafts(),
        *_server_processes(),
        *_server_hosts(),
    ]
    about = "The server's own metrics next to those of the client"
    return dashboard("loadchaos-server", "loadchaos / Server", about, panels, ANNOTATIONS, "now-15m")


def _failure_summary() -> list[Json]:
    """Panels of failure counts at a glance."""

    def count(selector: str) -> Json:
        selected = f"loadchaos_failures_total{{{_RUN},{selector}}}"
        return target(f"sum(last_over_time({selected}[$__range])) or vector(0)", instant=True)

    return [
        row("Summary"),
        stat(
            "Failures",
            "All failures, also those that are not the server's fault (loadchaos_failures_total).",
            count('id!=""'),
            bad="above",
            decimals=0,
        ),
        stat(
            "Engine deaths",
            "Failures of severity engine_death.",
            count('severity="engine_death"'),
            bad="above",
            decimals=0,
        ),
        stat("Hangs", "Failures of severity hang.", count('severity="hang"'), bad="above", decimals=0),
        stat(
            "Wrong answers",
            "Answers and probes whose content is wrong (loadchaos_wrong_answers_total); By id has their kinds.",
            target(
                f"sum(last_over_time(loadchaos_wrong_answers_total{{{_RUN}}}[$__range])) or vector(0)", instant=True
            ),
            bad="above",
            decimals=0,
        ),
        stat(
            "Unexplained",
            "Failures without a matching signature: the incident has the evidence.",
            count('id=~".*unexplained.*|.*unknown.*"'),
            bad="above",
            decimals=0,
        ),
        stat(
            "Incidents",
            "Incidents opened (loadchaos_incidents_total); each is a folder of the run.",
            target(f"sum(last_over_time(loadchaos_incidents_total{{{_RUN}}}[$__range]))", instant=True),
            bad="above",
            decimals=0,
        ),
    ]


def _failure_tables() -> list[Json]:
    """Tables of failures by id and of incidents."""
    found = f"loadchaos_failures_total{{{_RUN}}}"
    by = "id, severity, attribution"
    last = f"last_over_time({found}[$__range])"
    first = f"min by ({by}) (min_over_time(timestamp({found})[$__range:$__interval])) * 1000"
    # An open incident gets a better id when its cause is read: the newest id of each incident counts.
    open_since = f"timestamp(loadchaos_incident_open{{{_RUN}}})[$__range:$__interval]"
    newest = f"max by (run, incident, id, severity, issue) (max_over_time({open_since})) * 1000"
    incident = f"topk by (run, incident) (1, {newest})"
    return [
        table(
            "By id",
            "Failures by id, with count and time of the first one.",
            [("count", f"sum by ({by}) ({last})", "short"), ("first seen", first, "dateTimeAsIso")],
            "id",
        ),
        table(
            "Incidents",
            "The folder incidents/`incident`-`id` of the run has the evidence; `issue` links to the known issue.",
            [("last seen", incident, "dateTimeAsIso")],
            "incident",
            link=("issue", "https://github.com/${__value.raw}"),
        ),
    ]


def _failures_over_time() -> list[Json]:
    """Charts of failures, unanswered requests and server states."""
    found = f"loadchaos_failures_total{{{_RUN}}}"
    return [
        row("Over time"),
        lines(
            "Failures",
            "Failures so far by id (loadchaos_failures_total).",
            target(f"sum by (id) ({found})", "{{id}}"),
        ),
        lines(
            "Unanswered requests",
            "Requests ended per second without an answer, by outcome.",
            target(
                _rate("loadchaos_requests_total", f'{_TRAFFIC},outcome!~"ok|missed|aborted|unfinished"', "outcome")
                + " > 0",
                "{{outcome}}",
            ),
            unit="reqps",
            stack=True,
        ),
        lines(
            "Wrong answers",
            "Answers and probes whose content is wrong, so far (loadchaos_wrong_answers_total).",
            target(f"sum by (run) (loadchaos_wrong_answers_total{{{_RUN}}})", "{{run}}"),
        ),
        _STATE,
    ]


def failures() -> Json:
    """Dashboard of failures: ids, times and known issues."""
    panels = [*_failure_summary(), *_failure_tables(), *_failures_over_time()]
    about = "Failures by id, when they occurred, and their known issues"
    return dashboard("loadchaos-failures", "loadchaos / Failures", about, panels, ANNOTATIONS, "now-1h")


def _last_of_run(metric: str, selector: str = _TRAFFIC) -> str:
    return f"sum by (run) (last_over_time({metric}{{{selector}}}[$__range]))"


def _quantile_of_run(q: float, kind: str) -> str:
    buckets = f"last_over_time(loadchaos_{kind}_seconds_bucket{{{_TRAFFIC}}}[$__range])"
    return f"histogram_quantile({q}, sum by (run, le) ({buckets}))"


_SENT_BY_RUN = _last_of_run("loadchaos_arrivals_sent_total")
_OK_BY_RUN = _last_of_run("loadchaos_requests_total", f'{_TRAFFIC},outcome="ok"')
_GOODPUT_BY_RUN = _share(
    _last_of_run("loadchaos_slo_good_requests_total"), _last_of_run("loadchaos_slo_requests_total")
)
_SERVER_MEMORY = f"loadchaos_process_resident_bytes{{{_SERVER}}}"


def _soak_table() -> list[Json]:
    """Table with a row per run."""
    failed = _last_of_run("loadchaos_failures_total", _RUN)
    return [
        table(
            "Runs",
            "One row per run in the time range: requests sent, outcomes and failures.",
            [
                (
                    "profile",
                    f"max by (run, profile, version) (last_over_time(loadchaos_run_info{{{_RUN}}}[$__range]))",
                    "short",
                ),
                ("sent", _SENT_BY_RUN, "short"),
                ("answered", _share(_OK_BY_RUN, _SENT_BY_RUN), "percentunit"),
                ("goodput", _GOODPUT_BY_RUN, "percentunit"),
                ("TTFT p50", _quantile_of_run(0.5, "ttft"), "s"),
                ("TTFT p99", _quantile_of_run(0.99, "ttft"), "s"),
                ("E2E p99", _quantile_of_run(0.99, "e2e"), "s"),
                ("failures", f"{failed} or 0 * ({_SENT_BY_RUN})", "short"),
                ("incidents", _last_of_run("loadchaos_incidents_total", _RUN), "short"),
                ("wrong answers", _last_of_run("loadchaos_wrong_answers_total", _RUN), "short"),
                ("turns lost", _last_of_run("loadchaos_session_turns_total", f'{_TRAFFIC},result="lost"'), "short"),
            ],
            "run",
            hide=["Value #A"],
        ),
    ]


def _soak_bars() -> list[Json]:
    """Bars that compare runs."""
    growth = f"max by (run) (max_over_time({_SERVER_MEMORY}[$__range]) / min_over_time({_SERVER_MEMORY}[$__range]))"
    return [
        bars(
            "TTFT p99 by run",
            "Over all answers of a run; coarse, because it comes from buckets.",
            target(_quantile_of_run(0.99, "ttft"), "{{run}}", instant=True),
            unit="s",
        ),
        bars(
            "Answered by run",
            "Share of the requests sent that ended ok.",
            target(_share(_OK_BY_RUN, _SENT_BY_RUN), "{{run}}", instant=True),
            unit="percentunit",
        ),
        bars(
            "Goodput by run",
            "Share of requests within every limit of slo, where the profile has one; see the page of "
            "`loadchaos capacity` for the curve of a search.",
            target(_GOODPUT_BY_RUN, "{{run}}", instant=True),
            unit="percentunit",
        ),
        bars(
            "Tokens received by run",
            "As the server counted them (loadchaos_completion_tokens_total).",
            target(_last_of_run("loadchaos_completion_tokens_total"), "{{run}}", instant=True),
        ),
        bars(
            "Memory growth by run",
            "Highest resident memory of a server process divided by its lowest; 1 means no growth.",
            target(growth, "{{run}}", instant=True),
            unit="none",
        ),
    ]


def _soak_over_time() -> list[Json]:
    """Charts over all runs."""
    p99 = f"histogram_quantile(0.99, {_rate('loadchaos_ttft_seconds_bucket', _TRAFFIC, 'run, le')})"
    return [
        row("Over time"),
        lines("TTFT p99", "By run.", target(p99, "{{run}}"), unit="s"),
        lines(
            "Tokens received",
            "Per second, by run.",
            target(_rate("loadchaos_completion_tokens_total", _TRAFFIC, "run"), "{{run}}"),
        ),
        lines(
            "KV cache in use",
            "The fullest engine, by run: a leak shows as a rising minimum.",
            target(f"max by (run) (loadchaos_server_kv_usage_ratio{{{_SERVER}}})", "{{run}}"),
            unit="percentunit",
            top=1,
        ),
        lines(
            "Memory of the server",
            "All server processes on this machine, by run.",
            target(f"sum by (run) ({_SERVER_MEMORY})", "{{run}}"),
            unit="bytes",
        ),
        lines(
            "Failures so far",
            "By run and id.",
            target(f"sum by (run, id) (loadchaos_failures_total{{{_RUN}}})", "{{run}} {{id}}"),
        ),
        lines(
            "Unanswered",
            "Share of requests ended in the last seconds without an answer, by run.",
            target(
                "1 - "
                + _share(
                    _rate("loadchaos_requests_total", f'{_TRAFFIC},outcome="ok"', "run"),
                    _rate("loadchaos_requests_total", _TRAFFIC, "run"),
                ),
                "{{run}}",
            ),
            unit="percentunit",
            top=1,
        ),
    ]


def soak() -> Json:
    """Dashboard that compares the runs of a soak."""
    panels = [*_soak_table(), *_soak_bars(), *_soak_over_time()]
    about = "Runs compared: the runs of a soak, or before and after a change"
    return dashboard("loadchaos-soak", "loadchaos / Soak", about, panels, ANNOTATIONS[1:], "now-7d")


# -- capacity --------------------------------------------------------------------------------------------------------


def _found(metric: str, selector: str = "", by: str = "") -> str:
    """Query of the newest value in the time range, also after the search."""
    labels = f"{_RUN},{selector}" if selector else _RUN
    return f"max{f' by ({by})' if by else ''} (last_over_time(loadchaos_capacity_{metric}{{{labels}}}[$__range]))"


def _step(metric: str, selector: str = "") -> str:
    return _found(f"step_{metric}", selector, "load")


def _beside_steps(query: str) -> str:
    """Query of a value of the whole search, once for each load: a level line."""
    return f"0 * {_step('load')} + on () group_left () {query}"


_LOAD = ("load", _step("load"))


def _capacity_answer() -> list[Json]:
    """Panels of the answer of the search."""
    limiting = _found("limiting_resource", "", "resource")
    interval = stat(
        "Interval",
        "Interval of the capacity in the long run.",
        target(_found("load", 'what=~"interval_low|interval_high"', "what"), "{{what}}"),
    )
    interval["options"]["textMode"] = "value_and_name"
    return [
        row("Answer"),
        stat(
            "Capacity",
            "Highest load that was proved to meet the goal (loadchaos_capacity_load): requests per second, or users.",
            target(_found("load", 'what="met"')),
        ),
        stat(
            "Does not meet the goal",
            "Lowest load that was proved not to meet the goal.",
            target(_found("load", 'what="not_met"')),
        ),
        interval,
        stat(
            "Saturation",
            "Most requests per second that an overloaded server completed; empty if no step overloaded it.",
            target(_found("saturation_requests_per_second")),
            unit="reqps",
        ),
        stat(
            "Limiting resource",
            "What limits the server, from its counters (loadchaos_capacity_limiting_resource); at the end of the search.",
            target(f"{limiting} > 0", "{{resource}}"),
            name=True,
        ),
        stat(
            "Steps",
            "Steps that have ended.",
            target(_found("steps")),
            decimals=0,
        ),
    ]


def _capacity_curves() -> list[Json]:
    """Panels of goodput, throughput and latency over the load."""
    about = "Each point is the longest step with its load."
    return [
        row("Curves over the load"),
        curve(
            "Goodput",
            f"Share of requests within every limit, with its interval, and the goal. {about}",
            _LOAD,
            [
                *((name, _step("goodput_ratio", f'bound="{bound}"')) for name, bound in _BOUNDS),
                ("goal", _beside_steps(_found("goal_ratio"))),
            ],
            unit="percentunit",
        ),
        curve(
            "Requests completed",
            f"Requests per second that the server completed. {about}",
            _LOAD,
            [("completed", _step("requests_per_second"))],
            unit="reqps",
        ),
        *(
            curve(
                title,
                f"p50 and p99 of answered requests, and the limit, if it has one. {about}",
                _LOAD,
                [
                    *(
                        (name, _step("latency_seconds", f'latency="{kind}",statistic="{name}"'))
                        for name in ("p50", "p99")
                    ),
                    ("limit", _beside_steps(_found("limit_seconds", f'limit=~"{kind}.*"'))),
                ],
                unit="s",
            )
            for kind, title in (("ttft", "TTFT"), ("itl", "ITL"), ("tpot", "TPOT"), ("e2e", "E2E"))
        ),
        curve(
            "Output tokens",
            f"Output tokens per second, as the server counted them. {about}",
            _LOAD,
            [("output tokens/s", _step("tokens_per_second"))],
        ),
        curve(
            "Requests measured",
            f"Requests that the figures of a step rest on. {about}",
            _LOAD,
            [("requests", _step("requests"))],
        ),
    ]


_BOUNDS = (("measured", "measured"), ("interval low", "low"), ("interval high", "high"))


def _capacity_search() -> list[Json]:
    """Panels of the search over time."""
    load = "loadchaos_capacity_load"
    return [
        row("The search"),
        lines(
            "Loads tried",
            "Load of the step in progress, and the loads that were proved to meet the goal and not to "
            "(loadchaos_capacity_current_load, loadchaos_capacity_load).",
            target(f"max(loadchaos_capacity_current_load{{{_RUN}}})", "step in progress"),
            target(f'max({load}{{{_RUN},what="met"}})', "meets the goal"),
            target(f'max({load}{{{_RUN},what="not_met"}})', "does not"),
        ),
        lines(
            "Goodput of the step in progress",
            "Share of its measured requests so far, and the goal.",
            target(f"max(loadchaos_capacity_current_goodput_ratio{{{_RUN}}})", "goodput"),
            target(f"max(loadchaos_capacity_goal_ratio{{{_RUN}}})", "goal"),
            unit="percentunit",
            top=1,
        ),
        _capacity_steps(),
    ]


def _capacity_steps() -> Json:
    """Table of the steps, the lowest load first."""
    steps = table(
        "Steps",
        "One row per load. `met`: 1 it was proved to meet the goal, 0 it was proved not to, empty undecided.",
        [
            ("offered", _step("load"), "short"),
            ("met", _step("met"), "none"),
            ("requests", _step("requests"), "short"),
            ("goodput", _step("goodput_ratio", 'bound="measured"'), "percentunit"),
            ("completed", _step("requests_per_second"), "reqps"),
            ("TTFT p50", _step("latency_seconds", 'latency="ttft",statistic="p50"'), "s"),
            ("TTFT p99", _step("latency_seconds", 'latency="ttft",statistic="p99"'), "s"),
            ("E2E p50", _step("latency_seconds", 'latency="e2e",statistic="p50"'), "s"),
        ],
        "load",
        hide=["load"],
    )
    steps["options"]["sortBy"] = [{"displayName": "offered", "desc": False}]
    return steps


def capacity() -> Json:
    """Dashboard of one capacity search."""
    panels = [*_capacity_answer(), *_capacity_curves(), *_capacity_search()]
    about = "A search of loadchaos capacity: its answer, curves over the load, and its steps"
    board = dashboard("loadchaos-capacity", "loadchaos / Capacity", about, panels, [], "now-1h")
    search = variable("run", "Search", "The folder's name", "label_values(loadchaos_capacity_info, run)")
    return {**board, "templating": {"list": [data_source(), single(search)]}}


DASHBOARDS = {"run": run, "server": server, "failures": failures, "soak": soak, "capacity": capacity}


def text(name: str) -> str:
    """Render one dashboard as JSON, as it is committed."""
    return json.dumps(DASHBOARDS[name](), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dashboards")
    folder.mkdir(parents=True, exist_ok=True)
    for each in DASHBOARDS:
        (folder / f"{each}.json").write_text(text(each))
