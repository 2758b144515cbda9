"""Make docs/measured/performance.md from docs/measured/performance.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.cost.contenders import CONTENDERS
from bench.cost.figures import GIVEN_UP, Figures, Target, targets
from bench.cost.rows import MARGINAL, MARGINAL_CONTENDERS, MARGINAL_FEW, SCENARIOS

_METHOD = """\
This page is written by `make bench`. `python -m bench.cost --help` lists further options. Compare ratios: the microseconds
depend on the machine.

- **Server and cores.** The load server is `bench/server.c` (epoll, one thread) on a core of its own; the client runs on
  another core. A stream has 128 tokens, one every 20 ms, the first 100 to 120 ms after the request. Streams begin at the
  rate that keeps the number in the title open.
- **CPU** is user and system time of all processes of the client, from /proc, in a window given by the server's counters.
  Start-up is not counted. CPU per token includes the requests.
- **TTFT error** is the client's time minus the server's time, on one clock (CLOCK_MONOTONIC): each token carries the
  server's time. **ITL error** is the client's percentile minus the percentile that was sent.
- **Timestamps.** loadchaos uses the kernel's timestamp of the packet (except with TLS). The other clients use the time at
  which they read it. loadchaos may therefore read several tokens at once: at most 2 ms after they came, and at most a
  quarter of the shortest gap in any stream (at least 0.5 ms).
- **loadchaos, complete** is the Locust child as `loadchaos run` starts it: it builds each body, writes ledger rows, keeps
  histograms and Locust's statistics. The other clients send one prepared body of the same size and only keep timestamps.
- Figures are medians over the trials. Ratios are computed within a repeat. A single stall of the machine shows in a p99.
- With `--urgent`, clients of one process have priority over other work of the machine. `loadchaos run`, GuideLLM and AIPerf
  do not.
"""
_NO = "–"


def render(found: Mapping[str, Any]) -> str:
    """Make the whole page."""
    figures = Figures(found["trials"])
    parts = ["# Performance: cost per request and accuracy of times\n", _about(found["machine"]), _METHOD]
    parts += [
        "![CPU time and TTFT error of each client](performance.svg)\n",
        "## Targets\n",
        _targets(targets(figures, found.get("payloads", {}))),
    ]
    if found.get("notes"):
        parts += ["## Not measured, or uncertain\n", "\n".join(f"- {note}" for note in found["notes"]) + "\n"]
    for name, scenario in SCENARIOS.items():
        if any(figures.good(name, c) for c in scenario.contenders):
            stream = scenario.load.stream
            parts += [f"## {scenario.title}\n", _table(figures, name, scenario.contenders, stream=stream)]
    parts += [_marginal(figures), _payloads(found.get("payloads", {})), _server(found["trials"])]
    return "\n".join(part for part in parts if part)


def _about(machine: Mapping[str, Any]) -> str:
    commands = "\n".join(f"    {command}" for command in machine["commands"])
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    first = "; server and client had priority over other work (SCHED_FIFO)" if machine["urgent"] else ""
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
            open_ones.append(f"- {target.asked}: {target.measured}. Reason: {target.between}.")
    words = ["", "Why targets are not met:", "", *open_ones] if open_ones else []
    words += ["", "Earlier targets that were given up:", "", *(f"- {target}: {why}." for target, why in GIVEN_UP)]
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
    requests = f"{MARGINAL.requests:,} requests minus {MARGINAL_FEW}"
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
    lines = [
        "## Cost of building requests\n",
        _row(["a unique 1024x1024 image in a body", "us", "kB"]),
        _row(["---"] * 3),
    ]
    lines += [_row([name, f"{us:,.1f}", f"{kb:,.1f}"]) for name, us, kb in payloads["images"]]
    lines += ["", _row(["a prompt of exactly this many tokens, in its body", "us, median", "p90"]), _row(["---"] * 3)]
    lines += [_row([f"{tokens:,}", f"{us:,.0f}", f"{p90:,.0f}"]) for tokens, us, p90 in payloads["prompts"]]
    whole, further = payloads["one_image_us"], payloads["further_image_us"]
    lines += ["", f"A whole request with one such PNG costs {whole:.1f} us, and each further PNG {further:.1f} us."]
    return "\n".join([*lines, ""])


def _server(trials: list[Mapping[str, Any]]) -> str:
    measured = [t for t in trials if "server_core" in t]
    if not measured:
        return ""
    busy, late = max(t["server_core"] for t in measured), max(t["server_late"] for t in measured)
    paced = max((t["server_core"] for t in measured if t["scenario"].startswith("streams")), default=0.0)
    return (
        f"The core of the load server was at most {busy:.0%} busy, and {paced:.0%} with streams. At most {late:.2%} of the "
        "tokens of a trial were sent over 1 ms late.\n"
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
