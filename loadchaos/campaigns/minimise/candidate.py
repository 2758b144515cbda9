"""Candidate of a minimiser: requests, attacks, rounds and launch flags."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from loadchaos.campaigns.replay.servers import ServerChoice
from loadchaos.profile.request_trace import RequestTrace
from loadchaos.server.dialects import DIALECTS

_ADDRESS_FLAGS = ("--port", "--host", "--server-port", "--server-name")
_KEPT_FLAGS = (*_ADDRESS_FLAGS, "--api-key", "--dialect", "--era")
_NUMBER = re.compile(r"-\d")


@dataclass(frozen=True)
class Reduction:
    """Requests that are sent `rounds` times to a server: `command` is its launch command before the first of its
    `flags`, each with its values. `release`: where several are tried, whose commands may be equal. `change`: what the
    newest step left out. `as_script`: it is tried by the script that would be its reproducer, and not by a replay.
    """

    trace: RequestTrace
    command: tuple[str, ...]
    flags: tuple[tuple[str, ...], ...]
    rounds: int = 1
    release: str = ""
    change: str = ""
    as_script: bool = False

    @property
    def requests(self) -> int:
        return len(self.trace.sends)

    @property
    def loose(self) -> list[tuple[str, ...]]:
        """Flags that may be left out."""
        return [flag for flag in self.flags if may_go(flag)]

    def with_loose(self, kept: Sequence[tuple[str, ...]]) -> Reduction:
        return replace(self, flags=tuple(f for f in self.flags if not may_go(f) or f in kept))

    @property
    def sizes(self) -> list[str]:
        """Names of the flags that bound a cache or the batch."""
        return [_name(flag) for flag in self.flags if _name(flag) in _size_flags()]

    def on_smaller_server(self, *names: str) -> Reduction:
        """The same with half the value of these flags, or else of all that bound the context, a cache or the batch."""
        halved = frozenset(names) or _size_flags() | _length_flags()
        return replace(self, flags=tuple(_halved(flag) if _name(flag) in halved else flag for flag in self.flags))

    def resized(self, whole: Reduction) -> list[str]:
        """Flags whose value is another one than in the whole, with both."""
        before = {_name(flag): flag for flag in whole.flags}
        pairs = [(before.get(_name(flag), flag), flag) for flag in self.flags if may_go(flag)]
        return [f"{' '.join(new)} (before: {' '.join(old)})" for old, new in pairs if new != old]

    def key(self) -> str:
        """Hash of everything but the server's address that a try depends on."""
        loose = [flag for flag in self.flags if _name(flag) not in _ADDRESS_FLAGS]
        parts = [repr(self.command), repr(loose), str(self.rounds)]
        parts += [f"release {self.release}"] if self.release else []
        parts += ["script"] if self.as_script else []
        parts += [s.model_dump_json(exclude={"plan", "outcome"}) for s in self.trace.sends]
        parts += [a.model_dump_json() for a in (*self.trace.aborts, *self.trace.attacks)]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()

    def server(self, base: ServerChoice) -> ServerChoice:
        assert base.launch is not None
        argv = (*self.command, *(word for flag in self.flags for word in flag))
        return replace(base, launch=replace(base.launch, argv=argv))


def split_command(argv: Sequence[str]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    first = next((i for i, word in enumerate(argv) if i and _is_flag(word) and not _is_interpreter(argv, i)), len(argv))
    flags: list[tuple[str, ...]] = []
    for word in argv[first:]:
        if _is_flag(word):
            flags.append((word,))
        else:
            flags[-1] = (*flags[-1], word)
    return tuple(argv[:first]), tuple(flags)


def whole_of(trace: RequestTrace, server: ServerChoice, rounds: int, release: str = "") -> Reduction:
    assert server.launch is not None
    return Reduction(trace, *split_command(server.launch.argv), rounds=rounds, release=release)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not _NUMBER.match(word)


def _is_interpreter(argv: Sequence[str], i: int) -> bool:
    return argv[i] in ("-m", "-u", "-P", "-X") and "python" in argv[0].rsplit("/", 1)[-1]


@cache
def _size_flags() -> frozenset[str]:
    return frozenset(flag for dialect in DIALECTS.values() for flag in dialect.size_flags)


@cache
def _length_flags() -> frozenset[str]:
    return frozenset(dialect.length_flag for dialect in DIALECTS.values())


def _halved(flag: tuple[str, ...]) -> tuple[str, ...]:
    name, *values = flag[0].split("=", 1) if len(flag) == 1 else flag
    if len(values) != 1 or not values[0].isdecimal():
        return flag
    half = str(max(1, int(values[0]) // 2))
    return (name, half) if len(flag) == 2 else (f"{name}={half}",)


def may_go(flag: Sequence[str]) -> bool:
    return _name(flag) not in _KEPT_FLAGS


def _name(flag: Sequence[str]) -> str:
    return flag[0].split("=", 1)[0]
