"""Describe the machine of a measurement: system, versions, date, command."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.cost.contenders import CONTENDERS, Environments
from bench.cost.meter import Place

_OURS = ("locust", "gevent", "geventhttpclient", "requests", "httpx", "uvloop", "orjson", "numpy")
_LOCAL = ("--lock", "--out")
_HERE = Path(__file__).parents[2]


def machine(environments: Environments, place: Place) -> dict[str, Any]:
    """Collect what the page shows of the machine."""
    commit = _output(["git", "-C", str(_HERE), "log", "-1", "--format=%h", "--", "loadchaos"])
    return {
        "commands": [
            f"{_command(sys.argv[1:])}    # {dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC, loadchaos at {commit}"
        ],
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "compiler": _output(["cc", "--version"]).split("\n")[0],
        "urgent": place.urgent,
        "load_average": os.getloadavg()[0],
        "versions": {**{name: metadata.version(name) for name in _OURS}, **_others(environments)},
    }


def _command(argv: list[str]) -> str:
    """Command line without local paths."""
    kept = [a for n, a in enumerate(argv) if a not in _LOCAL and (n == 0 or argv[n - 1] not in _LOCAL)]
    folder = [f"TMPDIR={os.environ['TMPDIR']}"] if "TMPDIR" in os.environ else []  # where the ledger is written
    return " ".join([*folder, "python -m bench.cost", *kept]).replace(str(Path.home()), "~")


def _others(environments: Environments) -> dict[str, str]:
    found = {}
    for name, contender in CONTENDERS.items():
        python = environments.python(name) if contender.module else None
        if contender.module and python:
            asked = f"from importlib.metadata import version; print(version({contender.module!r}))"
            found[contender.module] = _output([str(python), "-c", asked])
    return found


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _output(argv: list[str]) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
