"""Network faults ("toxics", as Toxiproxy calls them): one file per type.

TOXICS maps each name of `NETWORK_FAULTS` (core/attack_names.py) to the class that the file of that name holds as TOXIC.
A new toxic is a file with a subclass of ToxicType, and its name in `NETWORK_FAULTS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from loadchaos.chaos.toxics.base import Toxic, ToxicType
from loadchaos.core import attack_names
from loadchaos.core.errors import OptionError

__all__ = ["TOXICS", "Toxic", "ToxicType", "parse_toxic"]

TOXICS: dict[str, type[ToxicType]] = {
    name: import_module(f"loadchaos.chaos.toxics.{name}").TOXIC for name in attack_names.NETWORK_FAULTS
}


def parse_toxic(name: str, kind: Any, params: Mapping[str, Any], seed: int = 0) -> Toxic:
    """Make a toxic from a profile's entry.

    Args:
        name: its name on the proxy.
        kind: its type, a key of TOXICS.
        params: the type's attributes; also `stream` (default downstream) and `share` (default 1.0).
        seed: decides which connections belong to the share.

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
            values[key] = float(value)
        except ValueError:
            raise OptionError(f"attack network {kind}: {key} is a number (got {value})") from None
        if values[key] < 0:
            raise OptionError(f"attack network {kind}: {key} is a number not below 0 (got {value})")
    stream = params.get("stream") or "downstream"
    share = params.get("share")
    return Toxic(name, str(kind), str(stream), 1.0 if share is None else float(share), values, seed)
