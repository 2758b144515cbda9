"""`make demo`: check that a run finds the embedded server's planted bug."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from loadchaos.analysis.verdict.model import Verdict

_PLANTED = "encoder_cache_miss"
_RUNS = Path("runs")


def main() -> int:
    before = set(_RUNS.glob("mtp_mm-*"))
    print("$ loadchaos run profiles/mtp_mm.yaml", flush=True)
    code = subprocess.run([sys.executable, "-m", "loadchaos", "run", "profiles/mtp_mm.yaml", "--embedded"], check=False)
    new = sorted(set(_RUNS.glob("mtp_mm-*")) - before)
    found = _is_found(new[-1] / "verdict.json") if new else False
    print()
    print(f"`loadchaos run` ended with exit code {code.returncode}. Exit code 1 means that the server failed.")
    if found and code.returncode == 1:
        print(
            "The embedded server has a planted bug: the mechanism of vllm-project/vllm#38551. loadchaos found it as\n"
            f"{_PLANTED} from the traffic, the server log and the server process. To test your own server:\n"
            "    loadchaos run mtp_mm --target http://HOST:PORT --authorize HOST:PORT --server-log PATH"
        )
        return 0
    print(f"The planted bug ({_PLANTED}) was NOT found. This is a bug of the demo. The run folder has the details.")
    return 1


def _is_found(path: Path) -> bool:
    try:
        verdict = Verdict.from_json(json.loads(path.read_text()))
    except (OSError, ValueError):
        return False
    return any(f.id == _PLANTED and f.severity == "engine_death" for f in verdict.failures)


if __name__ == "__main__":
    sys.exit(main())
