"""Arrival of a trace, and the interface of a format of traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

WAITING = (
    "its turns wait for answers, which a phase with trace does not: make a trace of requests with "
    "`loadchaos replay FILE --export DIR`, and send it by a phase with replay: DIR/trace.jsonl"
)
"""Advice for a trace of sessions or agents, which campaigns/replay reads."""
DAG_KEYS, WEKA_KEYS = frozenset({"session_id", "turns"}), frozenset({"requests", "block_size"})
"""Keys of AIPerf's `dag_jsonl` and of WEKA's traces, whose requests wait for each other, too."""


@dataclass(frozen=True)
class Arrival:
    """One request of a trace. `at` counts from the first request, in the trace's own time unit; lengths are in tokens."""

    at: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class TraceFormat:
    """Format of a trace, recognised by the keys that its first record has. `arrivals` reads the requests of one record
    and raises ValueError where a field is wrong. Records are rows of a CSV file with a head, or JSON, one value a line
    or in all. With `own_unit` times have a unit of their own, and arrivals are in milliseconds.
    """

    about: str
    fields: frozenset[str]
    arrivals: Callable[[Mapping[str, object]], Iterable[Arrival]]
    is_csv: bool = False
    own_unit: bool = True


def whole(value: object, name: str) -> int:
    """Read a number of tokens, of at least 0, also from text or a float without a fraction."""
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else int(str(value).strip())
        if isinstance(value, bool) or number < 0:
            raise ValueError
    except ValueError:
        raise ValueError(f"{name}: a number of tokens was expected (got {value!r})") from None
    return number


def answered(at_ms: float, input_tokens: int, output_tokens: int) -> list[Arrival]:
    """The arrival of a request; none of one that failed (no tokens)."""
    return [Arrival(at_ms, input_tokens, output_tokens, ())] if input_tokens and output_tokens else []


def csv_format(about: str, time: str, at_ms: Callable[[str], float], sent: str, came: str) -> TraceFormat:
    """Format of a CSV file with a column for each of time, prompt tokens and answer tokens. `at_ms` reads a time and
    raises ValueError that says what was expected.
    """

    def arrivals(row: Mapping[str, object]) -> list[Arrival]:
        try:
            at = at_ms(str(row[time]).strip())
        except ValueError as e:
            raise ValueError(f"{time}: {e} (got {row[time]!r})") from None
        return answered(at, whole(row[sent], sent), whole(row[came], came))

    return TraceFormat(about, frozenset({time, sent, came}), arrivals, is_csv=True)
