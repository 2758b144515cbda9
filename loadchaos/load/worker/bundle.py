"""What a worker on another machine needs of ours: the plan with the files its profile names, packed and unpacked.

Nothing secret is in it: plan.json holds keys and headers by the names of their variables only.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core.errors import LedgerError, next_step
from loadchaos.profile.files import named

FILES = "files"
_MOST_BYTES = 256 * 1024 * 1024


def pack(run_folder: Path) -> dict[str, Any]:
    """`{plan, facts, files: {name: bytes}}`. Raises LedgerError when a file cannot be read or all are too many."""
    plan = orjson.loads((run_folder / "plan.json").read_bytes())
    plan["tag"] = tag(str(plan["folder"]))
    files: dict[str, bytes] = {}
    for holder, key in _places(plan):
        holder[key] = _take(Path(holder[key]), files)
    if sum(map(len, files.values())) > _MOST_BYTES:
        raise LedgerError(
            f"the files the profile names are over {_MOST_BYTES >> 20} MB: too much for each worker; name smaller ones"
        )
    return {"plan": plan, "facts": orjson.loads((run_folder / "facts.json").read_bytes()), FILES: files}


def unpack(luggage: Mapping[str, Any], folder: Path, worker: int) -> Path:
    """Lay the plan out in `folder` for this worker; where plan.json lies. Raises LedgerError when it cannot be written."""
    plan = copy.deepcopy({**luggage["plan"], "spool": str(folder), "worker": worker})
    try:
        for name, data in luggage[FILES].items():
            path = _inside(folder / FILES, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for holder, key in _places(plan):
            holder[key] = str(_inside(folder / FILES, holder[key]))
        (folder / "facts.json").write_bytes(orjson.dumps(luggage["facts"]))
        (folder / "plan.json").write_bytes(orjson.dumps(plan))
    except OSError as e:
        raise LedgerError(f"{folder}: cannot be written: {e.strerror}; {next_step(e)}") from e
    return folder / "plan.json"


def _inside(folder: Path, name: str) -> Path:
    """Where a file of the master's lies: what it names elsewhere on this machine is neither written nor read."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise LedgerError(f"the master named a file outside {folder}: {name}; nothing was written: is it your master?")
    return path


def tag(folder: str) -> str:
    """What the ids of a run's requests begin with: they name the run, so that a server's log tells two runs apart."""
    return hashlib.blake2b(folder.encode(), digest_size=3).hexdigest()


def _places(plan: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Every (mapping, key) of a plan whose value is a path."""
    if (plan.get("tls") or {}).get("ca"):
        yield plan["tls"], "ca"
    for holder, loc in named(plan["profile"]):
        if loc[0] != "target" and holder[loc[-1]]:  # what was asked of the server before the load is known by now
            yield holder, str(loc[-1])


def _take(path: Path, files: dict[str, bytes]) -> str:
    """Put a file, with the images beside it that it names, or a whole folder in; its name among the files."""
    home = hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()
    try:
        if path.is_dir():
            files.update({f"{home}/{p.relative_to(path)}": p.read_bytes() for p in path.rglob("*") if p.is_file()})
            return home
        data = path.read_bytes()
        files[f"{home}/{path.name}"] = data
        for name in _beside(data, path.parent):
            files[f"{home}/{name}"] = (path.parent / name).read_bytes()
    except OSError as e:
        raise LedgerError(
            f"{path}: cannot be sent to the workers: {e.strerror}; is it there, and may it be read?"
        ) from e
    return f"{home}/{path.name}"


def _beside(data: bytes, folder: Path) -> Iterator[str]:
    """Every text in a file of JSON that is the name of a file beside it."""
    try:
        records = [orjson.loads(data)]
    except orjson.JSONDecodeError:
        records = [orjson.loads(line) for line in data.split(b"\n") if line.strip()]
    for text in dict.fromkeys(t for r in records for t in _texts(r)):
        short = 0 < len(text) < 1024 and "\n" not in text and "\0" not in text and ":" not in text
        if short and (folder / text).is_file() and (folder / text).resolve().is_relative_to(folder.resolve()):
            yield text


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
