"""Seeded numbers that cost half a microsecond each, from any place in a sequence: what makes a step a pure function."""

from __future__ import annotations

import zlib

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_UNIT = 2.0**-53


def mix(seed: int, *more: int) -> int:
    """A 64-bit number that depends on every argument (splitmix64: Steele, Lea, Flood 2014, `SplittableRandom`)."""
    return _scramble((begun(seed, *more) + _GOLDEN) & _MASK)


def begun(seed: int, *more: int) -> int:
    """What `mix(seed, *more, n)` has in common for every n: `mixed(begun(seed, *more), n)` is the same number."""
    state = seed & _MASK
    for value in more:
        state = _scramble((state + (value & _MASK) * _GOLDEN + _GOLDEN) & _MASK)
    return state


def mixed(begun: int, value: int) -> int:
    """See `begun`."""
    return _scramble((_scramble((begun + (value & _MASK) * _GOLDEN + _GOLDEN) & _MASK) + _GOLDEN) & _MASK)


def _scramble(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def of_text(text: str) -> int:
    """A number for a name, the same in every process (Python's own hash is not)."""
    return zlib.crc32(text.encode())


class Rng:
    """A stream of numbers from one seed. `random.Random` would do, but takes 5 microseconds to seed."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def bits(self) -> int:
        """64 random bits."""
        self._state = (self._state + _GOLDEN) & _MASK
        return _scramble(self._state)

    def share(self) -> float:
        """A number in [0, 1)."""
        return (self.bits() >> 11) * _UNIT

    def between(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low if low == high else low + self.bits() % (high - low + 1)
