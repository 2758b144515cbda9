"""Client behaviours: how a client connects, sends, reads and hangs up.

A behaviour is a module with `Options`, a `Behaviour` (base.py): its fields are its keys in a profile, `act` calls the steps
of one `Exchange` and returns its end row. To add one, copy `half_open.py` and add an entry to BEHAVIOURS below.
"""

from __future__ import annotations

from loadchaos.core.plugins import PluginTable
from loadchaos.load.behaviours import abort, big_headers, churn, drip, half_open, pipeline, slow_read
from loadchaos.load.behaviours.base import Behaviour

__all__ = ["BEHAVIOURS", "Behaviour"]

BEHAVIOURS = PluginTable[type[Behaviour]](
    "behaviours",
    Behaviour,
    {
        "plain": Behaviour,
        "abort": abort.Options,
        "slow_read": slow_read.Options,
        "drip": drip.Options,
        "churn": churn.Options,
        "half_open": half_open.Options,
        "pipeline": pipeline.Options,
        "big_headers": big_headers.Options,
    },
)
