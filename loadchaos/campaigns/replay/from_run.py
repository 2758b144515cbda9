"""Make a trace of the ledger of a run. Finished, killed or of an older version."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import orjson

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.campaigns.recorder.from_recording import recording_of, trace_of_recording
from loadchaos.campaigns.recorder.ring import RECORDING
from loadchaos.core.body_hash import store_body
from loadchaos.core.errors import LoadchaosError, OptionError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.row_check import fits_its_kind
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import FactsRow, LaunchRow, LoadRow
from loadchaos.core.model import Row
from loadchaos.core.session_ids import place_of
from loadchaos.load import registry
from loadchaos.profile.attack import AttackPlan
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.profile.request_trace import (
    BODIES,
    VERSION,
    Cause,
    PlannedBody,
    RequestTrace,
    TraceAbort,
    TraceAttack,
    TraceHeader,
    TraceSend,
)
from loadchaos.profile.run_plan import RunPlan
from loadchaos.server.answer import SMALL_QUESTION

_NEXT_WITHIN_NS = 50_000_000
"""Maximum time from an answer to the next request of the same user."""
_PAUSED_WITHIN_NS = 5_000_000_000
_TIMES = ("every", "at", "after", "during", "times", "when", "jitter")


class _Ledger(RowFold):
    """Rows of a run that a replay needs."""

    def __init__(self) -> None:
        self.begins: list[Row] = []
        self.ends: dict[str, Row] = {}
        self.zero_ns: int | None = None
        self.attacks: list[Row] = []
        self.undone_ns: dict[tuple[str, int, str], int] = {}
        self.begin: Row = {}
        self.facts: Row = {}
        self.command: list[str] = []
        self.configuration: Row = {}

    def on_begin(self, row: Row) -> None:
        if _without_follower(str(row.get("id"))) == str(row.get("id")):
            self.begins.append(row)

    def on_end(self, row: Row) -> None:
        self.ends[str(row.get("id"))] = row

    def on_load(self, row: LoadRow) -> None:
        if row["what"] == "begin":
            self.zero_ns = min(self.zero_ns or row["at_ns"], row["at_ns"])

    def on_run(self, row: Row) -> None:
        if row.get("what") == "begin":
            self.begin = row

    def on_facts(self, row: FactsRow) -> None:
        self.facts = row.get("facts") or {}

    def on_configuration(self, row: Row) -> None:
        self.configuration = row

    def on_launch(self, row: LaunchRow) -> None:
        if row["what"] == "start":
            self.command = list(row.get("command") or ())

    def on_attack(self, row: Row) -> None:
        if row.get("what") == "begin":
            self.attacks.append(row)
        elif row.get("what") == "undo":
            self.undone_ns[str(row.get("attack")), int(row.get("n") or 0), str(row.get("replica"))] = int(row["at_ns"])


def trace_of_run(folder: RunFolder, until_ns: int | None = None, scratch: Path | None = None) -> RequestTrace:
    """Make the trace of a run, up to a moment of its monotonic clock. A run whose server died of the first question
    before the load has that question alone; its body is stored under `scratch`. Raises OptionError for a run without
    requests or without its plan.
    """
    ledger = _read(folder)
    begins = [b for b in ledger.begins if until_ns is None or b["at_ns"] <= until_ns]
    recording = recording_of(folder.path / RECORDING)
    if recording is not None and scratch is not None and begins:  # the requests of others, which no plan has
        trace = trace_of_recording(recording, scratch, until_ns)
        header = _header(folder, ledger)
        return replace(trace, header=trace.header.model_copy(update={"server": header.server, "source": header.source}))
    if not begins:
        return _trace_of_first_question(folder, ledger, scratch)
    if not folder.plan.is_file():
        raise OptionError(f"{folder.path}: the run has no plan.json, which its requests are built from")
    try:
        profile = from_mapping(RunPlan.read(folder.plan).profile, registry.traffic_registry())
    except (LoadchaosError, OSError, ValueError) as e:
        raise OptionError(f"{folder.path}: the plan of the run cannot be read: {e}") from e
    zero_ns = begins[0]["at_ns"] if ledger.zero_ns is None else min(ledger.zero_ns, begins[0]["at_ns"])
    causes = dict(_causes(begins, ledger.ends, profile))
    sends = tuple(_send(b, ledger.ends.get(str(b["id"])), causes[str(b["id"])], zero_ns) for b in begins)
    header = _header(folder, ledger).model_copy(
        update={"plan": str(folder.plan.resolve()), "facts": str(folder.facts.resolve())}
    )
    aborts = tuple(a for b in begins if (a := _abort(b, ledger.ends.get(str(b["id"])), zero_ns)) is not None)
    attacks = tuple(_attacks(ledger, profile, zero_ns, until_ns))
    return RequestTrace(header, sends, aborts, attacks, folder.path)


def _header(folder: RunFolder, ledger: _Ledger) -> TraceHeader:
    return TraceHeader(
        event="trace", version=VERSION, source=str(folder.path), model=str(ledger.facts.get("model") or ""),
        server={
            "kind": (ledger.begin.get("target") or {}).get("kind"), "command": ledger.command,
            **{key: ledger.facts.get(key) for key in ("dialect", "version", "capacity_tokens", "max_model_len")},
            "url": (ledger.begin.get("target") or {}).get("url"),
            **{key: ledger.configuration[key] for key in ("flags", "system") if ledger.configuration.get(key)},
        },
    )  # fmt: skip


def _trace_of_first_question(folder: RunFolder, ledger: _Ledger, scratch: Path | None) -> RequestTrace:
    """Trace of a run that died of the question before the load. Raises OptionError for another without requests."""
    verdict = Verdict.from_json(orjson.loads(folder.verdict.read_bytes()) if folder.verdict.is_file() else None)
    died = any(f.severity == "engine_death" for f in verdict.failures)
    if scratch is None or not died:
        raise OptionError(f"{folder.path}: the run sent no request, so there is nothing to replay")
    header = _header(folder, ledger)
    question = {"model": header.model, "messages": [{"role": "user", "content": SMALL_QUESTION}], "max_tokens": 1}
    name = store_body(scratch / BODIES, orjson.dumps({**question, "temperature": 0}))
    shutil.copyfile(folder.path / "profile.yaml", scratch / "profile.yaml")  # it says how the server is started
    send = TraceSend(id="r0", body=name, stream=False, max_tokens=1)
    return RequestTrace(header, (send,), folder=scratch)


def _read(folder: RunFolder) -> _Ledger:
    ledger = _Ledger()
    for path in (*folder.request_files(), folder.events):
        for row in Tail(path, fits_its_kind).rows():
            ledger.fold(row)
    ledger.begins.sort(key=lambda b: int(b["at_ns"]))
    return ledger


def _causes(begins: list[Row], ends: Mapping[str, Row], profile: Profile) -> Iterator[tuple[str, tuple[Cause, ...]]]:
    """Yield the cause of each request: the answer that freed its user. The requests of an open phase, and the first
    ones of a round, wait for the end of the round before, later ones of a session for the answer before them. The last
    answer of a session frees its user.
    """
    paths: dict[tuple[str, int], str] = {}  # newest request of each path of a session
    in_order = _freeing(begins, ends)
    position, part, barrier = 0, None, None
    free: list[Row] = []
    for begin in begins:
        while position < len(in_order) and in_order[position]["at_ns"] <= begin["at_ns"]:
            free.append(in_order[position])
            position += 1
        phase = int(begin.get("phase") or 0)
        if (phase, begin.get("round")) != part:
            part = (phase, begin.get("round"))
            barrier = free[-1] if free else barrier
            free.clear()
        if (before := _before_in_session(str(begin["id"]), paths, ends)) is not None:
            delay_s = round(max(0, begin["at_ns"] - before["at_ns"]) / 1e9, 6)
            yield str(begin["id"]), (Cause(request=str(before["id"]), delay_s=delay_s),)
            continue
        closed = phase < len(profile.load) and profile.load[phase].kind == "closed"
        cause = (_freed(free, int(begin["at_ns"])) if closed else None) or barrier
        if cause is None:
            yield str(begin["id"]), ()
        else:
            cause = ends.get(_without_follower(str(cause["id"])), cause)
            delay_s = round((begin["at_ns"] - cause["at_ns"]) / 1e9, 6)
            yield str(begin["id"]), (Cause(request=str(cause["id"]), delay_s=delay_s),)


def _without_follower(name: str) -> str:
    """Get the id of the first request of a pipeline. Its followers are not in a trace, as it sends them again."""
    head, dash, last = name.rpartition("-")
    return head + dash + last.partition(".")[0]


def _freeing(begins: list[Row], ends: Mapping[str, Row]) -> list[Row]:
    """Ends after which a user is free, in order: of a session its last one."""
    in_order = sorted(ends.values(), key=lambda e: int(e["at_ns"]))
    last = {place_of(str(end["id"])).first: end["id"] for end in in_order}
    running = {place_of(str(b["id"])).first for b in begins if str(b["id"]) not in ends}
    return [e for e in in_order if (f := place_of(str(e["id"])).first) not in running and last[f] == e["id"]]


def _before_in_session(name: str, paths: dict[tuple[str, int], str], ends: Mapping[str, Row]) -> Row | None:
    place = place_of(name)
    before = paths.get((place.first, place.branch)) or paths.get((place.first, 0))
    paths[place.first, place.branch] = name
    return ends.get(before) if before is not None and before != name else None


def _freed(free: list[Row], at_ns: int) -> Row | None:
    for i, end in enumerate(free):
        if at_ns - end["at_ns"] <= _NEXT_WITHIN_NS:
            return free.pop(i)
    return free.pop() if free and at_ns - free[-1]["at_ns"] <= _PAUSED_WITHIN_NS else None


def _send(begin: Row, end: Row | None, after: tuple[Cause, ...], zero_ns: int) -> TraceSend:
    planned = PlannedBody(
        phase=int(begin.get("phase") or 0), step=int(begin["step"]), seed=begin.get("seed"), len=begin.get("len"),
        crc=begin.get("crc"), hash=begin.get("hash"),
    )  # fmt: skip
    return TraceSend(
        id=str(begin["id"]), at_s=round((begin["at_ns"] - zero_ns) / 1e9, 6), after=after,
        traffic=str(begin.get("traffic") or "replay"), plan=planned, expect=tuple(begin.get("expect") or ("ok",)),
        outcome=None if end is None else end.get("outcome"), images=int(begin.get("images") or 0),
        max_tokens=begin.get("max_tokens"),
    )  # fmt: skip


def _abort(begin: Row, end: Row | None, zero_ns: int) -> TraceAbort | None:
    if begin.get("behaviour") != "abort" or end is None or end.get("outcome") != "aborted":
        return None
    at_s = round((end["at_ns"] - zero_ns) / 1e9, 6)
    tokens = int(end.get("chunks") or 0)
    after_s = round((end["at_ns"] - (end.get("sent_ns") or begin["at_ns"])) / 1e9, 6)
    return TraceAbort(
        request=str(begin["id"]), at_s=at_s, after_token=tokens or None, after_s=None if tokens else after_s
    )


def _attacks(ledger: _Ledger, profile: Profile, zero_ns: int, until_ns: int | None) -> Iterator[TraceAttack]:
    plans: dict[str, AttackPlan] = {a.operation: a for a in profile.attacks}
    for row in ledger.attacks:
        plan = plans.get(str(row.get("attack")))
        if plan is None or (until_ns is not None and row["at_ns"] > until_ns):
            continue
        entry = plan.model_dump(mode="json", by_alias=True, exclude_unset=True)
        entry = {k: v for k, v in entry.items() if k not in _TIMES}
        key = str(row["attack"]), int(row.get("n") or 0), str(row.get("replica"))
        if (undone_ns := ledger.undone_ns.get(key)) is not None:
            entry["for"] = f"{max(1, round((undone_ns - row['at_ns']) / 1e6))}ms"
        at_s = max(0.0, round((row["at_ns"] - zero_ns) / 1e9, 6))
        yield TraceAttack(id=f"{row['attack']}-{row.get('n')}", at_s=at_s, attack=entry)
