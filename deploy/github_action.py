"""Run one profile as the step of action.yml, and write the outputs of the action.

The environment has the inputs: LOADCHAOS (program), RUNS (folder), PROFILE, TARGET, LAUNCH, ARGS; and GITHUB_OUTPUT (file).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

_USER_ERROR = 2


def command() -> list[str]:
    """Command line of the run. Raises ValueError where a quote in ARGS is not closed."""
    program, profile, folder = (os.environ[name] for name in ("LOADCHAOS", "PROFILE", "RUNS"))
    found = [program, "run", profile, "--out", folder, "--no-live", "--ci", "github"]
    for name in ("target", "launch"):
        if value := os.environ[name.upper()]:
            found += [f"--{name}", value]
    return found + shlex.split(os.environ["ARGS"])


def outputs(code: int) -> dict[str, str]:
    """Outputs of the action: exit code, verdict and folder of the newest run."""
    folders = sorted(p.parent for p in Path(os.environ["RUNS"]).glob("*/events.jsonl"))  # their names end with the time
    found = {"exit-code": str(code), "verdict": "", "folder": str(folders[-1]) if folders else ""}
    if folders and (verdict := folders[-1] / "verdict.json").exists():
        found["verdict"] = json.loads(verdict.read_bytes())["verdict"]
    return found


def main() -> int:
    """Return the exit code of the run."""
    try:
        code = subprocess.run(command(), check=False).returncode
    except ValueError as e:
        print(f"::error title=loadchaos::args: {e}: close the quote (got {os.environ['ARGS']!r})")
        code = _USER_ERROR
    with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in outputs(code).items())
    return code


if __name__ == "__main__":
    sys.exit(main())
