"""`make demo`: one run of profiles/mtp_mm.yaml against the embedded server, then what it was: a planted bug, found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_PLANTED = "encoder_cache_miss"
_RUNS = Path("runs")


def main() -> int:
    """Run the demo; 0 if and only if the planted bug was found as an engine death."""
    before = set(_RUNS.glob("mtp_mm-*"))
    print("$ loadchaos run profiles/mtp_mm.yaml", flush=True)
    code = subprocess.run([sys.executable, "-m", "loadchaos", "run", "profiles/mtp_mm.yaml", "--embedded"], check=False)
    new = sorted(set(_RUNS.glob("mtp_mm-*")) - before)
    found = _found(new[-1] / "verdict.json") if new else False
    print()
    print(f"`loadchaos run` ended with exit code {code.returncode}: 1 means that the server failed under the load.")
    if found and code.returncode == 1:
        print(
            f"The bug is planted: the embedded server carries the mechanism of vllm-project/vllm#38551, and loadchaos "
            f"found it as {_PLANTED} from traffic, log and process alone. Point it at your own server:\n"
            "    loadchaos run mtp_mm --target http://HOST:PORT --authorize HOST:PORT --server-log PATH"
        )
        return 0
    print(
        f"The planted bug ({_PLANTED}) was NOT found. That is a fault of this demo; the run folder says what happened."
    )
    return 1


def _found(path: Path) -> bool:
    try:
        verdict = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return any(f["id"] == _PLANTED and f["severity"] == "engine_death" for f in verdict.get("failures", ()))


if __name__ == "__main__":
    sys.exit(main())
