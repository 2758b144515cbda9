"""Measure CPU per request and token of our users and of other clients.

python -m bench.cost [--repeat N] [--only SCENARIO ...] [--contender NAME ...] [--with NAME=VENV ...] [--cores 0,1]
python -m bench.cost --render     write page and plot again, from docs/measured/performance.json

It also measures how exact each client's clock is. It writes docs/measured/performance.json, docs/measured/performance.md and
docs/measured/performance.svg. aiohttp, vllm, guidellm and aiperf are measured where they are installed: in
~/.cache/loadchaos-bench/NAME, or where --with says.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench import images, prompts
from bench.cost import page, plot
from bench.cost.contenders import CONTENDERS, Environments
from bench.cost.machine import machine
from bench.cost.meter import Place
from bench.cost.rows import MARGINAL_CONTENDERS, SCENARIOS, Figures, marginal, trial

_PAYLOADS = "payloads"
_EVERYTHING = (*SCENARIOS, "marginal", _PAYLOADS)
DOCS = Path(__file__).parents[2] / "docs" / "measured"


def main() -> int:
    """Measure, write, render."""
    args = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # in order, so that no contender is left behind
    path = args.out / "performance.json"
    if not args.render:
        place = _place(args)
        environments = Environments({n: Path(v).expanduser() for n, _, v in (w.partition("=") for w in args.with_)})
        about, trials, before, notes = machine(environments, place), [], [], list(args.note)
        payloads: dict[str, object] = {}
        if args.add and path.exists():
            earlier = json.loads(path.read_text())
            before, notes = earlier["trials"], [*earlier.get("notes", []), *notes]
            payloads = earlier.get("payloads", {})
            about["commands"] = [*earlier["machine"]["commands"], *about["commands"]]
        if _PAYLOADS in args.only:
            payloads = _payloads(place)
        for figures in _measure(args, place, environments):
            trials.append(figures)
            anew = {(t["scenario"], t["contender"]) for t in trials}
            kept = [t for t in before if (t["scenario"], t["contender"]) not in anew]
            # At once: what has been measured stays when the rest is interrupted.
            _write(path, about, notes, kept + trials, payloads)
        if not trials:
            _write(path, about, notes, before, payloads)
    found = json.loads(path.read_text())
    (args.out / "performance.md").write_text(page.render(found))
    (args.out / "performance.svg").write_text(plot.render(found))
    print(f"{args.out}/performance.md, .svg and .json are written")
    return 0


def _write(path: Path, about: object, notes: object, trials: object, payloads: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"machine": about, "notes": notes, "trials": trials, "payloads": payloads}
    path.write_text(json.dumps(found, indent=1) + "\n")


def _payloads(place: Place) -> dict[str, object]:
    """Measure the cost of building requests; nothing is sent."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {place.client_core})
    try:
        return {
            "images": images.measure(),
            "one_image_us": images.whole(1),
            "further_image_us": images.further(),
            "prompts": prompts.measure(),
        }
    finally:
        os.sched_setaffinity(0, cores)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="trials of each figure; medians are shown")
    # Whole programs and the slowest are measured once: they take minutes, and their figures differ by little.
    parser.add_argument("--only", nargs="+", choices=_EVERYTHING, default=list(_EVERYTHING))
    parser.add_argument("--contender", nargs="+", choices=list(CONTENDERS))
    parser.add_argument("--with", nargs="+", default=[], dest="with_", metavar="NAME=VENV")
    parser.add_argument("--cores", default="0,1", metavar="SERVER,CLIENT")
    parser.add_argument("--lock", type=Path, help="hold this lock file in each trial, where several people measure")
    parser.add_argument(
        "--urgent",
        action="store_true",
        help="run server and client before all other work (SCHED_FIFO, needs root): for a machine that is not idle",
    )
    parser.add_argument("--add", action="store_true", help="keep the figures of what is not measured now")
    parser.add_argument("--note", nargs="+", default=[], help="what a reader of the page has to know of this run")
    parser.add_argument("--render", action="store_true", help="measure nothing, render again")
    parser.add_argument("--out", type=Path, default=DOCS)
    return parser.parse_args()


def _place(args: argparse.Namespace) -> Place:
    server, client = (int(core) for core in args.cores.split(","))
    missing = {server, client} - os.sched_getaffinity(0)
    if missing or server == client:
        sys.exit(f"two cores of our own are needed (--cores {args.cores}, there are {sorted(os.sched_getaffinity(0))})")
    return Place(server, client, urgent=args.urgent and os.geteuid() == 0, lock=args.lock)


def _measure(args: argparse.Namespace, place: Place, environments: Environments) -> Iterator[Figures]:
    for number in range(args.repeat):
        for scenario in (name for name in args.only if name != _PAYLOADS):
            for name in _names(scenario):
                if args.contender and name not in args.contender:
                    continue
                if number and (scenario == "marginal" or CONTENDERS[name].pace == "slow"):
                    continue
                began = time.monotonic()
                figures = _one(scenario, name, place, environments)
                print(f"{scenario:16} {name:10} {_describe(figures)}  ({time.monotonic() - began:.0f} s)", flush=True)
                yield {**figures, "repeat": number, "at": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M")}


def _names(scenario: str) -> tuple[str, ...]:
    return SCENARIOS[scenario].contenders if scenario in SCENARIOS else MARGINAL_CONTENDERS


def _one(scenario: str, name: str, place: Place, environments: Environments) -> Figures:
    if scenario in SCENARIOS:
        return trial(scenario, name, place, environments)
    return marginal(name, place, environments)


def _describe(figures: Figures) -> str:
    for why in ("absent", "broken"):
        if why in figures:
            return f"{why}: {figures[why]}"
    error = f"  TTFT {figures['ttft_p50']:+.2f} / {figures['ttft_p99']:+.2f} ms" if "ttft_p50" in figures else ""
    core = f"  core {figures['core']:.0%} server {figures['server_core']:.0%}" if "core" in figures else ""
    wrong = f"  FAILED {figures['failed']}" if figures["failed"] else ""
    return f"{figures['us']:10.2f} us{core}{error}{wrong}"


if __name__ == "__main__":
    raise SystemExit(main())
