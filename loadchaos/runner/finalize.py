"""Judges a run's whole ledger once, finished or killed, and writes what it comes to; that verdict counts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import orjson

from loadchaos.analysis.judge import Judge
from loadchaos.core import progress
from loadchaos.core.errors import LedgerError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader, Tail
from loadchaos.report.export import junit
from loadchaos.report.html import page
from loadchaos.report.incident import folder as incident
from loadchaos.report.incident.page import replay_command
from loadchaos.report.live_stats.series import Series

Bodies = Callable[[RunFolder, Sequence[Mapping[str, Any]]], Mapping[int, Sequence[Mapping[str, Any]]]]
"""Keeps the bodies of incidents' requests (bodies.store): handed in, because to make them takes the plan and payloads."""

_LOOK_S = 0.1
_HURRY_S = 2.0


async def conclude_interruptible(
    folder: RunFolder, bodies: Bodies, say: progress.Say, interrupts: Sequence[int]
) -> dict[str, Any]:
    """As `conclude`, beside a user who may lose patience: `interrupts` grows with each signal.

    One more of them than there were ends this process, and so do two seconds where there were two: the ledger is closed
    and can be judged at any time.
    """
    work = asyncio.create_task(asyncio.to_thread(conclude, folder, bodies, progress.on_terminal(say)))
    begin, asked = time.monotonic(), len(interrupts)
    while not work.done():
        await asyncio.wait([work], timeout=_LOOK_S)
        again = len(interrupts) > max(asked, 1)
        if again or (asked > 1 and time.monotonic() - begin > _HURRY_S):
            _leave(folder, say, 128 + interrupts[0])
    return work.result()


def _leave(folder: RunFolder, say: progress.Say, code: int) -> None:
    say(f"not judged yet: loadchaos judge {folder.path}")
    time.sleep(_LOOK_S)  # the voice is a thread: let it speak
    os._exit(code)


def conclude(folder: RunFolder, bodies: Bodies | None = None, say: progress.Say | None = None) -> dict[str, Any]:
    """Judge the whole ledger once and write verdict.json, incidents, report.html and junit.xml. Returns the verdict.

    What cannot be made is told in its `notes`; a pass that cannot be written down is unknown, for nobody could show
    it. `say` is told how far it is. LedgerError when there is no ledger.
    """
    if not folder.events.exists():
        raise LedgerError(f"{folder.path} is no run folder: it has no events.jsonl; `loadchaos runs` lists those here")
    reader, judge, series = Reader(folder), Judge(), Series()
    for row in progress.rows(reader.new(final=True), "judging", say):
        judge.feed(row)
        series.feed(row)
    verdict = judge.verdict(bad_rows=reader.bad_rows)
    begins = (r for r in Tail(folder.events).rows() if r.get("row") == "run" and r.get("what") == "begin")
    verdict.setdefault("replay", replay_command(next(begins, {})))
    notes: list[str] = verdict.setdefault("notes", [])
    for what, make in (
        ("the incidents", lambda: _incidents(folder, judge)),
        ("report.html", lambda: page.write(folder, verdict, series)),
        ("junit.xml", lambda: junit.write(folder, verdict)),
    ):
        _made(what, make, notes)
    _write_verdict(folder, verdict)
    if bodies is not None and judge.incidents:
        told = len(notes)
        _made("the bodies of the incidents' requests", lambda: _bodies(folder, judge, bodies), notes)
        if len(notes) > told:
            _write_verdict(folder, verdict)
    return verdict


def _made(what: str, make: Callable[[], object], notes: list[str]) -> None:
    try:
        make()
    except Exception as e:  # noqa: BLE001  # a page that cannot be drawn must never cost the verdict
        notes.append(f"{what} could not be made: {type(e).__name__}: {e}")


def _incidents(folder: RunFolder, judge: Judge) -> None:
    kept = [incident.write(folder, i.to_json()) for i in islice(judge.incidents, incident.MOST_INCIDENTS)]
    if folder.incidents.is_dir():
        incident.remove_others(folder, kept)


def _bodies(folder: RunFolder, judge: Judge, bodies: Bodies) -> None:
    """Last of all, since it may take seconds: the verdict is safe by then."""
    incidents = [i.to_json() for i in islice(judge.incidents, incident.MOST_INCIDENTS)]
    kept = bodies(folder, incidents)
    for i in incidents:
        if requests := kept.get(i["n"]):
            incident.write(folder, i, requests)


def _write_verdict(folder: RunFolder, verdict: dict[str, Any]) -> None:
    part = folder.verdict.with_name("verdict.json.part")
    try:
        part.write_bytes(orjson.dumps(verdict, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))
        part.replace(folder.verdict)
    except OSError as e:
        actual = f"verdict.json could not be written: {e.strerror}"
        verdict["notes"].append(actual)
        verdict["checks"].append({"name": "written", "expected": "kept", "actual": actual, "verdict": "unknown"})
        if verdict.get("verdict") == "pass":
            verdict["verdict"] = "unknown"
        verdict["exit_code"] = verdict["exit_code"] or LedgerError.exit_code
