"""Fold the rows of a large run into chart series in a second process, while this one judges them. It reads the ledger
again and prints the series, pickled: `python -m loadchaos.run.chart_process RUN [--strict]`.
"""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from loadchaos.analysis.figures.series import Series
from loadchaos.core.cores import usable_cores
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Accept, Reader
from loadchaos.core.ledger.row_check import fits_completely, fits_its_kind
from loadchaos.core.lifetime import PYTHON_MODULE

_LEAST_BYTES = 20_000_000
"""Bytes of request rows from which on a second process is faster. It takes 0.1 s to start."""
_LOOK = 4096
_STRICT = "--strict"


@contextmanager
def chart_process(folder: RunFolder, accept: Accept) -> Iterator[partial[Series | None] | None]:
    """Start the process if the run is large and a second core is there; it is ended with the block. Gives what waits
    for the series, which is None if the process failed.
    """
    if not _pays(folder):
        yield None
        return
    argv = [*PYTHON_MODULE, __name__, str(folder.path), *([_STRICT] if accept is fits_completely else [])]
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError:
        yield None
        return
    try:
        yield partial(_series, process)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def _series(process: subprocess.Popen[bytes]) -> Series | None:
    output, _ = process.communicate()
    if process.returncode:
        return None
    with suppress(pickle.UnpicklingError, EOFError, AttributeError, ImportError):
        found = pickle.loads(output)  # noqa: S301  # of our own process
        return found if isinstance(found, Series) else None
    return None


def _pays(folder: RunFolder) -> bool:
    return usable_cores() > 1 and sum(p.stat().st_size for p in folder.path.glob("requests-*")) >= _LEAST_BYTES


def fold_series(folder: RunFolder, accept: Accept) -> Series:
    series = Series()
    for row in Reader(folder, accept).new(final=True):
        series.fold(row)
    return series


def _main(path: Path, *, strict: bool) -> None:
    gc.disable()  # rows leave no cyclic garbage
    parent = os.getppid()
    series = Series()
    for n, row in enumerate(Reader(RunFolder(path), fits_completely if strict else fits_its_kind).new(final=True)):
        series.fold(row)
        if not n % _LOOK and os.getppid() != parent:
            sys.exit(1)  # nobody waits for the series
    pickle.dump(series, sys.stdout.buffer)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), strict=_STRICT in sys.argv)
