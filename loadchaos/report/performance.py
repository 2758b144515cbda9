"""Latency table, throughput and goodput of a verdict as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from loadchaos.analysis.figures.answer_labels import sum_of_labels
from loadchaos.analysis.figures.refusals import retry_after_text
from loadchaos.analysis.figures.sessions import SESSION_ENDS
from loadchaos.analysis.figures.snapshot import Percentiles
from loadchaos.analysis.verdict.model import EfficiencyFigures, SessionCounts, Verdict
from loadchaos.core.answer_labels import LABELS
from loadchaos.core.latency import LatencyFigures, Statistics
from loadchaos.core.latency_percentiles import REPORTED_LATENCIES, REPORTED_STATISTICS, enough_to_show
from loadchaos.report.formatting import clean, duration, number, plural
from loadchaos.report.phrases import outcome_count_text

SESSION_COLUMNS = {
    "sessions": "sessions", "finished": "finished", "lost": "lost", "left": "left", "cut": "cut", "turns": "turns",
    "turns_lost": "turns lost", "turns_cut": "turns cut", "requests": "requests", "tool_calls": "tool calls",
}  # fmt: skip
"""Counts of a session table with their headings; times follow."""
ENDPOINT_LATENCIES = tuple((kind, name) for kind in ("ttft", "itl", "e2e") for name in ("p50", "p99"))
"""Latency and quantile of each column of the table of endpoints."""
ENDPOINT_HEADS = tuple(f"{kind.upper()} {name}" for kind, name in ENDPOINT_LATENCIES)
"""Headings of these columns."""
SHORT_HEADS = {head: head.rpartition(" ")[2] for head in ENDPOINT_HEADS if not head.endswith("p50")}
"""Headings for wide tables, where the column before has the name of the latency."""
_TURNS = {"turns_lost": "lost", "turns_left": "not sent", "turns_cut": "without room in the context"}
_ENDS = (*SESSION_ENDS, "unfinished")
_OVER = {"failed": "failed", "not_sent": "not sent for want of a free slot"}


def time_text(found: Statistics | Percentiles, statistic: str) -> str:
    """A statistic of times; a dash for a percentile of too few samples."""
    return duration(getattr(found, statistic) if enough_to_show(statistic, found.n) else None)


def latency_head(kind: str, *, void: bool) -> str:
    """Heading of a latency, with a mark on one that means nothing."""
    return kind.upper() + (" ?" if void else "")


def latency_rows(verdict: Verdict, statistics: Iterable[str] = REPORTED_STATISTICS) -> list[list[str]]:
    by_traffic = dict(verdict.latency)
    if len(by_traffic) > 1 and verdict.latency_all is not None:
        by_traffic["all"] = verdict.latency_all
    rows = []
    for traffic, kinds in by_traffic.items():
        for kind in REPORTED_LATENCIES:
            if (found := kinds.of(kind)) is not None and found.n:
                figures = (time_text(found, name) for name in statistics)
                name = latency_head(kind, void=f"{kind}_s" in kinds.void)
                rows.append([clean(traffic, 40), name, *figures, number(found.n)])
    return rows


def traffic_rows(verdict: Verdict) -> list[list[str]]:
    """Rows of a table of several kinds of traffic: traffic, requests, ok, and the latencies of `ENDPOINT_HEADS`."""
    by_traffic = verdict.by_traffic if len(verdict.by_traffic) > 1 else {}
    return [
        [clean(traffic, 40), *_counts_and_times(outcomes, verdict.latency.get(traffic))]
        for traffic, outcomes in by_traffic.items()
    ]


def endpoint_rows(verdict: Verdict) -> list[list[str]]:
    """Rows of the table of endpoints; empty unless there are several. Endpoint, its traffic, requests, ok, the
    latencies of `ENDPOINT_HEADS`, and the outcomes that are not ok.
    """
    return [
        [
            clean(endpoint, 40),
            ", ".join(clean(traffic, 40) for traffic in figures.traffic),
            *_counts_and_times(figures.outcomes, figures.latency),
            ", ".join(outcome_count_text(name, n) for name, n in figures.outcomes.items() if n and name != "ok"),
        ]
        for endpoint, figures in verdict.by_endpoint.items()
    ]


def _counts_and_times(outcomes: Mapping[str, int], latency: LatencyFigures | None) -> list[str]:
    times = (
        time_text(found, name) if latency is not None and (found := latency.of(kind)) else duration(None)
        for kind, name in ENDPOINT_LATENCIES
    )
    return [number(sum(outcomes.values())), number(outcomes.get("ok", 0)), *times]


def throughput_text(verdict: Verdict) -> str:
    found = verdict.throughput
    if found is None or not found.requests or not found.seconds:
        return ""
    rates = (
        ("requests/s", found.requests_per_s),
        ("input tokens/s", found.input_tokens_per_s),
        ("output tokens/s", found.output_tokens_per_s),
    )
    parts = [f"{per_second(value)} {unit}" for unit, value in rates if value is not None]
    return f"{', '.join(parts)} (successful requests, over {duration(found.seconds)})"


def efficiency_texts(verdict: Verdict) -> dict[str, str]:
    found, texts = verdict.efficiency or EfficiencyFigures(), dict[str, str]()
    if found.prefix_hit_rate is not None:
        source = "usage of the answers" if found.prefix_source == "usage" else "counters of the server"
        texts["prefix cache"] = f"{100 * found.prefix_hit_rate:.1f} % of the prompt tokens were cached ({source})"
        if found.warm_cache:
            told = any(found.warm_cache in rule.actual for rule in verdict.expectations)
            texts["prefix cache"] += "; latencies are those of a warm cache" + ("" if told else f": {found.warm_cache}")
    if found.acceptance is not None:
        tokens = f"{number(found.accepted_tokens)} of {number(found.drafted_tokens)}"
        source = "told by the answers" if found.acceptance_source == "answers" else "counters of the server"
        texts["drafts"] = f"{100 * found.acceptance:.1f} % accepted, {tokens} tokens ({source})"
        if single := found.acceptance_by_request:
            shares = (("p10", single.p10), ("p50", single.p50), ("p90", single.p90))
            quantiles = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares)
            which = "single requests" if source == "told by the answers" else "single requests that tell it"
            texts["drafts"] += f"; of {which}: {quantiles}"
    joules, per_watt, power_w = (
        found.joules_per_output_token,
        found.output_tokens_per_s_per_w,
        found.mean_power_w,
    )
    if joules is not None and per_watt is not None and power_w is not None:
        texts["energy"] = (
            f"{joules:.3g} J per output token, {per_watt:.3g} tokens/s per W, {power_w:,.0f} W of all GPUs"
        )
    return texts


def sessions_text(verdict: Verdict) -> str:
    found = verdict.sessions
    if found is None or not found.sessions:
        return ""
    counts = vars(found)
    ends = [f"{number(counts[end])} {end}" for end in _ENDS if counts[end]]
    turns = [f"{number(found.turns)} of {number(found.planned_turns)} turns answered"]
    turns += [f"{number(counts[key])} {text}" for key, text in _TURNS.items() if counts[key]]
    parts = [f"{plural(found.sessions, 'session')}: {', '.join(ends)}", ", ".join(turns)]
    times = found.session_e2e_s
    if times.n:
        parts.append(f"p50 {time_text(times, 'p50')}, p95 {time_text(times, 'p95')}, longest {duration(times.max)}")
    choices = {traffic.tools for traffic in found.by_traffic.values()}
    if found.tool_calls or choices - {None, "none"}:
        parts.append(plural(found.tool_calls, "tool call") if found.tool_calls else "no tool call got a result")
    if found.bad_calls:
        parts.append(f"{plural(found.bad_calls, 'call')} cut or without a JSON object")
    if found.why:
        parts.append("ended by " + ", ".join(f"{clean(why, 40)}: {number(n)}" for why, n in found.why.items()))
    return "; ".join(parts)


def session_rows(verdict: Verdict) -> list[list[str]]:
    found = verdict.sessions
    if found is None:
        return []
    by_traffic: dict[str, SessionCounts] = dict(found.by_traffic)
    if len(by_traffic) > 1:
        by_traffic["all"] = found
    rows = []
    for traffic, figures in by_traffic.items():
        times = figures.session_e2e_s
        counts = (number(vars(figures)[key]) for key in SESSION_COLUMNS)
        rows.append([clean(traffic, 40), *counts, *(time_text(times, name) for name in ("p50", "p95", "max"))])
    return rows


def refusals_text(verdict: Verdict) -> str:
    """Describe what admission control refused, in the words of the limiter."""
    found = verdict.refusals
    if found is None:
        return ""
    text = f"{number(found.requests)} of {plural(found.sent, 'request')}"
    if found.statuses:
        text += f" ({', '.join(clean(status, 10) for status in found.statuses)})"
    if found.texts:
        text += f": {'; '.join(clean(words, 160) for words in found.texts)}"
    parts = [f"Retry-After: {clean(retry_after_text(found.retry_after), 80)}"] if found.retry_after else []
    if found.accepted_per_s is not None:
        parts.append(f"{per_second(found.accepted_per_s)} requests/s were accepted")
    if (waited := found.waited) is not None:
        waits = f"mean {duration(waited.mean_s)}, longest {duration(waited.longest_s)}"
        parts.append(
            f"{plural(waited.waits, 'refusal')} waited for and sent again ({waits}), after which {number(waited.ok)} of "
            f"{plural(waited.requests, 'request')} were ok: latencies have these waits in them"
        )
    return "; ".join([text, *parts])


def label_rows(verdict: Verdict, names: Sequence[str] = ()) -> list[list[str]]:
    """Rows of answers by label: title, value, count of all traffic, counts by traffic."""
    total = sum_of_labels(verdict.answer_labels.values())
    by = [verdict.answer_labels.get(name, {}) for name in names]
    return [
        [label.title, clean(value, 80), number(n), *(number(t.get(label.name, {}).get(value, 0)) for t in by)]
        for label in LABELS
        for value, n in total.get(label.name, {}).items()
    ]


def stall_text(verdict: Verdict) -> str:
    """Describe the longest stall of a run."""
    found = verdict.longest_stall
    if found is None:
        return ""
    since = f", from {duration(max(0.0, found.at_s))} on" if found.at_s is not None else ""
    where = f", at {clean(found.replica, 40)}" if found.replica else ""
    waited = f"{plural(found.requests, 'request')} waited{since}{where}"
    return f"{duration(found.seconds)} at most without a token or an answer ({waited})"


def warm_up_text(verdict: Verdict) -> str:
    found = verdict.warm_up
    if found is None:
        return ""
    seconds = f" of the first {duration(found.seconds)}" if found.seconds else ""
    return f"{plural(found.requests, 'request')}{seconds} left out of these figures; failures in it count"


def limits_text(limits_s: Mapping[str, float]) -> str:
    """Format limits of latencies: `ttft <= 2.0 s, itl <= 50 ms`."""
    return ", ".join(f"{name} <= {duration(limit)}" for name, limit in limits_s.items())


def goodput_text(verdict: Verdict) -> str:
    found = verdict.goodput
    if found is None or not found.due:
        return ""
    share = found.good / found.due if found.share is None else found.share
    text = (
        f"{100 * share:.2f} %, {number(found.good)} of {number(found.due)} requests within {limits_text(found.slo_s)}"
    )
    if found.good_per_s is not None:
        text += f", {per_second(found.good_per_s)} requests/s"
    over = ", ".join(f"{_OVER.get(name, f'over {name}')}: {number(n)}" for name, n in found.over.items())
    return f"{text}; {over}" if over else text


def per_second(value: float) -> str:
    """A rate with three digits, and all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def reported_rows(verdict: Verdict) -> list[list[str]]:
    """Rows of what the command of a watch reported beside what was on the wire."""
    found = verdict.reported.rows if verdict.reported is not None else ()
    return [
        [
            row.name,
            *(_counted(row.unit, value) for value in (row.reported, row.wire)),
            f"differs{f': {row.why}' if row.why else ''}" if row.differs else "",
        ]
        for row in found
    ]


def reported_texts(verdict: Verdict) -> dict[str, str]:
    found = verdict.reported
    if found is None:
        return {}
    more = f"; {plural(found.more_files, 'more result file')} written" if found.more_files else ""
    texts = {"command": f"{found.tool} {found.sentence}", "remark": found.remark, "result file": f"{found.file}{more}"}
    return {label: clean(text, 800) for label, text in texts.items()}


def _counted(unit: str, value: float | None) -> str:
    return "–" if value is None else duration(value) if unit == "s" else number(int(value))
