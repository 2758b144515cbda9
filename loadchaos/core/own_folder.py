"""Tell run folders of this user and machine from those that somebody else made. Theirs name commands, servers and
files, none of which is used unless the user agrees. The proof is a seal in the folder. Its key is outside of the
folder, and it holds for the folder's inode and the time at which the seal was written: a copy has another inode, and an
archive that is unpacked may get the inode of the deleted original, but gets a new time of change (ctime).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from loadchaos.core.errors import OptionError

SEAL = ".seal"
_KEY_BYTES = 32
_MOST_PARENTS = 6
_WRITTEN_NS = 2_000_000_000  # from the seal's creation to its last byte


def seal(folder: Path) -> None:
    """Seal a folder that was just made. Where that fails (no home folder), it counts as somebody else's."""
    with contextlib.suppress(OSError):
        (file := folder / SEAL).touch()
        at_ns = file.stat().st_ctime_ns
        file.write_text(f"{at_ns} {_seal(folder, at_ns, _key())}")


def is_own(path: Path) -> bool:
    """Return True where the folder, or the nearest sealed one that it is in, has a valid seal."""
    for folder in [path, *path.resolve().parents][:_MOST_PARENTS]:
        file = folder / SEAL
        with contextlib.suppress(OSError, ValueError):
            status = file.lstat()
            at_ns, _, mac = file.read_text("ascii").partition(" ")
            own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            own = own and 0 <= status.st_ctime_ns - int(at_ns) < _WRITTEN_NS
            return own and hmac.compare_digest(mac, _seal(folder, int(at_ns), _key()))
    return False


def refuse_links(folder: Path) -> None:
    """Raise OptionError where somebody else's folder has a link that leaves it, or a special file (a pipe)."""
    if is_own(folder) or not folder.is_dir():
        return
    root = folder.resolve()
    for parent, folders, files in os.walk(root):
        for path in (Path(parent, name) for name in (*folders, *files)):
            inside(root, path.relative_to(root))
            if not path.is_dir() and not path.is_file() and not path.is_symlink():
                raise OptionError(
                    f"{path} is neither a file nor a folder; the run was made by somebody else: remove it"
                )


def inside(folder: Path, name: str | Path) -> Path:
    """Return a file that data of a folder names. Raises OptionError where it is outside of the folder."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise OptionError(f"{path} leads out of {folder}, which was made by somebody else: look at it, and remove it")
    return path


def _seal(folder: Path, at_ns: int, key: bytes) -> str:
    return hmac.new(key, f"{folder.stat().st_ino} {at_ns}".encode(), hashlib.sha256).hexdigest()


def _key() -> bytes:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    file = Path(state, "loadchaos", "seal.key")
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = file.with_name(f"{secrets.token_hex(8)}.part")
        part.touch(mode=0o600)
        part.write_bytes(secrets.token_bytes(_KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(part, file)
        part.unlink()
    return file.read_bytes()
