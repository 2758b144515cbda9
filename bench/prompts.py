"""Measure CPU of building one prompt of an exact length, with its body.

Usage: python -m bench.prompts
"""

from __future__ import annotations

import statistics
import time

from loadchaos.core.model import Facts, Output, Step, TextFacts
from loadchaos.load.payloads import PAYLOADS
from loadchaos.load.request_builder import build

WORDS = tuple(
    (f" {word}", 1 + n % 3) for n, word in enumerate(("the", "of", "and", "to", "in", "is", "that", "it", "was"))
)
FACTS = Facts("http://x", "http://x", "vllm", "m", "0.32.0", 1 << 20, text=TextFacts(9, WORDS, " the", "tokenize"))
TIMES = 50
LENGTHS = (64, 1_024, 16_384, 131_072)


def micros(tokens: int) -> list[float]:
    """Microseconds of CPU for each of some prompts."""
    options = PAYLOADS["text"].model_validate({"tokens": tokens})

    def step(n: int) -> Step:
        return Step(n, 0, 0, None, "t", 1000 + n, {"text": options}, "plain", None, Output(max=8), ordinal=n)

    build(step(0), FACTS)
    found = []
    for n in range(1, TIMES + 1):
        begin = time.process_time_ns()
        request = build(step(n), FACTS)
        found.append((time.process_time_ns() - begin) / 1e3)
        assert request.tokens == tokens
    return found


def measure() -> list[tuple[int, float, float]]:
    """Measure (prompt tokens, median us, p90 us) of each length."""
    return [(n, statistics.median(took := sorted(micros(n))), took[int(0.9 * TIMES)]) for n in LENGTHS]


def main() -> None:
    """Print the table."""
    print(f"{'prompt tokens':>14} {'median us':>10} {'p90 us':>8}")
    for tokens, median, p90 in measure():
        print(f"{tokens:14,} {median:10.0f} {p90:8.0f}")


if __name__ == "__main__":
    main()
