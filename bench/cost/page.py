"""Make docs/performance.md from docs/performance.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.cost.contenders import CONTENDERS
from bench.cost.figures import Figures, Target, targets
from bench.cost.rows import MARGINAL, MARGINAL_CONTENDERS, MARGINAL_FEW, SCENARIOS

_METHOD = """\
`make bench` wrote this page; `python -m bench.cost --help` says what else it can measure. Read ratios: microseconds
belong to this machine.

- The load server is `bench/server.c` (epoll, one thread), pinned to one core; each client is pinned to another. Streams are
  128 tokens, one every 20 ms, the first 100 to 120 ms after the request; so many of them begin each second that the number
  in the title is in the air.
- CPU is user and system time of all processes of the client, from /proc, between two moments at which the server's
  counters stand: start-up is left out, everything else is in. For tokens it holds the requests they belong to.
- TTFT error is the client's stamp less the server's, on one clock (CLOCK_MONOTONIC), which stands in each token; ITL error
  is the percentile a client has less the percentile that was sent. loadchaos takes the kernel's stamp of the packet (not
  inside TLS), the others the time at which they have read it; so it may wake up for several tokens at a time, up to 2 ms
  after they came, and a quarter of the shortest time between two of any stream at most (0.5 ms where that is less).
- **loadchaos, all in** is the Locust child as `loadchaos run` starts it: each body made anew, ledger rows, histograms,
  Locust's own event. The others send one ready body of the same bytes, keep stamps, and do no more.
