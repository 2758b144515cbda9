"""Recorded request arrivals (a trace) and how a step replays one of them.

A trace is a JSON Lines file as Mooncake publishes it and `vllm bench serve --dataset-name timed_trace` reads it. Each line
has `timestamp`, `input_length`, `output_length` and optionally `hash_ids`, one id for each block of the prompt. Blocks with
the same id have the same text.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from loadchaos.core.errors import why_unread
from loadchaos.core.model import Output, Step


@dataclass(frozen=True)
class Arrival:
    """One request of a trace.

    `at` counts from the first request, in the trace's own time unit; lengths are in tokens.
    """

    at: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


@runtime_checkable
class Replays(Protocol):
    """Payload options that can replay the prompts of a trace."""

    def replay(self, tokens: int, blocks: Sequence[int], block_tokens: int) -> Any:
        """Options for a prompt of `tokens` tokens that starts with `blocks`."""


@functools.lru_cache(maxsize=8)
def read(file: str) -> tuple[Arrival, ...]:
    """Read all arrivals of a trace, sorted by time.

    Raises ValueError with the file and line of a mistake.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as e:
        raise ValueError(f"{file}: {why_unread(e)}") from e
    except UnicodeDecodeError as e:
        raise ValueError(f"{file}: the file is not UTF-8 text") from e
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                found.append(_arrival(json.loads(line)))
            except json.JSONDecodeError as e:
                raise ValueError(f"{file}:{number}:{e.colno}: not JSON: {e.msg}") from e
            except (ValueError, TypeError) as e:
                raise ValueError(f"{file}:{number}: {e}") from e
    if not found:
        raise ValueError(f"{file}: the trace has no requests")
    found.sort(key=lambda a: a.at)
    return tuple(replace(a, at=a.at - found[0].at) for a in found)


def _arrival(row: Any) -> Arrival:
    if not isinstance(row, dict):
        raise ValueError(f"an object with timestamp, input_length and output_length was expected (got {row!r})")
    at = row.get("timestamp")
    if isinstance(at, bool) or not isinstance(at, int | float) or not -1e18 < at < 1e18:
        raise ValueError(f"timestamp: a number was expected (got {at!r})")
    blocks = row.get("hash_ids") or ()
    if not isinstance(blocks, list | tuple) or not all(isinstance(b, int) for b in blocks):
        raise ValueError("hash_ids: whole numbers were expected")
    return Arrival(float(at), _tokens(row, "input_length"), _tokens(row, "output_length"), tuple(blocks))


def _tokens(row: Any, name: str) -> int:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: a number of tokens of at least 1 was expected (got {value!r})")
    return value


def apply(step: Step, arrival: Arrival, block_tokens: int) -> Step:
    """Apply the lengths and shared blocks of an arrival to a step."""
    payload = {
        name: options.replay(arrival.input_tokens, arrival.blocks, block_tokens)
        if isinstance(options, Replays)
        else options
        for name, options in step.payload.items()
    }
    return replace(step, payload=payload, output=Output(exact=arrival.output_tokens))
