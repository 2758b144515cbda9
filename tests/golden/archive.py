"""Pack run folders as ledgers and unpack them: without derived files, machine names and volatile archive metadata."""

import io
import re
import socket
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from loadchaos.core.ledger import parquet

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LEDGERS = HERE / "ledgers"
HOME = Path("/tmp/golden")
"""Where make_ledgers.py runs its commands."""

SUFFIX = ".tar.xz"
DERIVED = {"verdict.json", "report.html", "junit.xml", "incidents", "export", "cockpit", "steps", "notify.json"}
_MOST_BYTES = 1_000_000
_MACHINE = [
    (re.escape(str(ROOT)).encode() + rb"(?![\w.-])", b"/srv/loadchaos"),
    (re.escape(str(HOME)).encode(), b"/srv/made"),
    (re.escape(str(Path.home())).encode() + rb"(?=/)", b"/home/user"),
    (
        rb"\b" + re.escape(socket.gethostname()).encode() + rb"\b" if len(socket.gethostname()) > 3 else rb"(?!)",
        b"machine",
    ),
]
"""Names of this machine, and neutral ones."""

_BOOT = re.compile(rb'"boot_id":"[0-9a-f-]{36}"')
_NO_BOOT = b'"boot_id":"00000000-0000-4000-8000-000000000000"'


def names() -> list[str]:
    return sorted(path.name.removesuffix(SUFFIX) for path in LEDGERS.glob(f"*{SUFFIX}"))


def unpack(name: str, into: Path) -> Path:
    """Unpack a ledger below `into`; returns its folder."""
    with tarfile.open(LEDGERS / f"{name}{SUFFIX}") as archive:
        archive.extractall(into, filter="data")
    return into / name


def pack(folder: Path, name: str) -> Path:
    """Pack a run folder, or a capacity search without its steps."""
    path = LEDGERS / f"{name}{SUFFIX}"
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:xz", preset=9) as archive:
        for file in _kept(folder):
            data = _packed(file.name, neutral(_text(file)))
            entry = tarfile.TarInfo(f"{name}/{file.relative_to(folder)}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes; at most {_MOST_BYTES:,} are kept")
    return path


def _kept(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.rglob("*")):
        derived = file.relative_to(folder).parts[0] in DERIVED or file.name == ".lock" or file.suffix == ".part"
        if file.is_file() and not file.is_symlink() and not derived:
            yield file


def neutral(data: bytes) -> bytes:
    """Replace names of this machine by others of the same length: the index of the log counts bytes."""
    for pattern, name in _MACHINE:
        data = re.sub(pattern, lambda found, name=name: name.ljust(len(found[0]), b"x")[: len(found[0])], data)  # type: ignore[misc]
    return _BOOT.sub(_NO_BOOT, data)


def _text(file: Path) -> bytes:
    lines = parquet.read_lines(file) if file.suffix == parquet.SUFFIX else ()
    return b"".join(line + b"\n" for line in lines) or file.read_bytes()


def _packed(name: str, text: bytes) -> bytes:
    if not name.endswith(parquet.SUFFIX):
        return text
    with tempfile.TemporaryDirectory() as work:
        part = Path(work) / name.removesuffix(parquet.SUFFIX)
        part.write_bytes(text)
        parquet.compact(part)
        return parquet.parquet_of(part).read_bytes()


def leaks() -> list[str]:
    """Files of ledgers that name this machine."""
    found = []
    with tempfile.TemporaryDirectory() as work:
        files = (file for name in names() for file in unpack(name, Path(work)).rglob("*") if file.is_file())
        for file in files:
            text = _text(file)
            hits = (re.search(pattern, text) for pattern, _ in _MACHINE)
            found += [f"{file.relative_to(work)}: {hit[0].decode()}" for hit in hits if hit]
    return found
