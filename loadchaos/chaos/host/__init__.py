"""Load on the server's machine beside the server: one file per kind.

HOST_LOADS maps each name of core/attack_names.py to the function `make` of the file of that name.
A new kind is a file with `make(params)`, which returns an Attack, and its name in `HOST_LOADS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from loadchaos.chaos.base import Attack, AttackContext
from loadchaos.core import attack_names
from loadchaos.core.errors import OptionError

HOST_LOADS: dict[str, Callable[[Mapping[str, Any]], Attack]] = {
    name: import_module(f"loadchaos.chaos.host.{name}").make for name in attack_names.HOST_LOADS
}


def make(spec: Any, params: Mapping[str, Any], _context: AttackContext) -> Attack:
    """Make the attack of `{host: cpu, params: {...}}`. Raises OptionError."""
    if spec not in HOST_LOADS:
        raise OptionError(f"attack host: {' or '.join(HOST_LOADS)} was expected (got {spec})")
    return HOST_LOADS[spec](params)
