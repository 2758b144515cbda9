"""What may be wrong with a network, in toxiproxy's words: types, their attributes with defaults, and what each may cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadchaos.core.errors import OptionError

_SLOW = ("stalled", "timeout", "alive_but_hung")
_CUT = ("reset", "truncated", "protocol_error", "connect_error", "stream_error")


@dataclass(frozen=True)
class Type:
    """`attributes` are numbers by name (milliseconds, KB/s, bytes); `effects` are outcomes and failure ids it may cause."""

    attributes: Mapping[str, float]
    effects: Sequence[str]
    about: str


TYPES: Mapping[str, Type] = {
    "latency": Type({"latency": 100, "jitter": 0}, _SLOW, "delays what passes by latency +- jitter ms"),
    "bandwidth": Type({"rate": 100}, _SLOW, "passes rate KB a second"),
    "slow_close": Type({"delay": 1000}, _SLOW, "delays the end of a connection by delay ms"),
    "timeout": Type({"timeout": 0}, (*_SLOW, *_CUT), "passes nothing, and closes after timeout ms (0: never)"),
    "reset_peer": Type({"timeout": 0}, _CUT, "resets connections after timeout ms"),
    "slicer": Type({"average_size": 64, "size_variation": 0, "delay": 0}, _SLOW, "cuts data into pieces, delay us apart"),
    "limit_data": Type({"bytes": 1000}, _CUT, "closes a connection after that many bytes"),
    "down": Type({}, _CUT, "refuses connections, and cuts those there are"),
}  # fmt: skip


@dataclass(frozen=True)
class Toxic:
    """One thing wrong: for connections of this `share` (0..1), in one direction; `seed` decides which connections."""

    name: str
    type: str
    stream: str
    share: float
    attributes: Mapping[str, float]
    seed: int = 0


def toxic(name: str, kind: Any, params: Mapping[str, Any], seed: int = 0) -> Toxic:
    """Out of a profile's entry; `stream` and `share` beside the type's own attributes. OptionError for what nobody knows."""
    if kind not in TYPES:
        raise OptionError(f"attack network: one of {', '.join(TYPES)} was expected (got {kind})")
    rest = {k: v for k, v in params.items() if k not in ("stream", "share")}
    known = TYPES[kind].attributes
    values = dict(known)
    for key, value in rest.items():
        if key not in known:
            raise OptionError(f"attack network {kind}: its params are {', '.join(known) or 'none'} (got {key})")
        try:
            values[key] = float(value)
        except ValueError:
            raise OptionError(f"attack network {kind}: {key} is a number (got {value})") from None
        if values[key] < 0:
            raise OptionError(f"attack network {kind}: {key} is not below 0 (got {value})")
    stream = params.get("stream") or "downstream"
    share = params.get("share")
    return Toxic(name, str(kind), str(stream), 1.0 if share is None else float(share), values, seed)
