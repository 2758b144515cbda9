"""Finished parts of the ledger as Parquet: the same lines in a tenth of the room, and columns to ask them by.

`python -m loadchaos.core.ledger.parquet RUN` is what a long run starts each hour, with a FILE what a worker
on another machine does. A
part is finished when the next one is there. Its JSONL is deleted only once every line read back from the Parquet file is the
one it has: a kill at any moment loses nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

HOUR_S = float(os.environ.get("LOADCHAOS_HOUR_S", "3600"))
"""What is done each hour of a run is done each so many seconds; a compressed soak (bench/soak.py) has shorter hours."""

SUFFIX = ".parquet"
_LINES_AT_ONCE = 50_000
_LONGEST_LINE = 1 << 26
_STAY = ("events.jsonl",)
"""Their first part stays as it is: by it a folder is known as a run."""
_COLUMNS = (("row", "VARCHAR"), ("at_ns", "BIGINT"), ("id", "VARCHAR"), ("traffic", "VARCHAR"), ("outcome", "VARCHAR"))


def part_of(file: Path, number: int) -> Path:
    """A file of rows is followed by `<file>.1`, `<file>.2` and so on."""
    return file if number == 0 else file.with_name(f"{file.name}.{number}")


def packed(part: Path) -> Path:
    """The Parquet file of a part."""
    return part.with_name(part.name + SUFFIX)


def there(part: Path) -> bool:
    """Whether a part exists, as it was written or as Parquet."""
    return part.exists() or packed(part).exists()


def newest(file: Path) -> int:
    """The number of a file's last part, 0 for one that has none."""
    number = 0
    while there(part_of(file, number + 1)):
        number += 1
    return number


def lines(parquet: Path, first: int = 0) -> Iterator[bytes]:
    """The lines of a compacted part from number `first` on, without their ends. OSError when it cannot be read."""
    import duckdb  # slow to import, and hardly anybody needs it

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
    """Make a finished part Parquet and delete its JSONL; False, and all as before, where a line does not come back equal."""
    target = packed(part)
    half = target.with_name(target.name + ".part")
    if not target.exists():
        _write(part, half)
        _sync(half)
        half.replace(target)
        _sync(target.parent)
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
    # No row has the byte 1 in it (JSON escapes it): a line is one field, whatever it says.
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
    read = lines(parquet)
    with part.open("rb") as f:
        same = all(line.removesuffix(b"\n") == next(read, None) for line in f)
    return same and next(read, None) is None


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def finished(folder: Path) -> list[Path]:
    """The parts of a run that nobody writes any more and that are not compacted yet, oldest first."""
    found = []
    firsts = {p.with_name(p.name.removesuffix(SUFFIX)) for p in folder.glob("*.jsonl*")}
    for file in sorted(p for p in firsts if p.suffix == ".jsonl"):
        number = 0 if file.name not in _STAY else 1
        while there(part_of(file, number + 1)):
            if part_of(file, number).exists():
                found.append(part_of(file, number))
            number += 1
    return found


def main(argv: list[str]) -> int:
    """Compact what is finished of a run, or one finished part; 1 where a part had to stay as it was."""
    os.nice(10)
    code = 0
    path = Path(argv[0])
    parts = [*finished(path), *finished(path / "watch" / "logs")] if path.is_dir() else [path]
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
