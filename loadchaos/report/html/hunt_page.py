"""Page of a hunt: findings, coverage over time, corpus, workloads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from loadchaos.core.units import spent_time
from loadchaos.report.html import templates

_MOST_ENTRIES, _MOST_WORKLOADS = 30, 400


def render(data: Mapping[str, Any]) -> str:
    """Render `settings` of hunt.json, `rows` of the workloads, `entries` of the corpus with their energy, `findings` with
    `text`, `worth` as a sentence, and the number of `features`.
    """
    server, rows = data["settings"].get("server") or {}, data["rows"]
    named = " ".join(str(server[k]) for k in ("dialect", "version") if server.get(k))
    return templates.render(
        "hunt.html.j2",
        title=f"Hunt on {named}" if named else "Hunt",
        **{**data, "rows": rows[-_MOST_WORKLOADS:]},
        chart=CoverageChart.of(rows) if rows else None,
        most_entries=_MOST_ENTRIES,
        time=_time,
        genes_text=genes_text,
    )


def _time(seconds: float) -> str:
    return spent_time(seconds) if seconds else "0 s"


@dataclass(frozen=True)
class CoverageChart:
    """The number of features over the time of the hunt, `most` of them in `most_s` seconds."""

    most_s: float
    most: int
    path: str = ""
    width: int = 960
    height: int = 260
    left: int = 60

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> CoverageChart:
        totals = list(accumulate(len(row.get("news") or ()) for row in rows))
        most_s, most = max(float(rows[-1]["at_s"]), 1.0), max(totals[-1], 1)
        scale = cls(most_s, most)
        steps = (f"H{scale.x(float(row['at_s']))}V{scale.y(n)}" for row, n in zip(rows, totals, strict=True))
        return cls(most_s, most, f"M{scale.x(0)},{scale.y(0)}{''.join(steps)}")

    def x(self, at_s: float) -> float:
        return round(self.left + (self.width - self.left - 10) * min(at_s, self.most_s) / self.most_s, 1)

    def y(self, features: float) -> float:
        return round(10 + (self.height - 38) * (1 - features / self.most), 1)

    @property
    def ticks(self) -> list[dict[str, object]]:
        parts = [(self.most * quarter / 4, self.most_s * quarter / 4) for quarter in range(5)]
        return [{"y": self.y(n), "features": round(n), "x": self.x(at), "time": _time(at)} for n, at in parts]


def genes_text(workload: Mapping[str, Any]) -> str:
    parts = [_genes(workload["load"]), *(f"[{_genes(t)}]" for t in workload["traffic"])]
    parts += [f"attack [{_genes(a)}]" for a in workload.get("attacks") or ()]
    return " ".join(parts)


def _genes(genes: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v if isinstance(v, str | int | float) else json.dumps(v)}" for k, v in genes.items())
