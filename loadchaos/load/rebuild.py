"""The bodies of requests that were out when a server died, made again from the plan and kept once each with the incidents.

Bodies are not spooled while the load runs: `payloads.build` is pure, so plan, facts and a step's number give the same
bytes, which are checked against length and CRC of the begin row. This is a room of its own because it needs the plan and
the payloads, which neither the follower nor the judge may import; `run`, `loadchaos judge` and `report` hand it to
`follow.conclude`.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.model import Facts, Request, Step
from loadchaos.core.redact import Redactor
from loadchaos.load import payloads, registry
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.profile.steps import PHASE_STRIDE, of_phase

MOST_BYTES = 64 * 1024 * 1024
"""All bodies of one run; what does not fit is listed, and can be made again from the same plan."""
FOLDER = "bodies"
_FARTHEST = 3_000_000  # steps of a phase that are made to reach the one that is wanted: half a minute

Wanted = dict[tuple[int, int], dict[str, Any]]  # (phase, step): the begin row's id, len, crc, hash, traffic


def store(
    folder: RunFolder, incidents: Sequence[Mapping[str, Any]], *, budget_s: float | None = None
) -> dict[int, list[dict[str, Any]]]:
    """Keep the bodies of each incident's requests under incidents/bodies/, and say of each request where its body is.

    Gives, by the incident's number, one mapping a request: `{id, step, traffic, in_flight, len, hash, path, body, why}`;
    `body` is a path relative to incidents/, None where it is not kept, and `why` says why. Deaths come before failures,
    what was in flight before what was admitted earlier, until 64 MB are full or `budget_s` seconds are over. Raises
    OSError when it cannot write, ValueError or KeyError when the plan cannot be read.
    """
    rows = _begin_rows(folder, {str(r.get("id")) for i in incidents for r in _requests(i)})
    keeper = _Keeper(folder, None if budget_s is None else time.monotonic() + budget_s)
    order = [(i, r) for i in incidents for r in _requests(i)]
    order.sort(key=lambda item: (item[0].get("kind") == "failure", not item[1]["in_flight"], -int(item[1]["step"])))
    wanted: Wanted = {}
    for _, r in order:
        row = rows.get(str(r.get("id")))
        if row is not None:
            wanted.setdefault((int(row.get("phase") or 0), int(row["step"])), row)
    keeper.keep(wanted)
    return {int(i["n"]): [_told(r, rows.get(str(r.get("id"))), keeper) for r in _requests(i)] for i in incidents}


def _requests(incident: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Its requests, each once: those in flight, then the others that were admitted before."""
    seen = set()
    for name, flying in (("in_flight", True), ("admitted", False)):
        for r in incident.get(name) or ():
            if r.get("id") not in seen:
                seen.add(r.get("id"))
                yield {"id": r.get("id"), "step": r.get("step") or 0, "traffic": r.get("traffic"), "in_flight": flying}


def _begin_rows(folder: RunFolder, ids: set[str]) -> dict[str, dict[str, Any]]:
    found = {}
    for path in folder.request_files():
        for row in Tail(path).rows():
            if row.get("row") == "begin" and str(row.get("id")) in ids:
                found[str(row["id"])] = row
    return found


def _told(r: dict[str, Any], row: Mapping[str, Any] | None, keeper: _Keeper) -> dict[str, Any]:
    if row is None:
        return {**r, "len": None, "hash": None, "path": None, "body": None, "why": "its begin row is not in the ledger"}
    body, path, why = keeper.where(row)
    return {**r, "len": row.get("len"), "hash": row.get("hash"), "path": path, "body": body, "why": why}


class _Keeper:
    """Makes bodies until there is no more room or time; the same body is kept once."""

    def __init__(self, folder: RunFolder, until: float | None) -> None:
        self._home = folder.incidents / FOLDER
        self._plan: dict[str, Any] = orjson.loads(folder.plan.read_bytes())
        self._facts = Facts.from_json(orjson.loads(folder.facts.read_bytes()))
        self._until = until
        self._bytes = 0
        self._redactor = Redactor()
        self._kept: dict[str, tuple[str, str]] = {}  # hash: file, path of the request
        self._why: dict[str, str] = {}

    def keep(self, wanted: Wanted) -> None:
        """Rebuild what is wanted, in its order, as far as room and time go."""
        chosen = self._choose(wanted)
        made = dict(self._steps(set(chosen)))
        for key, row in chosen.items():
            name = str(row.get("hash"))
            if name in self._kept:
                continue
            if self._over():
                self._why[name] = "there was no time left to make it"
            elif key not in made:
                self._why.setdefault(name, "the plan has no such step within reach")
            else:
                self._write(name, row, payloads.build(made[key], self._facts))

    def where(self, row: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
        """(file relative to incidents/, path it was sent to, why it is not there)."""
        name = str(row.get("hash"))
        if name in self._kept:
            file, path = self._kept[name]
            return f"{FOLDER}/{file}", path, None
        return None, None, self._why.get(name, "it was not made")

    def _choose(self, wanted: Wanted) -> Wanted:
        """What fits into the room, in order; a small one may fit where a large one did not."""
        chosen: Wanted = {}
        names: set[str] = set()
        for key, row in wanted.items():
            name, size = str(row.get("hash")), int(row.get("len") or 0)
            if name not in names and self._bytes + size > MOST_BYTES:
                self._why[name] = (
                    f"{MOST_BYTES // 2**20} MB of bodies are kept, and there was no room for its {size} bytes"
                )
                continue
            self._bytes += 0 if name in names else size
            names.add(name)
            chosen[key] = row
        return chosen

    def _steps(self, keys: set[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], Step]]:
        profile: Profile = from_mapping(self._plan["profile"], registry.of_traffic())
        for phase in sorted({phase for phase, _ in keys}):
            steps = {step for of, step in keys if of == phase and step - phase * PHASE_STRIDE < _FARTHEST}
            if not steps or phase >= len(profile.load):
                continue
            last = max(steps)
            for step in of_phase(profile, int(self._plan["seed"]), phase):
                if step.index in steps:
                    yield (phase, step.index), step
                if step.index >= last or self._over():
                    break

    def _over(self) -> bool:
        return self._until is not None and time.monotonic() > self._until

    def _write(self, name: str, row: Mapping[str, Any], request: Request) -> None:
        body = request.body
        if len(body) != row.get("len") or zlib.crc32(body) != row.get("crc"):
            self._why[name] = "what the plan gives now is not what was sent: length or CRC differ"
        elif self._redactor.redact(body) != body:
            self._why[name] = "it holds what looks like a secret"
        else:
            self._home.mkdir(parents=True, exist_ok=True)
            file = f"{name}.json"
            _put(self._home / file, body)
            self._kept[name] = (file, request.path)


def _put(path: Path, data: bytes) -> None:
    if path.exists() and path.stat().st_size == len(data):
        return  # content has one address: it is there already
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.replace(path)
