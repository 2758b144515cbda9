"""Run the kept mutants: python -m tests.mutants

Each mutant is applied to a copy of the tree, and the tests that it names run there. A mutant whose tests still pass has
survived: it shows an error that no test would notice.
"""

import argparse
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copy2
from typing import Literal, TypeVar

from tests.mutants.mutant import Mutant, load

ROOT = Path(__file__).parents[2]
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?:\[.*)?(?: - .*)?$", re.MULTILINE)
_PYTEST = (
    "-m",
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "--no-header",
    "--tb=no",
    "-rfE",
    "-m",
    "not slow and not real",
)
_KILLED, _NO_TEST_FAILED = 1, 0

T = TypeVar("T")
Fate = Literal["killed", "survived", "out of time", "broken"]


@dataclass(frozen=True)
class Result:
    mutant: Mutant
    fate: Fate
    detail: str
    seconds: float


class Copy:
    """A copy of the tree in which one mutant at a time is applied."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = folder / "tree"
        self._scratch = folder / "tmp"
        self._scratch.mkdir(parents=True)
        self._process: subprocess.Popen[str] | None = None
        self._stamp = int(time.time())
        for name in _files(root):
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            copy2(root / name, path, follow_symlinks=False)

    def pytest(self, tests: Sequence[str], limit_s: float, *options: str) -> tuple[int | None, str]:
        """Run tests; returns pytest's exit code (None: out of time) and its output."""
        env = {**os.environ, "PYTHONPATH": str(self.root), "TMPDIR": str(self._scratch)}
        self._process = subprocess.Popen(
            [sys.executable, *_PYTEST, *options, *tests], cwd=self.root, env=env, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            output, _ = self._process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.stop()
            self._process.communicate()
            return None, ""
        finally:
            self.stop()  # what a failed test has left behind
        return self._process.returncode, output

    def stop(self) -> None:
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def run(self, mutant: Mutant, limit_s: float) -> Result:
        begun = time.monotonic()
        try:
            path, changed = mutant.apply(self.root)
        except ValueError as e:
            return Result(mutant, "broken", str(e), 0.0)
        original = path.read_bytes()
        try:
            self._write(path, changed.encode())
            code, output = self.pytest(mutant.pytest_ids(self.root), limit_s, "-x")
        finally:
            self._write(path, original)
        seconds = time.monotonic() - begun
        if code is None:
            return Result(mutant, "out of time", f"its tests took more than {limit_s:g} s", seconds)
        if code == _NO_TEST_FAILED:
            return Result(mutant, "survived", mutant.harm, seconds)
        failed = _FAILED.findall(output)
        if code == _KILLED and failed:
            return Result(mutant, "killed", failed[0], seconds)
        return Result(mutant, "broken", f"pytest ended with code {code}: {' '.join(output.split()[-40:])}", seconds)

    def _write(self, path: Path, data: bytes) -> None:
        """Write a file with a time of its own: Python tells stale bytecode by the second."""
        path.write_bytes(data)
        self._stamp += 1
        os.utime(path, (self._stamp, self._stamp))


def _files(root: Path) -> list[str]:
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(argv, cwd=root, capture_output=True, check=True).stdout
    return [name for name in listed.decode().split("\0") if name and (root / name).is_file()]


def run(
    root: Path, mutants: Sequence[Mutant], *, workers: int, limit_s: float, told: Callable[[Result], None]
) -> list[Result]:
    """Run mutants on several copies at a time.

    Tests that fail without a mutant prove nothing: a mutant that names one is broken.
    """
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [Copy(root, Path(folder) / str(n)) for n in range(max(1, min(workers, len(mutants))))]
        tests = sorted({test for m in mutants for test in m.pytest_ids(root)})
        failing: list[str] = []

        def check(copy: Copy, chosen: Sequence[str]) -> None:
            code, output = copy.pytest(chosen, limit_s * len(chosen))
            if code != _NO_TEST_FAILED:
                failing.extend(_FAILED.findall(output) or chosen)

        results: list[Result] = []

        def mutate(copy: Copy, mutant: Mutant) -> None:
            bad = [*mutant.missing_tests(root), *(t for t in failing if _concerns(t, mutant.pytest_ids(root)))]
            why = f"its test is missing or fails without the mutant: {bad[0]}" if bad else ""
            result = Result(mutant, "broken", why, 0.0) if why else copy.run(mutant, limit_s)
            results.append(result)
            told(result)

        _share(copies, [part for n in range(len(copies)) if (part := tests[n :: len(copies)])], check)
        _share(copies, mutants, mutate)
        order = {m.id: n for n, m in enumerate(mutants)}
        return sorted(results, key=lambda r: order[r.mutant.id])


def _concerns(failed: str, tests: Sequence[str]) -> bool:
    return any(
        failed == own or own.startswith(f"{failed}::") or failed.startswith((f"{own}::", f"{own}/")) for own in tests
    )


def _share(copies: Sequence[Copy], work: Sequence[T], do: Callable[[Copy, T], None]) -> None:
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def do_one(one: T) -> None:
        copy = free.get()
        try:
            do(copy, one)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        try:
            list(pool.map(do_one, work))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for copy in copies:
                copy.stop()
            raise


def summary(results: Sequence[Result]) -> str:
    areas = {r.mutant.area: Counter[str]() for r in results}
    for r in results:
        areas[r.mutant.area][r.fate] += 1
    fates: tuple[Fate, ...] = ("killed", "survived", "out of time", "broken")
    rows = [("", "mutants", *fates)]
    rows += [(area, str(n.total()), *(str(n[f]) for f in fates)) for area, n in sorted(areas.items())]
    total = Counter(r.fate for r in results)
    rows.append(("all", str(total.total()), *(str(total[f]) for f in fates)))
    lines = [f"{row[0]:16}" + "".join(f"{cell:>13}" for cell in row[1:]) for row in rows]
    lines += [f"\n{r.fate}: {r.mutant.id} ({r.mutant.place})\n  {r.detail}" for r in results if r.fate != "killed"]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Run the kept mutants.")
    parser.add_argument("-n", type=int, default=2, metavar="N", help="mutants at a time (default 2)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="mutants with TEXT in id, area or definition"
    )
    parser.add_argument(
        "--limit", type=float, default=120.0, metavar="S", help="seconds for the tests of one mutant (default 120)"
    )
    parser.add_argument("--tests", nargs="+", metavar="TEST", help="run these tests in place of the named ones")
    options = parser.parse_args(argv)
    mutants = [m for m in load() if not options.only or any(t in f"{m.id} {m.area} {m.place}" for t in options.only)]
    if not mutants:
        parser.error(f"no mutant has {' or '.join(options.only)} in its id, area or definition")
    if options.tests:
        mutants = [replace(m, tests=tuple(options.tests)) for m in mutants]
    begun = time.monotonic()
    results = run(ROOT, mutants, workers=options.n, limit_s=options.limit, told=_print)
    print(f"\n{summary(results)}\n\n{len(results)} mutants in {time.monotonic() - begun:.0f} s")
    return 0 if all(r.fate == "killed" for r in results) else 1


def _print(result: Result) -> None:
    print(f"{result.fate:12} {result.seconds:6.1f} s  {result.mutant.id:45} {result.detail}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
