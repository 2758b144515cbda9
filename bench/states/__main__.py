"""Measure how long after a fault `loadchaos run` shows the right state.

python -m bench.states [--server embedded|vllm|lmdeploy] [--times N] [--only NAME ...] [--healthy SECONDS] [--keep
FOLDER]

It prints a table. Each measurement is a run of its own with a steady load, into which a fault is brought from
outside: a signal, a call by somebody else, an order to the plugin in the engine, a lost network, a restart. Goals: a
median under 1 s for deaths, `degraded` within 5 s, `hung` as soon as it is certain, and no state change at all in the
fault `healthy`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from bench.states.faults import FAULTS, Fault, NotHereError
from bench.states.run import Measured, measure
from tests.real.servers import NotInstalledError


def _one(name: str, n: int, options: argparse.Namespace) -> Measured | str:
    with tempfile.TemporaryDirectory() as scratch:
        home = (options.keep / f"{options.server}-{name}-{n}" if options.keep else Path(scratch)).resolve()
        home.mkdir(parents=True, exist_ok=True)
        try:
            return measure(FAULTS[name], options.server, home, options.healthy)
        except (NotHereError, NotInstalledError) as e:
            return str(e)


def _print(fault: Fault, measured: list[Measured | str]) -> None:
    good = [m for m in measured if not isinstance(m, str)]
    for why in {m for m in measured if isinstance(m, str)}:
        print(f"{fault.about:48} {why}", flush=True)
    if not good:
        return
    for state in fault.states:
        times = [m.took[state] for m in good]
        known = [t for t in times if t is not None]
        missed = f" {len(times) - len(known)} never seen" if len(known) < len(times) else ""
        times_text = f"{statistics.median(known):6.2f} s {max(known):6.2f} s" if known else f"{'-':>8} {'-':>8}"
        print(f"{fault.about:48} {state:16} {times_text}  {len(times)}{missed}", flush=True)
    right = sum(m.kinds == fault.kinds for m in good)
    others = "; ".join(sorted({", ".join(m.kinds) or "nothing" for m in good if m.kinds != fault.kinds}))
    wrong = "; ".join(sorted({w for m in good for w in m.wrong}))
    words = f"verdict: {', '.join(fault.kinds) or 'nothing'} in {right} of {len(good)}"
    words += (f", else {others}" if others else "") + (f"; WRONG: {wrong}" if wrong else "")
    print(f"{fault.about if not fault.states else '':48} {words}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=("embedded", "vllm", "lmdeploy"), default="embedded")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), help="all but `healthy`, if not given")
    parser.add_argument("--healthy", type=float, default=1800.0, metavar="SECONDS", help="how long `healthy` takes")
    parser.add_argument("--keep", type=Path, help="keep the run folders there")
    options = parser.parse_args()
    print(f"{'fault on ' + options.server:48} {'state':16} {'median':>8} {'worst':>8}  times", flush=True)
    for name in options.only or [n for n in FAULTS if n != "healthy"]:
        if options.server in FAULTS[name].on:
            _print(FAULTS[name], [_one(name, n, options) for n in range(options.times)])


if __name__ == "__main__":
    main()
