"""Build the ledger rows of requests-<w>.jsonl: begin, end, missed."""

from __future__ import annotations

from typing import Any

import orjson

from loadchaos.core.body_hash import body_hash
from loadchaos.core.ledger.rows import BeginRow, EndRow, MissedRow, MissReason
from loadchaos.core.model import Outcome, Reply, Request
from loadchaos.load.wire.exchange import Exchange

_OK = ("ok",)
_ONLY_OK: list[Outcome] = ["ok"]


def expected_outcomes(request: Request) -> list[Outcome]:
    """Outcomes that are correct. The payload's (a rung above the limit) override the step's."""
    expect = request.step.expect if request.expect == _OK else request.expect
    return _ONLY_OK if expect == _OK else list(expect)


def begin_row(exchange: Exchange) -> BeginRow:
    """Build the begin row, written before the first byte.

    `len` and `hash` prove that a body rebuilt later is the one that was sent.
    """
    step, request = exchange.step, exchange.wire.request
    row: BeginRow = {
        "row": "begin",
        "id": exchange.wire.request_id,
        "step": step.index,
        "phase": step.phase,
        "round": step.round,
        "traffic": step.traffic,
        "at_ns": exchange.begun_ns,
        "due_ns": exchange.due_ns,
        "conn": exchange.connection_number,
        "reused": exchange.reused,
        "len": len(request.body),
        "hash": body_hash(request.body),
        "tokens": request.tokens,
        "images": request.images,
        "image_tokens": request.image_tokens,
        "max_tokens": request.max_tokens,
        "behaviour": step.behaviour,
        "expect": expected_outcomes(request),
        "edge": request.edge,
        "seed": step.seed,
        "fitted": request.fitted,
        "image_names": request.image_names,
        "videos": request.videos,
    }
    if request.image_file:
        row["image_file"] = request.image_file
    if request.audio:
        row["audio"] = request.audio
    return row


def ends_in_call(body: bytes, reply: Reply) -> bool:
    """True for an answer cut before the name of its required tool call.

    vLLM's tool parsers pass nothing on before they know the name.
    """
    if reply.finish_reason != "length" or not reply.detail.get("no_text"):
        return False
    try:
        asked: dict[str, Any] = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(asked, dict) and asked.get("tool_choice") not in (None, "auto", "none")


def end_row(exchange: Exchange, reply: Reply) -> EndRow:
    """Build the end row. `length_mismatch`: the server counted other prompt tokens than planned."""
    step, request = exchange.step, exchange.wire.request
    detail, signs = reply.detail, reply.signs
    if ends_in_call(request.body, reply):
        detail = {**{k: v for k, v in detail.items() if k != "no_text"}, "call_cut": True}
        signs = [sign for sign in signs if sign != "no_text"]
    mismatch = request.tokens is not None and reply.prompt_tokens is not None and request.tokens != reply.prompt_tokens
    row: EndRow = {
        "row": "end",
        "id": exchange.wire.request_id,
        "step": step.index,
        "phase": step.phase,
        "traffic": step.traffic,
        "at_ns": reply.end_ns,
        "due_ns": exchange.due_ns,
        "sent_ns": reply.sent_ns,
        "outcome": reply.outcome,
        "status": reply.status,
        "first_byte_ns": reply.first_byte_ns,
        "first_token_ns": reply.first_token_ns,
        "first_answer_ns": reply.first_answer_ns,
        "last_byte_ns": reply.last_byte_ns,
        "chunks": reply.chunks,
        "itl_hist": reply.itl_hist,
        "largest_gap_ns": reply.largest_gap_ns,
        "finish_reason": reply.finish_reason,
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "cached_tokens": reply.cached_tokens,
        "request_id": reply.request_id,
        "error": reply.error,
        "error_code": reply.error_code,
        "detail": detail,
        "evidence": list(reply.evidence),
        "bytes_in": reply.bytes_in,
        "bytes_out": reply.bytes_out,
        "expect": expected_outcomes(request),
        "planned_tokens": request.tokens,
        "length_mismatch": mismatch,
        "images": request.images,
        "image_tokens": request.image_tokens,
        "edge": request.edge,
        "exact_tokens": request.exact,
        "most_tokens": request.most,
    }
    if request.image_file:
        row["image_file"] = request.image_file
    if reply.drafted_tokens is not None and reply.accepted_tokens is not None:
        row["drafted_tokens"], row["accepted_tokens"] = reply.drafted_tokens, reply.accepted_tokens
    if reply.labels:
        row["labels"] = reply.labels
    if reply.wrong:
        row["wrong"] = reply.wrong
    if signs:
        row["signs"] = signs
    if reply.text_ratio is not None:
        row["text_ratio"] = reply.text_ratio
    return row


def missed_row(traffic: str, phase: int, why: MissReason, count: int, at_ns: int) -> MissedRow:
    """Build one row for requests that were due and never sent.

    Args:
        traffic: Name of their traffic.
        phase: Index of their phase.
        why: Reason: `no_slot`, `server_down` or `worker_lost`.
        count: How many.
        at_ns: Time of the row.
    """
    return {"row": "missed", "at_ns": at_ns, "traffic": traffic, "phase": phase, "why": why, "count": count}
