"""Client behaviours: how a client connects, sends, reads and hangs up.

A behaviour is a module with `Options`, a `Behaviour` (base.py): its fields are its keys in a profile, `act` calls the steps
of one `Exchange` and returns its end row. To add one, copy `half_open.py` and add its name to BEHAVIOURS below.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from loadchaos.load.behaviours.base import Behaviour

__all__ = ["BEHAVIOURS", "Behaviour"]

BEHAVIOURS: Mapping[str, type[Behaviour]] = {
    "plain": Behaviour,
    **{
        name: import_module(f"{__name__}.{name}").Options
        for name in ("abort", "slow_read", "drip", "churn", "half_open", "pipeline", "big_headers")
    },
}