- Figures are medians of the trials, ratios are taken within a repeat. A single stall of the machine stands in a p99 whole.
- With `--urgent` clients of one process run before other work of the machine; `loadchaos run`, GuideLLM and AIPerf do not.
"""
_NO = "–"


def render(found: Mapping[str, Any]) -> str:
    """Make the whole page."""
    figures = Figures(found["trials"])
    parts = ["# What a request costs, and whether its times are true\n", _about(found["machine"]), _METHOD]
    parts += [
        "![CPU time and TTFT error of each client](performance.svg)\n",
        "## Targets\n",
        _targets(targets(figures, found.get("payloads", {}))),
    ]
    if found.get("notes"):
        parts += ["## Left out, and in doubt\n", "\n".join(f"- {note}" for note in found["notes"]) + "\n"]
    for name, scenario in SCENARIOS.items():
        if any(figures.good(name, c) for c in scenario.contenders):
            stream = scenario.load.stream
            parts += [f"## {scenario.title}\n", _table(figures, name, scenario.contenders, stream=stream)]
    parts += [_marginal(figures), _payloads(found.get("payloads", {})), _server(found["trials"])]
    return "\n".join(part for part in parts if part)


def _about(machine: Mapping[str, Any]) -> str:
    commands = "\n".join(f"    {command}" for command in machine["commands"])
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    first = "; server and client ran before all other work of the machine (SCHED_FIFO)" if machine["urgent"] else ""
    return (
        f"Measured on {machine['cores']} cores of {machine['cpu']}, Linux "
        f"{machine['kernel']}, Python {machine['python']}, {machine['compiler']}{first}:\n\n{commands}\n\n"
        f"{versions}.\n"
    )


def _targets(asked: Sequence[Target]) -> str:
    lines = ["| target | measured | |", "|---|---|---|"]
    open_ones = []
    for target in asked:
        state = "met" if target.met else "**not met**" if target.measured else "not measured"
        lines.append(f"| {target.asked} | {target.measured or _NO} | {state} |")
        if target.measured and not target.met:
            open_ones.append(f"- {target.asked}: {target.measured}. In the way: {target.between}.")
    words = ["", "What stands between us and what is not met:", "", *open_ones] if open_ones else []
    return "\n".join([*lines, *words, ""])


def _table(figures: Figures, scenario: str, contenders: tuple[str, ...], *, stream: bool) -> str:
    head = ["client", f"us a {'token' if stream else 'request'}", "x C", "x FastHttpUser", "core busy"]
    head += ["tokens/s", "TTFT error p50 / p99 ms", "ITL error p50 / p99 ms"] if stream else ["requests/s"]
    lines = [_row([*head, "failed"]), _row(["---"] * (len(head) + 1))]
    for name in contenders:
        why = figures.why_not(scenario, name)
        if why is not None:
            lines.append(_row([CONTENDERS[name].title, f"({why.splitlines()[0]})", *[_NO] * (len(head) - 1)]))
            continue
        us = figures.median(scenario, name, "us")
        if us is None:
            continue
        cells = [CONTENDERS[name].title, f"{us:.1f}", _times(figures.ratio(scenario, name, "c"))]
        cells += [_times(figures.ratio(scenario, name, "fast_raw"))]
        cells += [_share(figures.median(scenario, name, "core")), f"{figures.median(scenario, name, 'rate') or 0:,.0f}"]
        if stream:
            cells += [_pair(figures, scenario, name, "ttft"), _pair(figures, scenario, name, "itl")]
        lines.append(_row([*cells, str(figures.worst(scenario, name, "failed"))]))
    return "\n".join([*lines, ""])


def _marginal(figures: Figures) -> str:
    if not any(figures.good("marginal", name) for name in MARGINAL_CONTENDERS):
        return ""
    requests = f"{MARGINAL.requests:,} requests less {MARGINAL_FEW}"
    lines = [f"## Whole programs: {MARGINAL.users} streams of {MARGINAL.pace.events} tokens, CPU of {requests}\n"]
    lines += [_row(["program", "us a request", "x loadchaos", "TTFT error p50 / p99 ms", "failed"])]
    lines += [_row(["---"] * 5)]
    for name in MARGINAL_CONTENDERS:
        why, us = figures.why_not("marginal", name), figures.median("marginal", name, "us")
        if us is None:
            lines.append(_row([CONTENDERS[name].title, f"({(why or 'not measured').splitlines()[0]})", *[_NO] * 3]))
            continue
        ours = figures.median("marginal", "loadchaos", "us")
        cells = [CONTENDERS[name].title, f"{us:,.0f}", _times(us / ours if ours else None)]
        cells += [_pair(figures, "marginal", name, "ttft")]
        lines.append(_row([*cells, str(figures.worst("marginal", name, "failed"))]))
    return "\n".join([*lines, ""])


def _payloads(payloads: Mapping[str, Any]) -> str:
    if not payloads:
        return ""
    lines = ["## Making what is sent\n", _row(["a unique 1024x1024 image in a body", "us", "kB"]), _row(["---"] * 3)]
    lines += [_row([name, f"{us:,.1f}", f"{kb:,.1f}"]) for name, us, kb in payloads["images"]]
    lines += ["", _row(["a prompt of exactly so many tokens in its body", "us, median", "p90"]), _row(["---"] * 3)]
    lines += [_row([f"{tokens:,}", f"{us:,.0f}", f"{p90:,.0f}"]) for tokens, us, p90 in payloads["prompts"]]
    whole, more = payloads["one_image_us"], payloads["further_image_us"]
    lines += ["", f"A whole request with one such PNG costs {whole:.1f} us to make, each further one {more:.1f} us."]
    return "\n".join([*lines, ""])


def _server(trials: list[Mapping[str, Any]]) -> str:
    measured = [t for t in trials if "server_core" in t]
    if not measured:
        return ""
    busy, late = max(t["server_core"] for t in measured), max(t["server_late"] for t in measured)
    paced = max((t["server_core"] for t in measured if t["scenario"].startswith("streams")), default=0.0)
    return (
        f"The load server's core was {busy:.0%} busy at most, {paced:.0%} while it streamed; at most {late:.2%} of a "
        "trial's tokens left it over 1 ms late.\n"
    )


def _pair(figures: Figures, scenario: str, name: str, key: str) -> str:
    p50, p99 = (figures.median(scenario, name, f"{key}_p{q}") for q in (50, 99))
    return _NO if p50 is None or p99 is None else f"{p50:.2f} / {p99:.2f}"


def _times(ratio: float | None) -> str:
    return _NO if ratio is None else f"{ratio:.2f}"


def _share(share: float | None) -> str:
    return _NO if share is None else f"{share:.0%}"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
