"""Store the bodies of a trace's requests by their content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core import typed_json
from loadchaos.core.body_hash import is_sent_body, store_body
from loadchaos.core.errors import LoadchaosError, OptionError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.model import Facts, Step
from loadchaos.core.own_folder import inside
from loadchaos.load import request_builder
from loadchaos.load.payloads.live import SentBack
from loadchaos.profile.request_trace import BODIES, PlannedBody, RequestTrace, TraceSend
from loadchaos.profile.run_plan import RunPlan
from loadchaos.run.rebuild import answers_of, planned_steps, sent_step

MAX_BYTES = 4 * 1024**3
"""Limit for the bodies of a replay; of a larger run the newest requests are replayed."""


def fitting(trace: RequestTrace, most_bytes: int = MAX_BYTES) -> RequestTrace:
    """Keep the newest requests whose bodies fit the limit."""
    left = most_bytes
    for number, send in enumerate(reversed(trace.sends)):
        left -= (send.plan.len or 0) if send.plan is not None and send.body is None else 0
        if left < 0:
            return trace.only(s.id for s in trace.sends[len(trace.sends) - number :])
    return trace


def stored(trace: RequestTrace, folder: Path) -> RequestTrace:
    """Store every body of a trace under `folder`. Bodies that only the plan has are built from it. Raises OptionError
    where one cannot be built, or is not the one that was sent.
    """
    copied = [_copied(trace, send, folder) for send in trace.sends]
    missing = {(s.plan.phase, s.plan.step) for s in copied if s.body is None and s.plan is not None}
    if not missing:
        return replace(trace, sends=tuple(copied), folder=folder)
    header = trace.header
    if header.plan is None or header.facts is None:
        raise OptionError(
            f"{header.source}: the trace has neither bodies nor a plan with facts: nothing can be sent; give the run folder"
        )
    try:
        plan = RunPlan.read(inside(trace.folder, header.plan))
        facts = typed_json.from_json(Facts, orjson.loads(inside(trace.folder, header.facts).read_bytes()))
        steps = dict(planned_steps(plan, missing))
    except (OSError, ValueError, KeyError, LoadchaosError) as e:
        raise OptionError(
            f"{header.source}: the plan cannot be read, so the bodies cannot be built: {e}; run the profile again"
        ) from e
    answers = answers_of(RunFolder((trace.folder / header.plan).parent), [s.id for s in copied if s.body is None])
    builder = _Builder(facts, answers, trace.folder / "incidents" / BODIES, folder, {a.request for a in trace.aborts})
    sends = tuple(
        s if s.body is not None or s.plan is None
        else builder.built(s, steps.get((s.plan.phase, s.plan.step)))
        for s in copied
    )  # fmt: skip
    return replace(trace, sends=sends, folder=folder, header=header.model_copy(update={"plan": None, "facts": None}))


def _copied(trace: RequestTrace, send: TraceSend, folder: Path) -> TraceSend:
    """Copy a body that the trace has already. Drop the address of a missing one."""
    if send.body is None:
        return send
    if trace.folder != folder:
        file = trace.body_file(send)
        if not file.is_file():
            return send.model_copy(update={"body": None})
        store_body(folder / BODIES, file.read_bytes())
    return send.model_copy(update={"plan": None})


@dataclass(frozen=True)
class _Builder:
    """Builds bodies from steps, with the client behaviour of each step. `answers` are those that later requests of
    sessions repeat. `kept` is the folder of the bodies that the run stored for its incidents; `aborted` are requests
    with aborts of their own.
    """

    facts: Facts
    answers: Mapping[str, SentBack]
    kept: Path
    folder: Path
    aborted: set[str]

    def built(self, send: TraceSend, step: Step | None) -> TraceSend:
        planned = send.plan
        assert planned is not None
        if step is None:
            raise OptionError(
                f"request {send.id}: the plan has no step {planned.step} in phase {planned.phase}; give the whole run"
            )
        own = sent_step(step, self.facts, send.id, self.answers)
        if own is None:
            raise OptionError(f"request {send.id}: an answer that it repeats is not in the ledger; give the whole run")
        request = request_builder.build(own, self.facts)
        behaviour: Mapping[str, Mapping[str, object]] = {}
        if step.behaviour != "plain" and send.id not in self.aborted:
            behaviour = {step.behaviour: _plain(step.behaviour_options)}
        return send.model_copy(
            update={
                "body": store_body(self.folder / BODIES, self._sent(send.id, planned, request.body)), "plan": None,
                "path": request.path, "stream": request.stream, "behaviour": behaviour,
                "max_tokens": request.max_tokens, "images": request.images,
            }
        )  # fmt: skip

    def _sent(self, name: str, planned: PlannedBody, body: bytes) -> bytes:
        if is_sent_body(body, planned.len, planned.hash, planned.crc):
            return body
        file = self.kept / f"{planned.hash}.json"
        if planned.hash is not None and file.is_file():
            return file.read_bytes()
        raise OptionError(
            f"request {name}: the body built from the plan is not the one that was sent (length or hash differ): the run "
            "was made by another version of loadchaos; replay it with that one, or run the profile again"
        )


def _plain(options: Any) -> Mapping[str, object]:
    return dict(options.model_dump(mode="json", exclude_unset=True)) if options is not None else {}


def with_aborts(trace: RequestTrace) -> RequestTrace:
    aborts = {a.request: a for a in trace.aborts}
    sends = []
    for send in trace.sends:
        abort = aborts.get(send.id)
        if abort is None:
            sends.append(send)
        elif abort.after_token is not None and send.stream:
            sends.append(send.model_copy(update={"behaviour": {"abort": {"at_token": abort.after_token}}}))
        else:
            after_ms = max(1, round((abort.after_s or 0.0) * 1000))
            sends.append(send.model_copy(update={"behaviour": {"abort": {"after": f"{after_ms}ms"}}}))
    return replace(trace, sends=tuple(sends))
