"""Rows of a made-up ledger: each builder gives the usual values, which keywords override."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from loadchaos.analysis.detectors.base import Detector
from loadchaos.analysis.judge import Judge
from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.core.model import Terms
from loadchaos.core.units import NS_PER_S
from tests.waiting import until_async

S = NS_PER_S
MS = 1_000_000
Row = dict[str, Any]


class Fold(Protocol):
    def fold(self, row: Any, /) -> object: ...


F = TypeVar("F", bound=Fold)


def folded(fold: F, rows: Iterable[Any]) -> F:
    """What reads rows one by one, after it has read these."""
    for row in rows:
        fold.fold(row)
    return fold


class EmittedRows(list[Any]):
    """Ledger rows in the order they were emitted."""

    def of(self, kind: str = "", **fields: Any) -> list[Row]:
        wanted = {"row": kind, **fields} if kind else fields
        return [r for r in self if all(r.get(k) == v for k, v in wanted.items())]

    async def until(self, condition: Callable[[], object], limit_s: float = 60.0) -> None:
        await until_async(condition, f"{self[-20:]}", limit_s)


def answered(sent_ns: int, n: int, *, took_ns: int = S, traffic: str = "text", phase: int = 0, **end: Any) -> list[Row]:
    """Begin and end of request `n`, sent when due; its first token comes after half of its time."""
    last_ns = sent_ns + took_ns
    base = {"id": f"r{n}", "step": n, "traffic": traffic, "phase": phase, "due_ns": sent_ns, "expect": ["ok"]}
    times = {"at_ns": last_ns, "sent_ns": sent_ns, "first_token_ns": sent_ns + took_ns // 2, "last_byte_ns": last_ns}
    return [
        {"row": "begin", "at_ns": sent_ns, **base},
        {"row": "end", **base, **times, "outcome": "ok", "itl_hist": {}, "detail": {}, **end},
    ]


def metrics_row(
    at_s: float, values: Mapping[str, float] | None = None, *, replica: str = "server", engine: str = "0", **more: float
) -> Row:
    """Scraped values of one engine, as a mapping or as keywords."""
    scraped = {**(values or {}), **more}
    return {"row": "metrics", "at_ns": round(at_s * S), "replica": replica, "engine": engine, "values": scraped}


def judged(terms: Terms, rows: Iterable[Any]) -> dict[str, Any]:
    """verdict.json of rows, folded in this order."""
    judge = folded(Judge(terms), rows)
    return judge.verdict().to_json()


def decisions(verdict: Mapping[str, Any]) -> list[str]:
    """Verdict of each expectation."""
    return [rule["verdict"] for rule in verdict["expectations"]]


def checks(detector: Detector) -> list[CheckResult]:
    """Checks of a detector at the end of the run."""
    return [found for found in detector.finish() if isinstance(found, CheckResult)]
