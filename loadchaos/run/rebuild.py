"""Rebuild request bodies from the plan, for incidents and reports.

Bodies are not stored during the load: `request_builder.build` is pure, so plan, facts and a step's number give the same
bytes. Those of a session also need the answers before them, which the ledger has (`answer` rows). They are checked against
length and CRC of the begin row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from loadchaos.analysis.incidents.record import IncidentRecord
from loadchaos.core import typed_json
from loadchaos.core.body_hash import is_sent_body
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.row_check import fits_its_kind
from loadchaos.core.ledger.rows import BeginRow
from loadchaos.core.model import Facts, Step
from loadchaos.core.redact import Redactor
from loadchaos.core.session_ids import place_of
from loadchaos.core.whole_file import write_whole
from loadchaos.load import registry, request_builder
from loadchaos.load.payloads.live import SentBack, step_of_request
from loadchaos.load.wire.request import Request
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.profile.run_plan import RunPlan
from loadchaos.profile.steps import PHASE_STRIDE, of_phase

MAX_BYTES = 64 * 1024 * 1024
"""Limit for all bodies of a run; a body that does not fit is listed and can be rebuilt from the plan."""
FOLDER = "bodies"
_MAX_STEPS = 3_000_000  # steps of a phase that are generated to reach a wanted one: half a minute


@dataclass
class StoredBody:
    """A request of an incident. `body` is the file of its body, relative to incidents/; without one, `why` says why."""

    id: str
    step: int
    traffic: str
    in_flight: bool
    len: int | None = None
    hash: str | None = None
    path: str | None = None
    body: str | None = None
    why: str | None = "its begin row is not in the ledger"


def store(
    folder: RunFolder, incidents: Sequence[IncidentRecord], *, budget_s: float | None = None
) -> dict[int, list[StoredBody]]:
    """Store the bodies of each incident's requests under incidents/bodies/. Deaths come before failures, and requests in
    flight before others, until 64 MB are full or `budget_s` seconds have passed. Returns the requests of each
    incident by its number. Raises OSError where a body cannot be written, ValueError or KeyError where the
    plan cannot be read.
    """
    listed = {i.n: _requests(i) for i in incidents}
    rows = _begin_rows(folder, {r.id for requests in listed.values() for r in requests})
    order: list[tuple[bool, bool, int, str]] = []
    for i in incidents:
        failed = {r.id for r in i.examples}
        order += [(i.kind == "failure", not r.in_flight and r.id not in failed, -r.step, r.id) for r in listed[i.n]]
    order.sort(key=lambda item: item[:3])
    bodies = _BodyStore(folder, None if budget_s is None else time.monotonic() + budget_s, answers_of(folder, rows))
    bodies.keep({name: rows[name] for *_, name in order if name in rows})
    for r in (r for requests in listed.values() for r in requests if r.id in rows):
        r.len, r.hash = rows[r.id].get("len"), rows[r.id].get("hash")
        file, r.path = bodies.kept.get(str(r.hash), (None, None))
        r.body = file and f"{FOLDER}/{file}"
        r.why = None if file else bodies.reasons.get(str(r.hash), "it was not rebuilt")
    return listed


def _requests(incident: IncidentRecord) -> list[StoredBody]:
    """List each request of an incident once: failed, in flight, then others."""
    flying = {r.id for r in incident.in_flight}
    found: dict[str, StoredBody] = {}
    for r in (*incident.examples, *incident.in_flight, *incident.admitted):
        found.setdefault(r.id, StoredBody(r.id, r.step, r.traffic, r.id in flying))
    return list(found.values())


def _begin_rows(folder: RunFolder, ids: set[str]) -> dict[str, BeginRow]:
    rows = (row for path in folder.request_files() for row in Tail(path, fits_its_kind).rows())
    return {row["id"]: row for row in rows if row["row"] == "begin" and row["id"] in ids}


class _BodyStore:
    """Rebuilds bodies within a limit of bytes and time. Equal bodies are stored once. `kept`: by hash, the file and the
    path of the request; `reasons`: by hash, why there is no file.
    """

    def __init__(self, folder: RunFolder, until_s: float | None, answers: Mapping[str, SentBack]) -> None:
        self._answers = answers
        self._folder = folder.incidents / FOLDER
        self._plan = RunPlan.read(folder.plan)
        self._facts = typed_json.from_json(Facts, orjson.loads(folder.facts.read_bytes()))
        self._until_s = until_s
        self._redactor = Redactor()
        self.kept: dict[str, tuple[str, str]] = {}
        self.reasons: dict[str, str] = {}

    def keep(self, begin_rows: Mapping[str, BeginRow]) -> None:
        chosen = self._choose(begin_rows)
        made = dict(planned_steps(self._plan, {(r["phase"], r["step"]) for r in chosen.values()}, self._out_of_time))
        for name, row in chosen.items():
            planned = made.get((row["phase"], row["step"]))
            if self._out_of_time():
                self.reasons[name] = "there was no time left to rebuild it"
            elif planned is None:
                self.reasons[name] = f"the plan has no such step among the first {_MAX_STEPS:,} of its phase"
            elif (step := sent_step(planned, self._facts, row["id"], self._answers)) is None:
                self.reasons[name] = "an answer that it repeats is not in the ledger"
            else:
                self._write(name, row, request_builder.build(step, self._facts))

    def _choose(self, begin_rows: Mapping[str, BeginRow]) -> dict[str, BeginRow]:
        """Choose bodies that fit the limit, by hash, in order. A small one may fit where a large one did not."""
        chosen: dict[str, BeginRow] = {}
        left = MAX_BYTES
        for row in begin_rows.values():
            name, size = str(row.get("hash")), row.get("len") or 0
            if name in chosen:
                continue
            if size > left:
                limit = f"the bodies of a run may take {MAX_BYTES // 2**20} MB"
                self.reasons[name] = f"{limit}, and its {size:,} bytes do not fit"
                continue
            left -= size
            chosen[name] = row
        return chosen

    def _out_of_time(self) -> bool:
        return self._until_s is not None and time.monotonic() > self._until_s

    def _write(self, name: str, row: BeginRow, request: Request) -> None:
        body, path = request.body, self._folder / f"{name}.json"
        if not is_sent_body(body, row.get("len"), row.get("hash"), row.get("crc")):
            self.reasons[name] = "the rebuilt body is not the one that was sent: length or hash differ"
        elif self._redactor.redact(body) != body:
            self.reasons[name] = "it contains text that looks like a secret"
        else:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.stat().st_size != len(body):  # named by its content
                write_whole(path, body)
            self.kept[name] = (path.name, request.path)


def answers_of(folder: RunFolder, ids: Iterable[str]) -> dict[str, SentBack]:
    sessions = {place.first for place in map(place_of, ids) if place.is_later}
    found: dict[str, SentBack] = {}
    for path in folder.request_files() if sessions else ():
        for row in Tail(path, fits_its_kind).rows():
            if row["row"] == "answer" and place_of(row["id"]).first in sessions:
                found[row["id"]] = SentBack.from_row(row)
    return found


def sent_step(step: Step, facts: Facts, request_id: str, answers: Mapping[str, SentBack]) -> Step | None:
    """Step that a request was built from. That of a session has the answers before it. None if one of these is missing."""
    return step_of_request(step, facts, request_id, answers) if place_of(request_id).is_later else step


def planned_steps(
    plan: RunPlan, keys: set[tuple[int, int]], out_of_time: Callable[[], bool] = lambda: False
) -> Iterator[tuple[tuple[int, int], Step]]:
    """Yield the wanted (phase, step) of a plan.json with their steps."""
    profile: Profile = from_mapping(plan.profile, registry.traffic_registry())
    for phase in sorted({phase for phase, _ in keys}):
        steps = {step for of, step in keys if of == phase and step - phase * PHASE_STRIDE < _MAX_STEPS}
        if not steps or phase >= len(profile.load):
            continue
        last = max(steps)
        for step in of_phase(profile, plan.seed, phase):
            if step.index in steps:
                yield (phase, step.index), step
            if step.index >= last or out_of_time():
                break
