"""Images that a requests file names by path.

A file from elsewhere must not send our files to a server. So a path leads to a regular image file in the folder of the
file that names it, or in a folder that the user allows (`--allow-path`).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

ALLOW_PATH = "LOADCHAOS_ALLOW_PATH"
"""Variable with the folders of `--allow-path`, for the processes of a run."""
_HEAD_BYTES = 32
_SIGNATURES = (
    b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+",
    b"\0\0\x01\0", b"\0\0\x02\0", b"\xff\x0a", b"\0\0\0\x0cJXL ", b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51", b"qoif",
    b"P4", b"P5", b"P6", b"8BPS",
)  # fmt: skip
"""First bytes: PNG, JPEG, GIF, BMP, TIFF, ICO, JPEG XL, JPEG 2000, QOI, PNM, PSD."""
_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"hevc", b"mif1", b"msf1", b"heim", b"heis")


def allow(folders: tuple[str, ...]) -> None:
    """Allow more folders, for this process and the ones it starts."""
    known = [f for f in os.environ.get(ALLOW_PATH, "").split(os.pathsep) if f]
    more = [str(Path(f).expanduser().resolve()) for f in folders]
    if known or more:
        os.environ[ALLOW_PATH] = os.pathsep.join(dict.fromkeys([*known, *more]))


def allowed() -> tuple[Path, ...]:
    return tuple(Path(f) for f in os.environ.get(ALLOW_PATH, "").split(os.pathsep) if f)


def contained(folder: Path, name: str) -> Path:
    """Return the path of a named file. Raises ValueError where it leads out of the folder (also by a symbolic link) and
    of every allowed one.
    """
    path = (folder / name).resolve()
    if not any(path.is_relative_to(home) for home in (folder.resolve(), *allowed())):
        raise ValueError(f"{name!r} leads out of {folder}: copy it there, or allow its folder with --allow-path")
    return path


def read_image(folder: Path, name: str) -> bytes:
    """Read a named image. Raises ValueError where it is outside the allowed folders, no regular file, or no image by its
    first bytes; OSError where it cannot be read.
    """
    path = contained(folder, name)
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{name!r} is no regular file; name an image file")
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        if not _is_image(head):
            raise ValueError(f"{name!r} is no image by its first bytes; bytes of any kind can be sent as a data: URL")
        return head + file.read()


def _is_image(head: bytes) -> bool:
    if head[:4] == b"RIFF":
        return head[8:12] == b"WEBP"
    return head.startswith(_SIGNATURES) or (head[4:8] == b"ftyp" and head[8:12] in _BRANDS)
