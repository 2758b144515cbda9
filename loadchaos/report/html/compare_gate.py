"""Gate for CI: decide whether a run is worse than another one by more than a limit (`compare --fail-if`)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadchaos.core import exit_codes, latency_percentiles
from loadchaos.core.errors import OptionError, did_you_mean
from loadchaos.core.latency_percentiles import LatencyName
from loadchaos.report.formatting import clean, duration, percent
from loadchaos.report.html.compare import (
    CONFIDENCE,
    Comparison,
    Difference,
    failed_share,
    incomparable,
    overall_latency,
)
from loadchaos.report.html.trend import OF_PROFILE
from loadchaos.report.performance import per_second
from loadchaos.report.repeat_compare import differences, doubts, is_worse
from loadchaos.report.repeat_result import FAILED, FIGURES, RATES, RepeatResult

WORSE = "worse"
_NOT_JUDGED = ("error", "interrupted", "not ended")
_LIMIT = re.compile(r"\s*(\w+)\s*([<>])\s*([+-]\d+(?:\.\d+)?)\s*(%|pp)\s*")
_WORSE_OF = (
    LatencyName("ttft", "p50"),
    LatencyName("ttft", "p99"),
    LatencyName("itl", "p50"),
    LatencyName("itl", "p99"),
)
_CONFIDENCE_OF_WORSE = 0.99
"""Of each figure of `worse`: five figures of two equal servers then give a false alarm in at most 5 % of comparisons."""


@dataclass(frozen=True)
class DifferenceLimit:
    """`figure > +change`. `change` is a share of the figure in A, that of `failed` a difference of two shares."""

    text: str
    figure: str
    sign: Literal["<", ">"]
    change: float


@dataclass(frozen=True)
class GateResult:
    """Verdict of one limit on two runs."""

    limit: str
    verdict: Literal["pass", "fail", "unknown"]
    why: str


def parse(text: str) -> DifferenceLimit | None:
    """Parse `ttft_p99 > +10%`, `failed > +1pp` or `worse` (None). Raises OptionError."""
    if text.strip() == WORSE:
        return None
    latency = [str(name) for name in latency_percentiles.all_names() if name.quantile and name.latency != "session_e2e"]
    known = [FAILED, *RATES, *latency]
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise OptionError(
            f"--fail-if {text!r}: expected {WORSE}, or a figure with a limit such as 'ttft_p99 > +10%', "
            "'requests_per_s < -5%' or 'failed > +1pp'"
        )
    figure, sign, change, unit = found.groups()
    if figure not in known:
        examples = f"; known are {', '.join([FAILED, *RATES])} and latencies such as ttft_p99"
        raise OptionError(f"--fail-if: unknown figure {figure!r}{did_you_mean(figure, known, examples)}")
    if (unit == "pp") is not (figure == FAILED):
        wanted = "percentage points, for example '> +1pp'" if figure == FAILED else "per cent, for example '> +10%'"
        raise OptionError(f"--fail-if {text!r}: the limit of {figure} was expected in {wanted}")
    if (sign == ">") is not (float(change) >= 0):
        raise OptionError(f"--fail-if {text!r}: expected > with a rise (+), or < with a fall (-)")
    return DifferenceLimit(text.strip(), figure, "<" if sign == "<" else ">", float(change) / 100)


def judge(limits: Sequence[DifferenceLimit | None], found: Comparison) -> tuple[GateResult, ...]:
    """Judge each limit. A difference beyond it fails where the two runs can be told apart, and is unknown elsewhere."""
    return _unless_other_loads(limits, found, incomparable(found.a, found.b)) or tuple(
        _worse(found) if limit is None else _judge(limit, found) for limit in limits
    )


def refuse_for_repeats(limits: Sequence[DifferenceLimit | None]) -> None:
    """Raise OptionError for a limit on a figure that repeated loads do not keep."""
    if other := next((limit.figure for limit in limits if limit is not None and limit.figure not in FIGURES), None):
        raise OptionError(f"--fail-if: repeated loads have no {other}; they have {', '.join(FIGURES)}")


def judge_repeats(
    limits: Sequence[DifferenceLimit | None], a: RepeatResult, b: RepeatResult, first: Comparison
) -> tuple[GateResult, ...]:
    """Judge each limit on two repeated loads, by the differences between runs. `first` compares the first run of each."""
    found = differences(a, b, CONFIDENCE)
    return _unless_other_loads(limits, first, doubts(a, b, first)) or tuple(
        _worse_repeats(a, b) if limit is None else _judge_difference(limit, found.get(limit.figure)) for limit in limits
    )


def _unless_other_loads(
    limits: Sequence[DifferenceLimit | None], found: Comparison, reasons: Sequence[str]
) -> tuple[GateResult, ...]:
    loads = [change for change in found.changes if change.startswith(OF_PROFILE)]
    if why := "; ".join([*reasons, *loads]):
        return tuple(GateResult(limit.text if limit else WORSE, "unknown", why) for limit in limits)
    return ()


def exit_code(results: Sequence[GateResult]) -> int:
    verdicts = {result.verdict for result in results}
    if "fail" in verdicts:
        return exit_codes.FAIL
    return exit_codes.UNKNOWN if "unknown" in verdicts else exit_codes.PASS


def lines(results: Sequence[GateResult]) -> list[str]:
    signs = {"pass": "ok", "fail": "FAIL", "unknown": "?"}
    return [f"{signs[r.verdict]:5} {r.limit}: {clean(r.why, 300)}" for r in results]


def _judge(limit: DifferenceLimit, found: Comparison) -> GateResult:
    if limit.figure in RATES:
        return _judge_rate(limit, found)
    name = latency_percentiles.parse(limit.figure)
    return _judge_difference(
        limit, failed_share(found.a, found.b) if name is None else overall_latency(found.a, found.b, name)
    )


def _judge_difference(limit: DifferenceLimit, difference: Difference | None) -> GateResult:
    if difference is None or difference.a is None or difference.b is None:
        return GateResult(limit.text, "unknown", "a run has no such figure")
    if difference.low is None or difference.high is None:
        few = min(difference.n_a, difference.n_b)
        return GateResult(
            limit.text, "unknown", f"{_both(difference)}: too few to compare ({few:,}); run longer, or more often"
        )
    if difference.says == "void":
        return GateResult(limit.text, "unknown", "the figure means nothing in one of the runs")
    share = difference.unit == "share"
    if not share and not difference.a:
        return GateResult(limit.text, "unknown", "the figure is 0 in A")
    change = difference.b - difference.a if share else difference.b / difference.a - 1
    told_apart = difference.says == ("higher" if limit.sign == ">" else "lower")
    if not _beyond(limit, change):
        bound = difference.high if limit.sign == ">" else difference.low
        wide = _beyond(limit, bound if share else bound / difference.a)
        doubt = "; its interval reaches beyond the limit" if wide else ""
        return GateResult(limit.text, "pass", _both(difference) + doubt)
    if told_apart:
        return GateResult(limit.text, "fail", _both(difference))
    return GateResult(limit.text, "unknown", f"{_both(difference)}: not told apart from noise; run longer")


def _judge_rate(limit: DifferenceLimit, found: Comparison) -> GateResult:
    a, b = (side.figures.get(RATES[limit.figure]) for side in (found.a, found.b))
    if not a or b is None:
        return GateResult(limit.text, "unknown", "a run has no such figure")
    change = b / a - 1
    why = f"{a:.4g} to {b:.4g}, {100 * change:+.1f} % (without an interval)"
    if not _beyond(limit, change):
        return GateResult(limit.text, "pass", why)
    chance = 2 * math.sqrt(sum(1 / max(1, side.sent) for side in (found.a, found.b)))
    if found.a.seed != found.b.seed and abs(change) < chance:
        return GateResult(
            limit.text, "unknown", f"{why}: other arrivals, as the seed differs; use one seed or run longer"
        )
    return GateResult(limit.text, "fail", why)


def _worse(found: Comparison) -> GateResult:
    differences = [
        failed_share(found.a, found.b, _CONFIDENCE_OF_WORSE),
        *(overall_latency(found.a, found.b, name, _CONFIDENCE_OF_WORSE) for name in _WORSE_OF),
    ]
    judged = [d for d in differences if d is not None and d.says not in ("too few", "void")]
    few = "" if any(d.unit == "s" for d in judged) else "too few answers to compare latencies; run longer"
    return _decide_worse((found.a.verdict, found.b.verdict), judged, [d for d in judged if d.says == "higher"], few)


def _worse_repeats(a: RepeatResult, b: RepeatResult) -> GateResult:
    judged = {n: d for n, d in differences(a, b).items() if d.says != "too few"}
    verdicts = exit_codes.shown_verdict(a.exit_code), exit_codes.shown_verdict(b.exit_code)
    worse = [d for n, d in judged.items() if is_worse(n, d)]
    return _decide_worse(verdicts, list(judged.values()), worse, "" if judged else "too few runs to compare")


def _decide_worse(
    verdicts: tuple[str, str], judged: Sequence[Difference], worse: Sequence[Difference], few: str
) -> GateResult:
    """`few`: why nothing can be compared; empty where it can."""
    both = f"the verdict of A is {verdicts[0]}, that of B {verdicts[1]}"
    if verdicts == ("pass", "fail"):
        return GateResult(WORSE, "fail", both)
    if worse:
        return GateResult(WORSE, "fail", "; ".join(f"{d.what} {_both(d)}" for d in worse))
    if few:
        return GateResult(WORSE, "unknown", few)
    if verdicts[1] in _NOT_JUDGED or verdicts in (("pass", "unknown"), ("unknown", "fail")):
        return GateResult(WORSE, "unknown", both)
    return GateResult(WORSE, "pass", f"no clear difference in {', '.join(d.what for d in judged)}")


def _beyond(limit: DifferenceLimit, change: float) -> bool:
    return change > limit.change if limit.sign == ">" else change < limit.change


def _both(d: Difference) -> str:
    """Both values and the change with its interval."""
    if d.a is None or d.b is None:
        return "no value"
    if d.unit == "share":
        bounds = "" if d.low is None or d.high is None else f" ({100 * d.low:+.2f} to {100 * d.high:+.2f})"
        return f"{percent(d.a, 2)} to {percent(d.b, 2)}, {100 * (d.b - d.a):+.2f} pp{bounds}"
    show = per_second if d.unit == "rate" else duration
    if not d.a or d.low is None or d.high is None:
        return f"{show(d.a)} to {show(d.b)}"
    change = f"{100 * (d.b / d.a - 1):+.1f} % ({100 * d.low / d.a:+.1f} to {100 * d.high / d.a:+.1f})"
    return f"{show(d.a)} to {show(d.b)}, {change}"
