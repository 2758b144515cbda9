"""Names that a profile may use: payloads, endpoints, behaviours, attacks, defects, dialects."""

from __future__ import annotations

from dataclasses import replace

from loadchaos.load.behaviours import BEHAVIOURS
from loadchaos.load.endpoints import ENDPOINTS
from loadchaos.load.payloads import PAYLOADS
from loadchaos.profile.profile import Registry


def traffic_registry() -> Registry:
    """Registry of payloads and behaviours. Enough for a plan that was validated before."""
    return Registry(payloads=PAYLOADS, behaviours=BEHAVIOURS, endpoints=ENDPOINTS)


def full_registry() -> Registry:
    """Registry of all names; a user's profile is validated against it."""
    from loadchaos.core.attack_names import PLUGIN_ATTACKS
    from loadchaos.server.dialects import DIALECTS
    from loadchaos.simulator.defects import DEFECTS  # the embedded server is no part of a worker

    defects: dict[str, set[str]] = {}
    for name, defect in DEFECTS.items():
        defects.setdefault(defect.dialect, set()).add(name)
    return replace(
        traffic_registry(),
        attacks={name: frozenset(dialect.admin) for name, dialect in DIALECTS.items()},
        plugin_attacks=PLUGIN_ATTACKS,
        defects={name: frozenset(names) for name, names in defects.items()},
        dialects=frozenset(DIALECTS),
    )
