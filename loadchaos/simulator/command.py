"""Command line that starts the embedded server as a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from loadchaos.core.lifetime import PYTHON_MODULE
from loadchaos.simulator.options import SimulatorSpec, make_options


def command(spec: SimulatorSpec, port: int) -> list[str]:
    """Return the arguments, the interpreter first. Raises ValueError for an unknown dialect, era, defect or flag, with
    the nearest known name.
    """
    defects = sorted(set(spec.defects))
    options = make_options(replace(spec, defects=defects), port=port)
    argv = [*PYTHON_MODULE, "loadchaos.simulator.server"]
    argv += ["--dialect", spec.dialect, "--era", options.engine.era, "--port", str(port)]
    for name in defects:
        argv += ["--defect", name]
    for key, value in spec.flags.items():
        # A mapping is limit_mm_per_prompt's own form; the server's command line takes the numbers.
        named = {f"{key}.{part}": n for part, n in value.items()} if isinstance(value, Mapping) else {key: value}
        for name, shown in named.items():
            argv += ["--flag", f"{name}={'' if shown is None else shown}"]
    return argv
