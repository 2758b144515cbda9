"""Requests that had to succeed, and the figures that limits of `slo` name. The verdict and the Prometheus exporter
count goodput with these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from loadchaos.core.histogram import LogHistogram
from loadchaos.core.latency import sample_of
from loadchaos.core.ledger.rows import BeginRow, EndRow
from loadchaos.core.units import NS_PER_S

NOT_DUE_TO_SUCCEED = frozenset({"aborted", "missed", "unfinished"})
WAIT = "sent_again_after_ns"
"""Key in `detail` of a request refused with 429: the wait after which it is sent again."""


def is_judged(end: EndRow) -> bool:
    """True for a request with an outcome. False for one that is sent again: its last try is judged."""
    return str(end.get("outcome")) not in NOT_DUE_TO_SUCCEED and WAIT not in (end.get("detail") or ())


def expected_of(row: BeginRow | EndRow) -> Sequence[str]:
    """Outcomes that the profile expects of a request."""
    return row.get("expect") or ("ok",)


def had_to_succeed(end: EndRow) -> bool:
    """True for a request with an outcome that its profile expects to be good."""
    return "ok" in expected_of(end) and is_judged(end)


def counts_for_goodput(end: EndRow) -> bool:
    """True for a request that had to succeed, of a client that is not slow."""
    return had_to_succeed(end) and not (end.get("detail") or {}).get("slowed")


def is_good(end: EndRow, limits_s: Mapping[str, float]) -> bool:
    """True for a request that succeeded within every limit."""
    if str(end.get("outcome")) not in expected_of(end):
        return False
    return all(seconds <= limits_s[name] for name, seconds in figures_of(end, limits_s).items())


def figures_of(row: EndRow, names: Iterable[str]) -> dict[str, float]:
    """Figures of an answer that limits name, in seconds. An answer that was not streamed has its first token at its
    end, and no gaps. A figure that an answer does not have, such as the TTFT of an embedding, is left out.
    """
    sample = sample_of(row)
    if sample is None:
        return {}
    gaps = LogHistogram()
    if not row.get("folded"):  # its gaps are those of several requests
        gaps.merge(sample.gaps)
    ttft_ns = sample.e2e_ns if sample.ttft_ns is None and row.get("completion_tokens") else sample.ttft_ns
    found_ns = {"ttft": ttft_ns, "tpot": sample.tpot_ns, "e2e": sample.e2e_ns}
    figures = {}
    for name in names:
        ns = found_ns[name] if name in found_ns else gaps.statistic(name.removeprefix("itl_"))
        if ns is not None:
            figures[name] = ns / NS_PER_S
    return figures
