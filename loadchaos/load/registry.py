"""What a profile may name, taken from the shelves themselves, for whoever reads one."""

from __future__ import annotations

from loadchaos.load.behaviours import BEHAVIOURS
from loadchaos.load.payloads import PAYLOADS
from loadchaos.profile.profile import Registry


def of_traffic() -> Registry:
    """What is sent and how clients behave: all that a plan needs that was judged before."""
    return Registry(
        payloads={name: payload.Options for name, payload in PAYLOADS.items()},
        behaviours={name: behaviour.Options for name, behaviour in BEHAVIOURS.items()},
    )


def whole() -> Registry:
    """The names of attacks, defects and dialects, too: a user's profile is held against all."""
    from loadchaos.server.dialects import DIALECTS
    from loadchaos.simulator.defects import DEFECTS  # the embedded server is no part of a worker

    defects: dict[str, set[str]] = {}
    for name, defect in DEFECTS.items():
        defects.setdefault(defect.dialect, set()).add(name)
    traffic = of_traffic()
    return Registry(
        payloads=traffic.payloads,
        behaviours=traffic.behaviours,
        attacks={name: frozenset(dialect.admin) for name, dialect in DIALECTS.items()},
        defects={name: frozenset(names) for name, names in defects.items()},
        dialects=frozenset(DIALECTS),
    )
