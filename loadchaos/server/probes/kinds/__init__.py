"""Questions with one right answer, sent beside the load.

To add a kind: one file with a function from a random generator to a `Question`, one entry in `KINDS`, and its name in
`ProbeKind` (loadchaos/core/probe_names.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from loadchaos.core.probe_names import ProbeKind
from loadchaos.server.probes.kinds.arithmetic import arithmetic
from loadchaos.server.probes.kinds.copy import copy
from loadchaos.server.probes.kinds.image_colour import image_colour
from loadchaos.server.probes.kinds.image_digits import image_digits
from loadchaos.server.probes.kinds.lookup import lookup
from loadchaos.server.probes.kinds.needle import needle
from loadchaos.server.probes.question import Question

__all__ = ["KINDS", "ProbeKind", "Question"]

KINDS: Mapping[ProbeKind, Callable[[random.Random], Question]] = {
    "copy": copy,
    "lookup": lookup,
    "needle": needle,
    "arithmetic": arithmetic,
    "image_digits": image_digits,
    "image_colour": image_colour,
}
