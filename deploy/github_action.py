"""Run one profile as the step of action.yml, and write the outputs of the action.

The environment has the inputs: LOADCHAOS (program), RUNS (folder), PROFILE, TARGET, LAUNCH, ARGS; and GITHUB_OUTPUT (file).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

_USER_ERROR = 2
_TIME = re.compile(r"\d{8}T\d{6}.*")


def command() -> list[str]:
    """Command line of the run. Raises ValueError where a quote in ARGS is not closed."""
    program, profile, folder = (os.environ[name] for name in ("LOADCHAOS", "PROFILE", "RUNS"))
    found = [program, "run", profile, "--out", folder, "--no-live", "--ci", "github"]
    for name in ("target", "launch"):
        if value := os.environ[name.upper()]:
            found += [f"--{name}", value]
    return found + shlex.split(os.environ["ARGS"])


def run_folders() -> set[Path]:
    """Folders in RUNS that have a ledger."""
    return {p.parent for p in Path(os.environ["RUNS"]).glob("*/events.jsonl")}


def outputs(code: int, before: set[Path]) -> dict[str, str]:
    """Outputs of the action: exit code, verdict and folder of this step's run.

    `before` are the folders before the run; they belong to other steps.
    """
    found = {"exit-code": str(code), "verdict": "", "folder": ""}
    if new := run_folders() - before:
        folder = max(new, key=_started)
        found["folder"] = str(folder)
        if (verdict := folder / "verdict.json").exists():
            found["verdict"] = json.loads(verdict.read_bytes())["verdict"]
    return found


def _started(folder: Path) -> str:
    """Time of a run's start, from the name of its folder."""
    times = _TIME.findall(folder.name)
    return times[-1] if times else ""


def main() -> int:
    """Return the exit code of the run."""
    before = run_folders()
    try:
        code = subprocess.run(command(), check=False).returncode
    except ValueError as e:
        print(f"::error title=loadchaos::args: {e}: close the quote (got {os.environ['ARGS']!r})")
        code = _USER_ERROR
    with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in outputs(code, before).items())
    return code


if __name__ == "__main__":
    sys.exit(main())
