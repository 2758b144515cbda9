"""Pack the plan and the profile's files for a worker on another machine.

No secret is in it: plan.json holds keys and headers by the names of their variables only.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core.errors import LedgerError, next_step
from loadchaos.load.payloads import PAYLOADS
from loadchaos.profile.files import file_names

FILES = "files"
_MAX_BYTES = 256 * 1024 * 1024


def pack(run_folder: Path) -> dict[str, Any]:
    """Pack `{plan, facts, files: {name: bytes}}`. Raises LedgerError when a file cannot be read or all are too large."""
    plan = orjson.loads((run_folder / "plan.json").read_bytes())
    plan["tag"] = run_tag(str(plan["folder"]))
    files: dict[str, bytes] = {}
    for holder, key in _path_entries(plan):
        holder[key] = _add_file(Path(holder[key]), files)
    if sum(map(len, files.values())) > _MAX_BYTES:
        raise LedgerError(
            f"the profile's files are larger than {_MAX_BYTES >> 20} MB, the limit for each worker: choose smaller ones"
        )
    return {"plan": plan, "facts": orjson.loads((run_folder / "facts.json").read_bytes()), FILES: files}


def unpack(contents: Mapping[str, Any], folder: Path, worker: int) -> Path:
    """Write the bundle to `folder` for this worker; returns plan.json's path. Raises LedgerError."""
    plan = copy.deepcopy({**contents["plan"], "spool": str(folder), "worker": worker})
    try:
        for name, data in contents[FILES].items():
            path = _inside(folder / FILES, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for holder, key in _path_entries(plan):
            holder[key] = str(_inside(folder / FILES, holder[key]))
        (folder / "facts.json").write_bytes(orjson.dumps(contents["facts"]))
        (folder / "plan.json").write_bytes(orjson.dumps(plan))
    except OSError as e:
        raise LedgerError(f"{folder}: cannot be written: {e.strerror}; {next_step(e)}") from e
    return folder / "plan.json"


def _inside(folder: Path, name: str) -> Path:
    """Return the path of a bundled file; refuses one outside the folder."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise LedgerError(
            f"the master named a file outside {folder}: {name}; nothing was written: check that it is your master"
        )
    return path


def run_tag(folder: str) -> str:
    """Prefix of a run's request ids: a server's log can tell two runs apart."""
    return hashlib.blake2b(folder.encode(), digest_size=3).hexdigest()


def _path_entries(plan: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield every (mapping, key) of a plan whose value is a path."""
    if (plan.get("tls") or {}).get("ca"):
        yield plan["tls"], "ca"
    for holder, loc in file_names(plan["profile"], PAYLOADS):
        if loc[0] != "target" and holder[loc[-1]]:  # files that only discovery needs
            yield holder, str(loc[-1])


def _add_file(path: Path, files: dict[str, bytes]) -> str:
    """Add a file with the images it names, or a whole folder. Returns its name."""
    home = hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()
    try:
        if path.is_dir():
            files.update({f"{home}/{p.relative_to(path)}": p.read_bytes() for p in path.rglob("*") if p.is_file()})
            return home
        data = path.read_bytes()
        files[f"{home}/{path.name}"] = data
        for name in _referenced_files(data, path.parent):
            files[f"{home}/{name}"] = (path.parent / name).read_bytes()
    except OSError as e:
        raise LedgerError(
            f"{path}: cannot be sent to the workers: {e.strerror}; check that it exists and can be read"
        ) from e
    return f"{home}/{path.name}"


def _referenced_files(data: bytes, folder: Path) -> Iterator[str]:
    """Yield every string in a JSON file that names a file beside it."""
    try:
        records = [orjson.loads(data)]
    except orjson.JSONDecodeError:
        records = [orjson.loads(line) for line in data.split(b"\n") if line.strip()]
    for text in dict.fromkeys(t for r in records for t in _strings(r)):
        short = 0 < len(text) < 1024 and "\n" not in text and "\0" not in text and ":" not in text
        if short and (folder / text).is_file() and (folder / text).resolve().is_relative_to(folder.resolve()):
            yield text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)
