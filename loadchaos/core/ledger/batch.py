"""Fold successful requests into one `well` row while disk space is low. A `well` row keeps what the analysis counts of
each request (times to the microsecond, tokens) and the gaps between tokens of all together. It takes a thirteenth of
the space. The step in the plan still tells the content of a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from loadchaos.core.histogram import LogHistogram
from loadchaos.core.ledger.rows import BeginRow, EndRow, WellRow
from loadchaos.core.model import Row

ROW = "well"
_US = 1000
_MOMENTS = ("due_ns", "sent_ns", "first_byte_ns", "first_token_ns", "first_answer_ns", "last_byte_ns", "at_ns")
"""Times of the end row, written as microseconds before the `at_ns` of the `well` row."""
_NUMBERS = (
    "step", "chunks", "prompt_tokens", "completion_tokens", "cached_tokens", "tokens", "images", "image_tokens", "bytes_in",
    "bytes_out",
)  # fmt: skip
_OPTIONAL = ("drafted_tokens", "accepted_tokens")
"""Numbers that only some end rows have."""
_SHARED = ("traffic", "phase", "round", "behaviour", "max_tokens", "finish_reason", "status")
_ONLY_BEGIN = ("tokens", "round", "behaviour", "max_tokens")
_OF_BEGIN = (*_ONLY_BEGIN, "step", "phase", "traffic", "due_ns", "images", "image_tokens")
_NOTHING = ("request_id", "error", "error_code", "exact_tokens")

Pair = tuple[BeginRow, EndRow]
"""The begin and the end row of one request."""


def can_fold(begin: BeginRow, end: EndRow) -> bool:
    """Tell whether a request may be folded: a plain success without remarks."""
    return (
        end["outcome"] == "ok"
        and end["expect"] == ["ok"]
        and not (end.get("wrong") or end.get("signs") or end.get("content", {}).get("odd"))
        and not (end["evidence"] or end["error"] or end["detail"] or end["length_mismatch"])
        and end["edge"] is None
        and end["exact_tokens"] is None
        and end.get("most_tokens") is None
        and end.get("asked_tokens") is None
        and not begin["fitted"]
        and str(begin["id"]).endswith(f"-{begin['step']}")
    )


def fold_requests(pairs: Sequence[Pair]) -> Iterator[WellRow]:
    """Fold requests that `can_fold` into `well` rows, one for each kind."""
    kinds: dict[tuple[object, ...], list[Row]] = {}
    for begin, end in pairs:
        prefix = str(begin["id"]).removesuffix(str(begin["step"]))
        both: Row = {**begin, **end, "images": begin["images"], "sent_ns": begin["at_ns"], "prefix": prefix}
        labels = tuple((end.get("labels") or {}).items())
        kinds.setdefault((prefix, labels, *(both[k] for k in _SHARED)), []).append(both)
    for ends in kinds.values():
        first = ends[0]
        at_ns = max(int(e["at_ns"]) for e in ends)
        gaps = LogHistogram()
        for e in ends:
            gaps.merge(e["itl_hist"])
        well = {
            "row": ROW,
            "at_ns": at_ns,
            "n": len(ends),
            **{k: first[k] for k in ("prefix", *_SHARED)},
            **({"labels": first["labels"]} if first.get("labels") else {}),
            **{k: _column([e[k] for e in ends]) for k in _NUMBERS},
            **{k: _column([e.get(k) for e in ends]) for k in _OPTIONAL if any(k in e for e in ends)},
            **{
                f"{k[:-3]}_us": _column([None if e[k] is None else (at_ns - e[k]) // _US for e in ends])
                for k in _MOMENTS
            },
            "gaps_ns": _column([round(LogHistogram(e["itl_hist"]).total) for e in ends]),
            "itl_hist": gaps.counts,
            "largest_gap_ns": max(e["largest_gap_ns"] for e in ends),
        }
        yield cast("WellRow", well)  # its keys are computed


def unfold_row(well: Row) -> list[BeginRow | EndRow]:
    """Unfold a `well` row into begin and end rows in order of time. The first end row has the gaps of all. Raises
    KeyError, IndexError, TypeError or ValueError for a malformed row.
    """
    found: list[BeginRow | EndRow] = []
    shared = {k: well[k] for k in _SHARED}
    for i in range(int(well["n"])):
        values = shared | {k: _value(well[k], i) for k in _NUMBERS} | {k: _moment(well, k, i) for k in _MOMENTS}
        common = {
            "id": f"{well['prefix']}{values['step']}",
            "expect": ["ok"],
            "edge": None,
            "folded": True,
        }
        begin = {
            **{k: values[k] for k in _OF_BEGIN},
            **common,
            "row": "begin",
            "at_ns": values["sent_ns"],
        }
        end = {
            **{k: v for k, v in values.items() if k not in _ONLY_BEGIN},
            **common,
            **dict.fromkeys(_NOTHING),
            "row": "end",
            "outcome": "ok",
            "detail": {},
            "evidence": [],
            "planned_tokens": values["tokens"],
            "length_mismatch": False,
            "gaps_ns": _value(well.get("gaps_ns"), i),
            "itl_hist": {} if i else well["itl_hist"],
            "largest_gap_ns": 0 if i else well["largest_gap_ns"],
            **{k: n for k in _OPTIONAL if (n := _value(well.get(k), i)) is not None},
        }
        if well.get("labels"):
            end["labels"] = well["labels"]
        found += [cast("BeginRow", begin), cast("EndRow", end)]
    found.sort(key=lambda row: row["at_ns"])
    return found


def _column(values: list[int | None]) -> list[int | None] | int | None:
    return values[0] if all(v == values[0] for v in values) else values


def _value(column: Any, i: int) -> Any:
    return column[i] if isinstance(column, list) else column


def _moment(well: Row, name: str, i: int) -> int | None:
    before_us = _value(well[f"{name[:-3]}_us"], i)
    return None if before_us is None else int(well["at_ns"]) - int(before_us) * _US
