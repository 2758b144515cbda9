"""Rebuild request bodies from the plan, for incidents and reports.

Bodies are not stored during the load: `payloads.build` is pure, so plan, facts and a step's number give the same bytes.
Those of a session also need the answers before them, which the ledger has (`answer` rows).
They are checked against length and CRC of the begin row. This module is separate because it needs the plan and the
payloads, which neither the follower nor the judge may import; `run`, `loadchaos judge` and `report` pass it to
`runner.finalize`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core import typed_json
from loadchaos.core.body_hash import is_sent_body
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.model import Facts, Step
from loadchaos.core.redact import Redactor
from loadchaos.core.session_ids import place_of
from loadchaos.core.whole_file import write_whole
from loadchaos.load import payloads, registry
from loadchaos.load.payloads.live import SentBack, step_of_request
from loadchaos.load.wire.request import Request
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.profile.steps import PHASE_STRIDE, of_phase

MAX_BYTES = 64 * 1024 * 1024
"""Limit for all bodies of a run; a body that does not fit is listed and can be rebuilt from the plan."""
FOLDER = "bodies"
_MAX_STEPS = 3_000_000  # steps of a phase that are generated to reach a wanted one: half a minute

BeginRows = dict[tuple[int, int, str], dict[str, Any]]
"""Begin rows (id, len, hash, traffic) by phase, step and, for a later request of a session, its id."""


def store(
    folder: RunFolder, incidents: Sequence[Mapping[str, Any]], *, budget_s: float | None = None
) -> dict[int, list[dict[str, Any]]]:
    """Store the bodies of each incident's requests under incidents/bodies/.

    Deaths come before failures, and requests in flight before others, until 64 MB are full or `budget_s` seconds have
    passed.

    Returns:
        By the incident's number, one mapping per request: `{id, step, traffic, in_flight, len, hash, path, body, why}`.
        `body` is a path relative to incidents/, or None with the reason in `why`.

    Raises:
        OSError: A body cannot be written.
        ValueError, KeyError: The plan cannot be read.
    """
    ids = {str(r.get("id")) for i in incidents for r in _requests(i)}
    rows = _begin_rows(folder, ids)
    bodies = _BodyStore(folder, None if budget_s is None else time.monotonic() + budget_s, answers_of(folder, ids))
    order = [(i, r) for i in incidents for r in _requests(i)]
    failed = {(i["n"], r.get("id")) for i in incidents for r in i.get("examples") or ()}
    order.sort(
        key=lambda item: (
            item[0].get("kind") == "failure",
            not item[1]["in_flight"] and (item[0]["n"], item[1]["id"]) not in failed,
            -int(item[1]["step"]),
        )
    )
    begin_rows: BeginRows = {}
    for _, r in order:
        row = rows.get(str(r.get("id")))
        if row is not None:
            later = str(row["id"]) if is_later(str(row["id"])) else ""
            begin_rows.setdefault((int(row.get("phase") or 0), int(row["step"]), later), row)
    bodies.keep(begin_rows)
    return {
        int(i["n"]): [_describe_body(r, rows.get(str(r.get("id"))), bodies) for r in _requests(i)] for i in incidents
    }


def _requests(incident: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each request of an incident: failed, in flight, then others."""
    found_ids = set()
    flying = {r.get("id") for r in incident.get("in_flight") or ()}
    for name, in_flight in (("examples", False), ("in_flight", True), ("admitted", False)):
        for r in incident.get(name) or ():
            if r.get("id") not in found_ids:
                found_ids.add(r.get("id"))
                yield {
                    "id": r.get("id"),
                    "step": r.get("step") or 0,
                    "traffic": r.get("traffic"),
                    "in_flight": in_flight or (name == "examples" and r.get("id") in flying),
                }


def _begin_rows(folder: RunFolder, ids: set[str]) -> dict[str, dict[str, Any]]:
    found = {}
    for path in folder.request_files():
        for row in Tail(path).rows():
            if row.get("row") == "begin" and str(row.get("id")) in ids:
                found[str(row["id"])] = row
    return found


def _describe_body(r: dict[str, Any], row: Mapping[str, Any] | None, bodies: _BodyStore) -> dict[str, Any]:
    if row is None:
        return {**r, "len": None, "hash": None, "path": None, "body": None, "why": "its begin row is not in the ledger"}
    body, path, why = bodies.where(row)
    return {**r, "len": row.get("len"), "hash": row.get("hash"), "path": path, "body": body, "why": why}


