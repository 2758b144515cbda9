"""The command line that launches the embedded server as a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from loadchaos.simulator.options import make_options


def command(
    *,
    dialect: str,
    era: str | None,
    defects: Iterable[str],
    flags: Mapping[str, object],
    port: int,
    images: bool = True,
    dev_mode: bool = True,
) -> list[str]:
    """The argv. Raises ValueError naming the nearest right word for an unknown dialect, era, defect or flag."""
    wanted = sorted(set(defects))
    options = make_options(
        dialect=dialect, era=era, defects=wanted, flags=flags, port=port, images=images, dev_mode=dev_mode
    )
    argv = [sys.executable, "-m", "loadchaos.simulator.server", "--dialect", dialect, "--era", options.engine.era]
    argv += ["--port", str(port)]
    for name in wanted:
        argv += ["--defect", name]
    for key, value in flags.items():
        # A mapping is limit_mm_per_prompt's own form; the server's command line takes the numbers.
        named = {f"{key}.{part}": n for part, n in value.items()} if isinstance(value, Mapping) else {key: value}
        for name, shown in named.items():
            argv += ["--flag", f"{name}={shown}"]
    if not images:
        argv.append("--no-images")
    if not dev_mode:
        argv.append("--no-dev-mode")
    return argv
