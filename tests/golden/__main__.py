"""Compare all outputs of the stored ledgers with the expected ones: `python -m tests.golden` (docs/testing.md)."""

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

from tests.golden.archive import names
from tests.golden.compare import EXPECTED, compared, settle
from tests.golden.outputs import GROUPS

_MOST_LINES = 20


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--update", action="store_true", help="rewrite the expected files")
    parser.add_argument("--only", default="", metavar="TEXT", help="ledgers and groups with this text in the name")
    parser.add_argument(
        "--expected", type=Path, default=EXPECTED, metavar="FOLDER", help="folder of the expected files"
    )
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    options = parser.parse_args(argv)
    wanted = [name for name in [*names(), *GROUPS] if options.only in name]
    differing = 0
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn"), settle) as pool:
        for name, found, lines in pool.map(compared, wanted, repeat(options.expected)):
            differing += bool(lines)
            for line in lines[:_MOST_LINES]:
                print(f"{name}: {line}")
            if len(lines) > _MOST_LINES:
                print(f"{name}: {len(lines) - _MOST_LINES} more differences")
            if options.update and lines:
                options.expected.mkdir(exist_ok=True)
                text = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False)
                (options.expected / f"{name}.json").write_text(f"{text}\n", "utf-8")
    for left in sorted({path.stem for path in options.expected.glob("*.json")} - {*names(), *GROUPS}):
        print(f"{left}: an expected file without a ledger")
        differing += 1
    if options.update:
        print(f"{differing} of {len(wanted)} expected files rewritten; the diff is the review")
    else:
        print(f"{differing} of {len(wanted)} differ" if differing else f"all outputs of {len(wanted)} are as expected")
    return int(bool(differing) and not options.update)


if __name__ == "__main__":
    sys.exit(main())
