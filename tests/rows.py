"""Rows of a made-up ledger: each builder gives the usual values, which keywords override."""

from __future__ import annotations

from typing import Any

S = 1_000_000_000
MS = 1_000_000
Row = dict[str, Any]


def begin_row(at_s: float, id_: str = "r", *, traffic: str = "text", **more: Any) -> Row:
    """Begin of a request that was due at once."""
    at_ns = round(at_s * S)
    base = {"id": id_, "step": 0, "phase": 0, "traffic": traffic, "due_ns": at_ns, "expect": ["ok"]}
    return {"row": "begin", "at_ns": at_ns, **base, **more}


def end_row(at_s: float, id_: str = "r", *, traffic: str = "text", outcome: str = "ok", **more: Any) -> Row:
    """End of a request without times of its answer."""
    base = {"id": id_, "step": 0, "phase": 0, "traffic": traffic, "outcome": outcome, "expect": ["ok"]}
    return {"row": "end", "at_ns": round(at_s * S), **base, **more}


def answered(sent_ns: int, n: int, *, took_ns: int = S, traffic: str = "text", **more: Any) -> list[Row]:
    """Begin and end of request `n`, sent when due; its first token comes after half of its time."""
    last_ns = sent_ns + took_ns
    ended = {"sent_ns": sent_ns, "first_token_ns": sent_ns + took_ns // 2, "last_byte_ns": last_ns, "itl_hist": {}}
    base = {"step": n, "due_ns": sent_ns, "phase": more.pop("phase", 0), "traffic": traffic}
    begin = {**begin_row(0, f"r{n}"), **base, "at_ns": sent_ns}
    return [begin, {**end_row(0, f"r{n}"), **base, "at_ns": last_ns, **ended, "detail": {}, **more}]


def metrics_row(at_s: float, *, replica: str = "server", engine: str = "0", **values: float) -> Row:
    """Scraped values of one engine."""
    return {"row": "metrics", "at_ns": round(at_s * S), "replica": replica, "engine": engine, "values": values}


def run_row(what: str, at_s: float) -> Row:
    """Event of the run itself."""
    return {"row": "run", "at_ns": round(at_s * S), "what": what}
