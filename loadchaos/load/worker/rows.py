"""The rows one worker writes into requests-<w>.jsonl: what a request was, and what it came to."""

from __future__ import annotations

import hashlib
import zlib

from loadchaos.core.ledger.rows import BeginRow, EndRow, MissedRow, MissReason
from loadchaos.core.model import Outcome, Reply, Request
from loadchaos.load.wire.exchange import Exchange

_OK = ("ok",)
_ONLY_OK: list[Outcome] = ["ok"]


def expected(request: Request) -> list[Outcome]:
    """The outcomes that are right: what the payload knows better (a rung above the limit) stands over the step."""
    expect = request.step.expect if request.expect == _OK else request.expect
    return _ONLY_OK if expect == _OK else list(expect)


def begin(exchange: Exchange) -> BeginRow:
    """Written before the first byte; `crc` and `hash` tell whether a body rebuilt later is the one that was sent."""
    step, request = exchange.step, exchange.wire.request
    return {
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
        "crc": zlib.crc32(request.body),
        "hash": hashlib.blake2b(request.body, digest_size=8).hexdigest(),
        "tokens": request.tokens,
        "images": request.images,
        "image_tokens": request.image_tokens,
        "max_tokens": request.max_tokens,
        "behaviour": step.behaviour,
        "expect": expected(request),
        "edge": request.edge,
        "seed": step.seed,
        "fitted": request.fitted,
        "image_names": request.image_names,
        "videos": request.videos,
    }


def end(exchange: Exchange, reply: Reply) -> EndRow:
    """What it came to. `length_mismatch`: the server counted other prompt tokens than were planned."""
    step, request = exchange.step, exchange.wire.request
    mismatch = request.tokens is not None and reply.prompt_tokens is not None and request.tokens != reply.prompt_tokens
    return {
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
        "detail": reply.detail,
        "evidence": list(reply.evidence),
        "bytes_in": reply.bytes_in,
        "bytes_out": reply.bytes_out,
        "expect": expected(request),
        "planned_tokens": request.tokens,
        "length_mismatch": mismatch,
        "images": request.images,
        "image_tokens": request.image_tokens,
        "edge": request.edge,
        "exact_tokens": request.exact,
    }


def missed(traffic: str, phase: int, why: MissReason, count: int, at_ns: int) -> MissedRow:
    """Requests that were due and never sent, many in one row."""
    return {"row": "missed", "at_ns": at_ns, "traffic": traffic, "phase": phase, "why": why, "count": count}
