"""Fast seeded random numbers that can be computed for any index. They make each step of a plan a pure function of seed
and index, at half a microsecond a number.
"""

from __future__ import annotations

import zlib

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_UNIT = 2.0**-53


def hash64(seed: int, *values: int) -> int:
    """Hash integers to 64 bits. The algorithm is splitmix64 (Steele, Lea, Flood 2014, `SplittableRandom`)."""
    return _scramble((hash_prefix(seed, *values) + _GOLDEN) & _MASK)


def hash_prefix(seed: int, *values: int) -> int:
    """Compute the part of `hash64(seed, *values, n)` that all n share. `hash_step(hash_prefix(seed, *values), n)`
    equals `hash64(seed, *values, n)`.
    """
    state = seed & _MASK
    for value in values:
        state = _scramble((state + (value & _MASK) * _GOLDEN + _GOLDEN) & _MASK)
    return state


def hash_step(prefix: int, value: int) -> int:
    """Finish a hash that `hash_prefix` began."""
    return _scramble((_scramble((prefix + (value & _MASK) * _GOLDEN + _GOLDEN) & _MASK) + _GOLDEN) & _MASK)


def _scramble(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def text_seed(text: str) -> int:
    """Hash a name to an integer that is the same in every process."""
    return zlib.crc32(text.encode())


class Rng:
    """Stream of random numbers; `random.Random` would take 5 µs to seed."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def bits(self) -> int:
        self._state = (self._state + _GOLDEN) & _MASK
        return _scramble(self._state)

    def share(self) -> float:
        """Draw a number in [0, 1)."""
        return (self.bits() >> 11) * _UNIT

    def between(self, low: int, high: int) -> int:
        return low if low == high else low + self.bits() % (high - low + 1)
