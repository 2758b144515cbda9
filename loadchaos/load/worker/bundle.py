"""Pack the plan and the profile's files for a worker on another machine.

No secret is in it: plan.json holds keys and headers by the names of their variables only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core.errors import LedgerError, next_step
from loadchaos.core.foreign_json import json_value, strings
from loadchaos.core.model import Facts
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.load.payloads import PAYLOADS
from loadchaos.profile.files import file_names
from loadchaos.profile.json_lines import read_bytes
from loadchaos.profile.run_plan import RunPlan

FILES = "files"
_MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Plan of a run, facts of its server, and the files that the profile names, by their names in the bundle."""

    plan: RunPlan
    facts: Facts
    files: Mapping[str, bytes]


def pack(run_folder: Path) -> Bundle:
    """Pack the bundle of a run. Raises LedgerError when a file cannot be read or all are too large."""
    plan = RunPlan.read(run_folder / "plan.json")
    data = to_json(replace(plan, tag=run_tag(plan.folder)))
    files: dict[str, bytes] = {}
    for holder, key in _path_entries(data):
        holder[key] = _add_file(Path(holder[key]), files)
    if sum(map(len, files.values())) > _MAX_BYTES:
        raise LedgerError(
            f"the profile's files are larger than {_MAX_BYTES >> 20} MB, the limit for each worker: choose smaller ones"
        )
    facts = from_json(Facts, orjson.loads((run_folder / "facts.json").read_bytes()))
    return Bundle(plan=from_json(RunPlan, data), facts=facts, files=files)


def unpack(contents: Bundle, folder: Path, worker: int) -> Path:
    """Write the bundle to `folder` for this worker; returns plan.json's path. Raises LedgerError."""
    plan = to_json(replace(contents.plan, spool=str(folder), worker=worker))
    try:
        for name, data in contents.files.items():
            path = _inside(folder / FILES, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for holder, key in _path_entries(plan):
            holder[key] = str(_inside(folder / FILES, holder[key]))
        (folder / "facts.json").write_bytes(orjson.dumps(to_json(contents.facts)))
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


def _path_entries(plan: Any) -> Iterator[tuple[Any, str]]:
    """Yield every (mapping, key) of the JSON of a plan whose value is a path."""
    if plan["tls"]["ca"]:
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
        for name in _referenced_files(path):
            files[f"{home}/{name}"] = (path.parent / name).read_bytes()
    except OSError as e:
        raise LedgerError(
            f"{path}: cannot be sent to the workers: {e.strerror}; check that it exists and can be read"
        ) from e
    return f"{home}/{path.name}"


def _referenced_files(file: Path) -> Iterator[str]:
    """Yield every string in a JSON file that names a file beside it; none where it is no JSON, such as a CSV trace."""
    content, folder = read_bytes(file).decode("utf-8-sig", "replace"), file.parent
    whole = json_value(content)
    lines = content.split("\n") if whole is None else ()
    records = [whole, *(json_value(line.removeprefix("\ufeff")) for line in lines)]
    for text in dict.fromkeys(t for r in records for t in strings(r)):
        short = 0 < len(text) < 1024 and "\n" not in text and "\0" not in text and ":" not in text
        if short and (folder / text).is_file() and (folder / text).resolve().is_relative_to(folder.resolve()):
            yield text
