"""Convert finished parts of the ledger to Parquet and read them back.

A long run starts `python -m loadchaos.core.ledger.parquet RUN` each hour; a worker on another machine starts it with
a FILE. A part is finished when the next one exists. Its JSONL is deleted only after every line has been read back
equal, so that a kill at any moment loses nothing. Parquet needs about a tenth of the space and has columns to query.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from loadchaos.core.whole_file import sync_path

HOUR_S = float(os.environ.get("LOADCHAOS_HOUR_S", "3600"))
"""Seconds of an \"hour\" of hourly work; a compressed soak (bench/soak.py) makes it shorter."""

SUFFIX = ".parquet"
_LINES_AT_ONCE = 50_000
_LONGEST_LINE = 1 << 26
_STAY = ("events.jsonl",)
"""Files whose first part stays JSONL: it marks a folder as a run."""
_COLUMNS = (("row", "VARCHAR"), ("at_ns", "BIGINT"), ("id", "VARCHAR"), ("traffic", "VARCHAR"), ("outcome", "VARCHAR"))


def part_of(file: Path, number: int) -> Path:
    """Path of part `number` of a file: `<file>`, `<file>.1`, `<file>.2`, ..."""
    return file if number == 0 else file.with_name(f"{file.name}.{number}")


def parquet_of(part: Path) -> Path:
    return part.with_name(part.name + SUFFIX)


def exists(part: Path) -> bool:
    return part.exists() or parquet_of(part).exists()


def last_part(file: Path) -> int:
    number = 0
    while exists(part_of(file, number + 1)):
        number += 1
    return number


def read_lines(parquet: Path, first: int = 0) -> Iterator[bytes]:
    """Give the lines of a Parquet part from number `first` on. Raises OSError if it cannot be read."""
    import duckdb  # slow to import and rarely needed

    try:
        with duckdb.connect(config={"threads": 1}) as db:
            while True:
                found = db.execute(
                    "select line from read_parquet(?) where n >= ? and n < ? order by n",
                    [str(parquet), first, first + _LINES_AT_ONCE],
                ).fetchall()
                yield from ((line or "").encode() for (line,) in found)
                if len(found) < _LINES_AT_ONCE:
                    return
                first += len(found)
    except duckdb.Error as e:
        raise OSError(0, f"{parquet}: {e}") from e


def compact(part: Path) -> bool:
    """Convert a finished part to Parquet and delete its JSONL. Returns False, and changes nothing, if a line is not
    read back equal.
    """
    target = parquet_of(part)
    half = target.with_name(target.name + ".part")
    if not target.exists():
        _write(part, half)
        sync_path(half)
        half.replace(target)
        sync_path(target.parent)
    if not _equal(part, target):
        target.unlink()
        return False
    part.unlink()
    return True


def _write(part: Path, to: Path) -> None:
    import duckdb

    columns = ", ".join(
        f"case when json_valid(line) then try_cast(json_extract_string(line, '$.{name}') as {kind}) end as {name}"
        for name, kind in _COLUMNS
    )
    # JSON escapes the byte 1, so with it as delimiter every line is a single field.
    source = (
        "read_csv(?, columns={'line': 'VARCHAR'}, delim='\x01', quote='', escape='', header=false, auto_detect=false,"
        f" parallel=false, max_line_size={_LONGEST_LINE}, new_line='\\n')"
    )
    query = f"select row_number() over () - 1 as n, {columns}, line from {source}"  # noqa: S608 - nothing of it is given
    try:
        with duckdb.connect(config={"threads": 1}) as db:
            db.execute(f"copy ({query}) to '{_quoted(to)}' (format parquet, compression zstd)", [str(part)])
    except duckdb.Error as e:
        to.unlink(missing_ok=True)
        raise OSError(0, f"{part}: {e}") from e


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def _equal(part: Path, parquet: Path) -> bool:
    read = read_lines(parquet)
    with part.open("rb") as f:
        same = all(line.removesuffix(b"\n") == next(read, None) for line in f)
    return same and next(read, None) is None


def finished_parts(folder: Path) -> list[Path]:
    """List finished parts of a run that are not Parquet yet, oldest first."""
    found = []
    firsts = {p.with_name(p.name.removesuffix(SUFFIX)) for p in folder.glob("*.jsonl*")}
    for file in sorted(p for p in firsts if p.suffix == ".jsonl"):
        number = 0 if file.name not in _STAY else 1
        while exists(part_of(file, number + 1)):
            if part_of(file, number).exists():
                found.append(part_of(file, number))
            number += 1
    return found


def main(argv: list[str]) -> int:
    """Convert finished parts of a run, or one part; exit code 1 if any failed."""
    os.nice(10)
    code = 0
    path = Path(argv[0])
    parts = [*finished_parts(path), *finished_parts(path / "watch" / "logs")] if path.is_dir() else [path]
    for n, part in enumerate(parts, 1):
        if sys.stderr.isatty():
            print(f"compacting {part.name} ({n} of {len(parts)})", file=sys.stderr)
        try:
            made = compact(part)
        except OSError as e:
            print(f"loadchaos: {e}", file=sys.stderr)
            made = False
        code = code if made else 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
