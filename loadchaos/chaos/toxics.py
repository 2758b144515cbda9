"""Network faults ("toxics", as Toxiproxy calls them), which our proxy (proxy.py) lays on connections.

A new toxic is a subclass of ToxicType, its entry in TOXICS, and its name in `NETWORK_FAULTS` (core/attack_names.py). It
overrides the hooks that it needs; the proxy calls them for every connection that the toxic hits.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from loadchaos.core.errors import OptionError

SLOW = ("stalled", "timeout", "alive_but_hung")
CUT = ("reset", "truncated", "protocol_error", "connect_error", "stream_error")
"""Outcomes and failure ids that a slow network and a cut connection cause by themselves."""


@dataclass(frozen=True)
class Toxic:
    """One network fault in force on a proxy, as the ledger stores it.

    `share` (0..1) of the connections is hit, in the direction `stream`; `seed` decides which connections.
    """

    name: str
    type: str
    stream: str
    share: float
    attributes: Mapping[str, float]
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class ProxyAnswer:
    """Answer of the proxy's process: `listening` on its port, `done` with the connections hit, or `failed`."""

    what: Literal["listening", "done", "failed"]
    port: int = 0
    hit: int = 0
    total: int = 0
    why: str = ""


@dataclass(frozen=True)
class Attribute:
    """A number that a profile may set, with its default and unit."""

    name: str
    default: float
    unit: str


@dataclass(frozen=True)
class Chunking:
    """Size of the pieces that are passed on, the pause after each, and a rate in bytes/s (0: no limit)."""

    size: int
    pause_s: float = 0.0
    rate: float = 0.0


class ToxicType:
    """One type of toxic; an instance is one toxic in force. Every hook does nothing by default."""

    attributes: ClassVar[Sequence[Attribute]] = ()
    effects: ClassVar[Sequence[str]]
    """Outcomes and failure ids that it may cause by itself."""
    refuses: ClassVar[bool] = False
    """The proxy does not listen, and resets every connection, while this toxic is in force."""
    blocks: ClassVar[bool] = False
    """No data passes while this toxic is in force."""

    def __init__(self, toxic: Toxic) -> None:
        self.toxic, self.values = toxic, toxic.attributes
        self.hit: set[int] = set()  # connections that it met: their data, or their end

    def delay_s(self) -> float:
        """Return the delay of data and of the end of the stream."""
        return 0.0

    def close_after_s(self) -> float | None:
        """Return how long data may be blocked before the connection closes; None for no limit."""
        return None

    def reset_after_s(self) -> float | None:
        """Return the time from the connection's start, or the toxic's, to a reset; None for never."""
        return None

    def chunk(self, chunking: Chunking) -> Chunking:
        """Return how data is cut and paced, given the other toxics' result."""
        return chunking

    def bytes_left(self, passed: int) -> int | None:  # noqa: ARG002 - one toxic counts them
        """Return how many bytes may still pass before the connection closes; None for no limit."""
        return None

    def end_delay_s(self) -> float:
        """Return the extra delay before the end of a stream is passed on."""
        return 0.0


class LatencyToxic(ToxicType):
    """Delay data by `latency`, plus or minus a random part of `jitter`."""

    attributes = (Attribute("latency", 100, "ms"), Attribute("jitter", 0, "ms"))
    effects = SLOW

    def delay_s(self) -> float:
        jitter_ms = self.values["jitter"]
        return (self.values["latency"] + random.uniform(-jitter_ms, jitter_ms)) / 1000


class BandwidthToxic(ToxicType):
    """Pass `rate` kilobytes per second."""

    attributes = (Attribute("rate", 100, "KB/s"),)
    effects = SLOW

    def chunk(self, chunking: Chunking) -> Chunking:
        rate = max(self.values["rate"], 0.001) * 1024
        # Small enough for at least ten pieces per second.
        return replace(chunking, size=max(1, min(chunking.size, int(rate / 10))), rate=rate)


class SlowCloseToxic(ToxicType):
    """Pass the end of a connection on after `delay`."""

    attributes = (Attribute("delay", 1000, "ms"),)
    effects = SLOW

    def end_delay_s(self) -> float:
        return self.values["delay"] / 1000


class TimeoutToxic(ToxicType):
    """Pass no data, and close the connection after `timeout` (0: never)."""

    attributes = (Attribute("timeout", 0, "ms"),)
    effects = (*SLOW, *CUT)
    blocks = True

    def close_after_s(self) -> float | None:
        return self.values["timeout"] / 1000 or None


class ResetPeerToxic(ToxicType):
    """Reset connections after `timeout`."""

    attributes = (Attribute("timeout", 0, "ms"),)
    effects = CUT

    def reset_after_s(self) -> float | None:
        return self.values["timeout"] / 1000


class SlicerToxic(ToxicType):
    """Cut data into pieces of `average_size`, `delay` apart.

    The size varies by up to `size_variation` either way.
    """

    attributes = (
        Attribute("average_size", 64, "bytes"),
        Attribute("size_variation", 0, "bytes"),
        Attribute("delay", 0, "us"),
    )
    effects = SLOW

    def chunk(self, chunking: Chunking) -> Chunking:
        variation = self.values["size_variation"]
        size = int(self.values["average_size"] + random.uniform(-variation, variation))
        return replace(chunking, size=max(1, min(chunking.size, size)), pause_s=self.values["delay"] / 1e6)


class LimitDataToxic(ToxicType):
    """Close a connection after `bytes` have passed."""

    attributes = (Attribute("bytes", 1000, "bytes"),)
    effects = CUT

    def bytes_left(self, passed: int) -> int | None:
        return max(0, int(self.values["bytes"]) - passed)


class DownToxic(ToxicType):
    """Refuse connections and reset those that are open."""

    effects = CUT
    refuses = True


TOXICS: dict[str, type[ToxicType]] = {
    "latency": LatencyToxic,
    "bandwidth": BandwidthToxic,
    "slow_close": SlowCloseToxic,
    "timeout": TimeoutToxic,
    "reset_peer": ResetPeerToxic,
    "slicer": SlicerToxic,
    "limit_data": LimitDataToxic,
    "down": DownToxic,
}


def parse_toxic(name: str, kind: Any, params: Mapping[str, object]) -> Toxic:
    """Make a toxic from a profile's entry.

    Args:
        name: its name on the proxy.
        kind: its type, a key of TOXICS.
        params: the type's attributes; also `stream` (default downstream) and `share` (default 1.0).

    Raises:
        OptionError: for an unknown type or attribute, or a value that is not a number of 0 or more.
    """
    if kind not in TOXICS:
        raise OptionError(f"attack network: one of {', '.join(TOXICS)} was expected (got {kind})")
    values = {attribute.name: float(attribute.default) for attribute in TOXICS[kind].attributes}
    for key, value in params.items():
        if key in ("stream", "share"):
            continue
        if key not in values:
            raise OptionError(f"attack network {kind}: its params are {', '.join(values) or 'none'} (got {key})")
        try:
            values[key] = float(str(value))
        except ValueError:
            raise OptionError(f"attack network {kind}: {key} is a number (got {value})") from None
        if values[key] < 0:
            raise OptionError(f"attack network {kind}: {key} is a number not below 0 (got {value})")
    stream = params.get("stream") or "downstream"
    share = params.get("share")
    return Toxic(name, str(kind), str(stream), 1.0 if share is None else float(str(share)), values)
