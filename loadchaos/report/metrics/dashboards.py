"""The four Grafana dashboards: Run, Server, Failures, Soak.

`python -m loadchaos.report.metrics.dashboards FOLDER` writes them.
Committed under dashboards/ and checked to be current. What a panel asks for is in docs/metrics.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from loadchaos.report.metrics.grafana import (
    Json,
    annotation,
    bars,
    dashboard,
    heatmap,
    lines,
    row,
    stat,
    states,
    table,
    target,
)

_RUN = 'run=~"$run"'
_TRAFFIC = f'{_RUN},traffic=~"$traffic"'
_SERVER = f'{_RUN},replica=~"$server"'
_RATE = "[$__rate_interval]"


def _rate(metric: str, selector: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{selector}}}{_RATE}))"


def _share(part: str, whole: str) -> str:
    """Part of a whole, where there is a whole."""
    return f"{part} / ({whole} > 0)"


def _quantile(q: float, kind: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, {_rate(f'loadchaos_{kind}_seconds_bucket', _TRAFFIC, labels)})"


def _server_hit_ratio(cache: str) -> str:
    hits, queries = (f"loadchaos_server_{cache}_cache_{x}_total" for x in ("hits", "queries"))
    return _share(_rate(hits, _SERVER, "replica"), _rate(queries, _SERVER, "replica"))


_STATE = states(
    "State of the server",
    "Each replica's state as loadchaos fuses it from probes, processes, metrics, logs and our own "
    "tokens (loadchaos_server_state).",
    target(f"loadchaos_server_state{{{_SERVER}}} > 0", "{{replica}} {{state}}"),
)

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
            f"{about} p50, p90 and p99 of the last seconds; attacks are shaded over it.",
            *(target(_quantile(q, kind, "traffic"), f"{{{{traffic}}}} p{round(q * 100)}") for q in (0.5, 0.9, 0.99)),
            unit="s",
        ),
        heatmap(
            f"{name}, all of it",
            f"{about} How many answers fell into each bucket; dots are single requests.",
            _rate(f"loadchaos_{kind}_seconds_bucket", _TRAFFIC, "le"),
        ),
    ]


def run() -> Json:
    """What users feel."""
    outcomes = "loadchaos_requests_total"
    good = _share(_rate(outcomes, f'{_TRAFFIC},outcome="ok"'), _rate(outcomes, f'{_TRAFFIC},outcome!="missed"'))
    total = f"sum(loadchaos_requests_total{{{_TRAFFIC}}})"
    missed = f'sum(loadchaos_requests_total{{{_TRAFFIC},outcome="missed"}})'
    return dashboard(
        "loadchaos-run",
        "loadchaos / Run",
        "What users of the server feel while loadchaos drives it",
        [
            row("At a glance"),
            stat(
                "State",
                "The server's state now (loadchaos_server_state).",
                target(f"loadchaos_server_state{{{_SERVER}}} > 0", "{{replica}} {{state}}"),
                name=True,
            ),
            stat("Requests", "Requests that were due so far (loadchaos_requests_total).", target(total), decimals=0),
            stat(
                "Answered",
                "Share of the requests sent in the last seconds that ended ok.",
                target(good),
                unit="percentunit",
                bad="below",
                limit=0.95,
            ),
            stat(
                "Never sent",
                "Share of what was due and never sent: no user free, server down (outcome missed).",
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
                "Generator late",
                "How late the latest worker sends (loadchaos_generator_lag_seconds): above a few ms, "
                "latencies are ours, not the server's.",
                target(f"max(loadchaos_generator_lag_seconds{{{_RUN}}})"),
                unit="s",
                bad="above",
                limit=0.1,
            ),
            _STATE,
            row("Load"),
            lines(
                "Requests by outcome",
                "Ends a second by outcome (loadchaos_requests_total); only ok is an answer.",
                target(_rate(outcomes, _TRAFFIC, "outcome") + " > 0", "{{outcome}}"),
                unit="reqps",
                stack=True,
            ),
            lines(
                "Arrivals",
                "Due, sent and never sent, a second (loadchaos_arrivals_*). Due above sent: the generator or "
                "the server's absence holds the load back.",
                target(_rate("loadchaos_arrivals_due_total", _TRAFFIC), "due"),
                target(_rate("loadchaos_arrivals_sent_total", _TRAFFIC), "sent"),
                target(_rate("loadchaos_arrivals_missed_total", _RUN, "why"), "missed: {{why}}"),
                unit="reqps",
            ),
            lines(
                "Users and requests in flight",
                "Slots of the generator and how many wait for the server "
                "(loadchaos_users, loadchaos_requests_in_flight).",
                target(f"sum by (run) (loadchaos_users{{{_RUN}}})", "users"),
                target(f"sum by (traffic) (loadchaos_requests_in_flight{{{_TRAFFIC}}})", "in flight: {{traffic}}"),
            ),
            lines(
                "Attacks",
                "Attacks a second by result (loadchaos_attacks_total).",
                target(_rate("loadchaos_attacks_total", _RUN, "attack, result") + " > 0", "{{attack}} {{result}}"),
                unit="ops",
                points=True,
            ),
            row("Latency of answered requests"),
            *_latency("ttft", "TTFT", "Time to first token, from the time the request was due."),
            *_latency("itl", "ITL", "Gaps between the chunks of an answer."),
            *_latency("e2e", "E2E", "Time to the last byte, from the time the request was due."),
            row("Throughput"),
            lines(
                "Tokens",
                "Prompt tokens sent and tokens received, a second (loadchaos_prompt_tokens_sent_total, "
                "loadchaos_completion_tokens_total). Received counts when an answer ends.",
                target(_rate("loadchaos_prompt_tokens_sent_total", _TRAFFIC), "sent"),
                target(_rate("loadchaos_completion_tokens_total", _TRAFFIC), "received"),
            ),
            lines(
                "Images",
                "Images sent, and images in requests that were answered, a second.",
                target(_rate("loadchaos_images_sent_total", _TRAFFIC), "sent"),
                target(_rate("loadchaos_images_answered_total", _TRAFFIC), "answered"),
            ),
            lines(
                "Longest silence",
                "The longest that a request in flight now waits for a byte "
                "(loadchaos_oldest_silence_seconds): the first sign of a hang.",
                target(f"max by (run) (loadchaos_oldest_silence_seconds{{{_RUN}}})", "{{run}}"),
                unit="s",
            ),
            lines(
                "How late requests are sent",
                "Mean and worst lateness of the generator (loadchaos_send_lag_seconds, "
                "loadchaos_generator_lag_seconds).",
                target(
                    _share(
                        _rate("loadchaos_send_lag_seconds_sum", _RUN), _rate("loadchaos_send_lag_seconds_count", _RUN)
                    ),
                    "mean",
                ),
                target(f"max by (run) (loadchaos_generator_lag_seconds{{{_RUN}}})", "worst"),
                unit="s",
            ),
        ],
        ANNOTATIONS,
        "now-15m",
    )


def server() -> Json:
    """The patient."""

    def gauge(name: str) -> str:
        return f"loadchaos_server_{name}{{{_SERVER}}}"

    def of_machines(name: str, together: str = "sum") -> str:
        return f"{together} (loadchaos_{name}{{{_RUN}}})"

    accepted = _share(
        _rate("loadchaos_server_spec_accepted_tokens_total", _SERVER, "replica"),
        _rate("loadchaos_server_spec_draft_tokens_total", _SERVER, "replica"),
    )
    a_step = _share(
        _rate("loadchaos_server_generation_tokens_total", _SERVER, "replica"),
        _rate("loadchaos_server_iterations_total", _SERVER, "replica"),
    )
    prefix = f"{_server_hit_ratio('prefix')} or {gauge('prefix_cache_hit_ratio')}"
    return dashboard(
        "loadchaos-server",
        "loadchaos / Server",
        "The patient: the server's own numbers beside ours",
        [
            row("At a glance"),
            stat(
                "State",
                "The server's state now (loadchaos_server_state).",
                target(f"loadchaos_server_state{{{_SERVER}}} > 0", "{{replica}} {{state}}"),
                name=True,
            ),
            stat(
                "Running",
                "Requests the server computes (loadchaos_server_requests_running).",
                target(f"sum({gauge('requests_running')})"),
                decimals=0,
            ),
            stat(
                "Waiting",
                "Requests in the server's queue (loadchaos_server_requests_waiting).",
                target(f"sum({gauge('requests_waiting')})"),
                decimals=0,
            ),
            stat(
                "KV cache",
                "Share of the KV cache in use, the fullest engine (loadchaos_server_kv_usage_ratio).",
                target(f"max({gauge('kv_usage_ratio')})"),
                unit="percentunit",
                bad="above",
                limit=0.95,
            ),
            stat(
                "Up for",
                "Since the server's process started (loadchaos_server_process_start_time_seconds).",
                target(f"time() - max({gauge('process_start_time_seconds')})"),
                unit="s",
            ),
            stat(
                "Not watched",
                "Time a watcher saw nothing (loadchaos_watch_gap_seconds_total).",
                target(f"sum(loadchaos_watch_gap_seconds_total{{{_RUN}}}) or vector(0)"),
                unit="s",
                bad="above",
                limit=10,
            ),
            _STATE,
            row("Queues and KV cache"),
            lines(
                "Queue",
                "Requests running and waiting as the server says, and in flight as we know.",
                target(gauge("requests_running"), "{{replica}}/{{engine}} running"),
                target(gauge("requests_waiting"), "{{replica}}/{{engine}} waiting"),
                target(f"sum by (run) (loadchaos_requests_in_flight{{{_RUN}}})", "in flight, as we know"),
            ),
            lines(
                "KV cache in use",
                "Share in use by engine (loadchaos_server_kv_usage_ratio).",
                target(gauge("kv_usage_ratio"), "{{replica}}/{{engine}}"),
                unit="percentunit",
                top=1,
            ),
            lines(
                "Preemptions",
                "Requests put back for want of KV cache, a second "
                "(loadchaos_server_preemptions_total; vLLM and SGLang).",
                target(_rate("loadchaos_server_preemptions_total", _SERVER, "replica"), "{{replica}}"),
                unit="ops",
            ),
            lines(
                "Cache hits",
                "Share of lookups that found something: prefix cache and multimodal cache.",
                target(prefix, "{{replica}} prefix"),
                target(_server_hit_ratio("mm"), "{{replica}} multimodal"),
                unit="percentunit",
                top=1,
            ),
            row("Engine"),
            lines(
                "Tokens",
                "Prompt tokens processed and tokens generated, a second, as the server says.",
                target(_rate("loadchaos_server_prompt_tokens_total", _SERVER, "replica"), "{{replica}} prompt"),
                target(_rate("loadchaos_server_generation_tokens_total", _SERVER, "replica"), "{{replica}} generated"),
            ),
            lines(
                "Engine steps",
                "Steps of the engine a second (loadchaos_server_iterations_total): at 0 while requests run, it hangs.",
                target(_rate("loadchaos_server_iterations_total", _SERVER, "replica"), "{{replica}}"),
                unit="ops",
            ),
            lines(
                "Tokens a step",
                "Tokens generated in one step of the engine: how full its batches are.",
                target(a_step, "{{replica}}"),
            ),
            lines(
                "Requests finished",
                "A second, as the server says (loadchaos_server_requests_finished_total) and as we do.",
                target(_rate("loadchaos_server_requests_finished_total", _SERVER, "replica"), "{{replica}}"),
                target(_rate("loadchaos_requests_total", f'{_RUN},outcome="ok"'), "ok, as we know"),
                unit="reqps",
            ),
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
                "Drafts and drafted tokens a second.",
                target(_rate("loadchaos_server_spec_drafts_total", _SERVER, "replica"), "{{replica}} drafts"),
                target(_rate("loadchaos_server_spec_draft_tokens_total", _SERVER, "replica"), "{{replica}} tokens"),
                unit="ops",
            ),
            row("Processes"),
            lines(
                "Memory by process",
                "Resident memory of the server's processes on this machine (loadchaos_process_resident_bytes).",
                target(f"loadchaos_process_resident_bytes{{{_SERVER}}}", "{{replica}} {{role}}"),
                unit="bytes",
            ),
            lines(
                "Memory as the server says",
                "Resident memory of the API server (loadchaos_server_process_rss_bytes).",
                target(gauge("process_rss_bytes"), "{{replica}}"),
                unit="bytes",
            ),
            row(
                "Machines, where dcgm-exporter, node-exporter or NVML tell of them",
                [
                    lines(
                        "GPU memory",
                        "All GPUs together (loadchaos_gpu_memory_used_bytes, loadchaos_gpu_memory_free_bytes).",
                        target(of_machines("gpu_memory_used_bytes"), "used"),
                        target(of_machines("gpu_memory_free_bytes"), "free"),
                        unit="bytes",
                        stack=True,
                    ),
                    lines(
                        "GPU busy",
                        "Share of time the busiest GPU computes (loadchaos_gpu_utilisation_ratio): at 0 while "
                        "requests run, the engine waits for something else.",
                        target(of_machines("gpu_utilisation_ratio", "max"), "busiest"),
                        unit="percentunit",
                        top=1,
                    ),
                    lines(
                        "GPU temperature",
                        "The hottest GPU (loadchaos_gpu_temperature_celsius).",
                        target(of_machines("gpu_temperature_celsius", "max"), "hottest"),
                        unit="celsius",
                    ),
                    lines(
                        "GPU power",
                        "All GPUs together (loadchaos_gpu_power_watts).",
                        target(of_machines("gpu_power_watts"), "power"),
                        unit="watt",
                    ),
                    lines(
                        "Host memory available",
                        "On the host that has least (loadchaos_host_memory_available_bytes).",
                        target(of_machines("host_memory_available_bytes", "min"), "available"),
                        unit="bytes",
                    ),
                    lines(
                        "Xids and processes killed for memory",
                        "Counted by the machines (loadchaos_gpu_xids_total, "
                        "loadchaos_host_oom_kills_total): each step up is an incident of its own.",
                        target(of_machines("gpu_xids_total"), "Xids"),
                        target(of_machines("host_oom_kills_total"), "OOM kills"),
                    ),
                ],
            ),
        ],
        ANNOTATIONS,
        "now-15m",
    )


def failures() -> Json:
    """What broke."""
    found = f"loadchaos_failures_total{{{_RUN}}}"
    by = "id, severity, attribution"
    last = f"last_over_time({found}[$__range])"
    first = f"min by ({by}) (min_over_time(timestamp({found})[$__range:$__interval])) * 1000"
    # An open incident gets a better name when its cause is read: the newest name of each is the one that counts.
    told = f"timestamp(loadchaos_incident_open{{{_RUN}}})[$__range:$__interval]"
    seen = f"max by (run, incident, id, severity, issue) (max_over_time({told})) * 1000"
    incident = f"topk by (run, incident) (1, {seen})"

    def of(selector: str) -> Json:
        chosen = f"loadchaos_failures_total{{{_RUN},{selector}}}"
        return target(f"sum(last_over_time({chosen}[$__range])) or vector(0)", instant=True)

    return dashboard(
        "loadchaos-failures",
        "loadchaos / Failures",
        "What broke, when, and whether it is known",
        [
            row("At a glance"),
            stat(
                "Failures",
                "All that was found, also what is not the server's fault (loadchaos_failures_total).",
                of('id!=""'),
                bad="above",
                decimals=0,
                width=5,
            ),
            stat(
                "Engine deaths",
                "Failures of severity engine_death.",
                of('severity="engine_death"'),
                bad="above",
                decimals=0,
                width=5,
            ),
            stat("Hangs", "Failures of severity hang.", of('severity="hang"'), bad="above", decimals=0, width=4),
            stat(
                "Unexplained",
                "Failures whose cause no signature names: their incident has the evidence.",
                of('id=~".*unexplained.*|.*unknown.*"'),
                bad="above",
                decimals=0,
                width=5,
            ),
            stat(
                "Incidents",
                "Incidents opened (loadchaos_incidents_total); each is a folder of the run.",
                target(f"sum(last_over_time(loadchaos_incidents_total{{{_RUN}}}[$__range]))", instant=True),
                bad="above",
                decimals=0,
                width=5,
            ),
            table(
                "By id",
                "Every failure by its id, with how often and when it was first seen.",
                [("count", f"sum by ({by}) ({last})", "short"), ("first seen", first, "dateTimeAsIso")],
                "id",
            ),
            table(
                "Incidents",
                "Folder `incident`-`id` under incidents/ of the run has the evidence; `issue` leads to the known "
                "one upstream.",
                [("last told", incident, "dateTimeAsIso")],
                "incident",
                link=("issue", "https://github.com/${__value.raw}"),
            ),
            row("Over time"),
            lines(
                "Failures",
                "Failures so far by id (loadchaos_failures_total).",
                target(f"sum by (id) ({found})", "{{id}}"),
            ),
            lines(
                "Requests that were not answered",
                "Ends a second with an outcome that is no answer.",
                target(
                    _rate("loadchaos_requests_total", f'{_TRAFFIC},outcome!~"ok|missed|aborted|unfinished"', "outcome")
                    + " > 0",
                    "{{outcome}}",
                ),
                unit="reqps",
                stack=True,
            ),
            _STATE,
        ],
        ANNOTATIONS,
        "now-1h",
    )


def soak() -> Json:
    """Nights side by side."""

    def last(metric: str, selector: str = _TRAFFIC) -> str:
        return f"sum by (run) (last_over_time({metric}{{{selector}}}[$__range]))"

    def quantile(q: float, kind: str) -> str:
        buckets = f"last_over_time(loadchaos_{kind}_seconds_bucket{{{_TRAFFIC}}}[$__range])"
        return f"histogram_quantile({q}, sum by (run, le) ({buckets}))"

    sent = last("loadchaos_arrivals_sent_total")
    ok = last("loadchaos_requests_total", f'{_TRAFFIC},outcome="ok"')
    failed = last("loadchaos_failures_total", _RUN)
    memory = f"loadchaos_process_resident_bytes{{{_SERVER}}}"
    growth = f"max by (run) (max_over_time({memory}[$__range]) / min_over_time({memory}[$__range]))"
    p99 = f"histogram_quantile(0.99, {_rate('loadchaos_ttft_seconds_bucket', _TRAFFIC, 'run, le')})"
    return dashboard(
        "loadchaos-soak",
        "loadchaos / Soak",
        "Runs side by side: nights of a soak, or before and after",
        [
            table(
                "Runs",
                "A row a run in the time range: what was sent, what came back, what broke.",
                [
                    (
                        "profile",
                        f"max by (run, profile, version) (last_over_time(loadchaos_run_info{{{_RUN}}}[$__range]))",
                        "short",
                    ),
                    ("sent", sent, "short"),
                    ("answered", _share(ok, sent), "percentunit"),
                    ("TTFT p50", quantile(0.5, "ttft"), "s"),
                    ("TTFT p99", quantile(0.99, "ttft"), "s"),
                    ("E2E p99", quantile(0.99, "e2e"), "s"),
                    ("failures", f"{failed} or 0 * ({sent})", "short"),
                    ("incidents", last("loadchaos_incidents_total", _RUN), "short"),
                ],
                "run",
                hide=["Value #A"],
            ),
            bars(
                "TTFT p99 by run",
                "Over all answers of the run; from buckets, so coarse.",
                target(quantile(0.99, "ttft"), "{{run}}", instant=True),
                unit="s",
            ),
            bars(
                "Answered by run",
                "Share of the requests sent that ended ok.",
                target(_share(ok, sent), "{{run}}", instant=True),
                unit="percentunit",
            ),
            bars(
                "Tokens received by run",
                "As the server counted them (loadchaos_completion_tokens_total).",
                target(last("loadchaos_completion_tokens_total"), "{{run}}", instant=True),
            ),
            bars(
                "Memory growth by run",
                "The most resident memory of a server process over its least: 1 is none.",
                target(growth, "{{run}}", instant=True),
                unit="none",
            ),
            row("Over time"),
            lines("TTFT p99", "By run.", target(p99, "{{run}}"), unit="s"),
            lines(
                "Tokens received",
                "A second, by run.",
                target(_rate("loadchaos_completion_tokens_total", _TRAFFIC, "run"), "{{run}}"),
            ),
            lines(
                "KV cache in use",
                "The fullest engine, by run: a leak shows as a floor that rises.",
                target(f"max by (run) (loadchaos_server_kv_usage_ratio{{{_SERVER}}})", "{{run}}"),
                unit="percentunit",
                top=1,
            ),
            lines(
                "Memory of the server",
                "All its processes on this machine, by run.",
                target(f"sum by (run) ({memory})", "{{run}}"),
                unit="bytes",
            ),
            lines(
                "Failures so far",
                "By run and id.",
                target(f"sum by (run, id) (loadchaos_failures_total{{{_RUN}}})", "{{run}} {{id}}"),
            ),
            lines(
                "Not answered",
                "Share of what ended in the last seconds that was no answer, by run.",
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
        ],
        ANNOTATIONS[1:],
        "now-7d",
    )


DASHBOARDS = {"run": run, "server": server, "failures": failures, "soak": soak}


def text(name: str) -> str:
    """The JSON of one dashboard as it is committed."""
    return json.dumps(DASHBOARDS[name](), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dashboards")
    folder.mkdir(parents=True, exist_ok=True)
    for each in DASHBOARDS:
        (folder / f"{each}.json").write_text(text(each))