class _BodyStore:
    """Rebuilds bodies within a limit of bytes and time. Equal bodies are stored once."""

    def __init__(self, folder: RunFolder, until: float | None, answers: Mapping[str, SentBack]) -> None:
        self._answers = answers
        self._folder = folder.incidents / FOLDER
        self._plan: dict[str, Any] = orjson.loads(folder.plan.read_bytes())
        self._facts = typed_json.from_json(Facts, orjson.loads(folder.facts.read_bytes()))
        self._until = until
        self._bytes = 0
        self._redactor = Redactor()
        self._kept: dict[str, tuple[str, str]] = {}  # hash: file, path of the request
        self._reasons: dict[str, str] = {}

    def keep(self, begin_rows: BeginRows) -> None:
        chosen = self._choose(begin_rows)
        made = dict(planned_steps(self._plan, {(phase, step) for phase, step, _ in chosen}, self._out_of_time))
        for key, row in chosen.items():
            name = str(row.get("hash"))
            if name in self._kept:
                continue
            if self._out_of_time():
                self._reasons[name] = "there was no time left to rebuild it"
            elif key[:2] not in made:
                self._reasons.setdefault(name, f"the plan has no such step among the first {_MAX_STEPS:,} of its phase")
            elif (step := sent_step(made[key[:2]], self._facts, str(row.get("id")), self._answers)) is None:
                self._reasons[name] = "an answer that it repeats is not in the ledger"
            else:
                self._write(name, row, payloads.build(step, self._facts))

    def where(self, row: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
        """Return (file relative to incidents/, request path, reason for no file)."""
        name = str(row.get("hash"))
        if name in self._kept:
            file, path = self._kept[name]
            return f"{FOLDER}/{file}", path, None
        return None, None, self._reasons.get(name, "it was not rebuilt")

    def _choose(self, begin_rows: BeginRows) -> BeginRows:
        """Choose bodies that fit the limit, in order. A small one may fit where a large one did not."""
        chosen: BeginRows = {}
        names: set[str] = set()
        for key, row in begin_rows.items():
            name, size = str(row.get("hash")), int(row.get("len") or 0)
            if name not in names and self._bytes + size > MAX_BYTES:
                self._reasons[name] = (
                    f"the bodies of a run may take {MAX_BYTES // 2**20} MB, and its {size:,} bytes do not fit"
                )
                continue
            self._bytes += 0 if name in names else size
            names.add(name)
            chosen[key] = row
        return chosen

    def _out_of_time(self) -> bool:
        return self._until is not None and time.monotonic() > self._until

    def _write(self, name: str, row: Mapping[str, Any], request: Request) -> None:
        body = request.body
        if not is_sent_body(body, row.get("len"), row.get("hash"), row.get("crc")):
            self._reasons[name] = "the rebuilt body is not the one that was sent: length or hash differ"
        elif self._redactor.redact(body) != body:
            self._reasons[name] = "it contains text that looks like a secret"
        else:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = f"{name}.json"
            _write_once(self._folder / file, body)
            self._kept[name] = (file, request.path)


def is_later(request_id: str) -> bool:
    """Tell if an id is that of a later request of a session."""
    return any(place_of(request_id)[1:])


def answers_of(folder: RunFolder, ids: Iterable[str]) -> dict[str, SentBack]:
    sessions = {place_of(name).first for name in ids if is_later(name)}
    found: dict[str, SentBack] = {}
    for path in folder.request_files() if sessions else ():
        for row in Tail(path).rows():
            if row.get("row") == "answer" and place_of(str(row.get("id"))).first in sessions:
                found[str(row["id"])] = SentBack.from_json(row)
    return found


def sent_step(step: Step, facts: Facts, request_id: str, answers: Mapping[str, SentBack]) -> Step | None:
    """Step that a request was built from. That of a session has the answers before it. None if one of these is missing."""
    return step_of_request(step, facts, request_id, answers) if is_later(request_id) else step


def planned_steps(
    plan: Mapping[str, Any], keys: set[tuple[int, int]], out_of_time: Callable[[], bool] = lambda: False
) -> Iterator[tuple[tuple[int, int], Step]]:
    """Yield the wanted (phase, step) of a plan.json with their steps."""
    profile: Profile = from_mapping(plan["profile"], registry.traffic_registry())
    for phase in sorted({phase for phase, _ in keys}):
        steps = {step for of, step in keys if of == phase and step - phase * PHASE_STRIDE < _MAX_STEPS}
        if not steps or phase >= len(profile.load):
            continue
        last = max(steps)
        for step in of_phase(profile, int(plan["seed"]), phase):
            if step.index in steps:
                yield (phase, step.index), step
            if step.index >= last or out_of_time():
                break


def _write_once(path: Path, data: bytes) -> None:
    if path.exists() and path.stat().st_size == len(data):
        return  # named by its content: it exists already
    write_whole(path, data)
