"""Collect bad answers until it is clear whether the server was dying."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from loadchaos.analysis.classify import signature_file
from loadchaos.analysis.classify.classifier import classify_text
from loadchaos.analysis.classify.normalise import normalise
from loadchaos.analysis.failure import DEADLY, Failure, evidence, of_signature
from loadchaos.analysis.state.signals import may_be_quoted, says_engine_dead
from loadchaos.analysis.wrong_answer import OUTCOME, WrongAnswer
from loadchaos.core.goodput import expected_of
from loadchaos.core.ledger.rows import EndRow, WrongPart
from loadchaos.core.model import BLAMELESS, Attribution, Facts
from loadchaos.core.units import NS_PER_S

WAIT_NS = 15 * NS_PER_S
"""A bad answer waits this long for state and log before it is a failure of its own."""
MIXED_UP = "An answer contains text of another request: the server mixes up requests"
_AFTER_THE_END = {
    "text follows the [DONE]": ("text_after_done", "Text follows the [DONE] of an answer"),
    "text of another answer follows": ("text_after_done", "Text of another answer follows the [DONE]"),
    "text follows the finish_reason": ("text_after_finish", "Text follows the finish_reason of its answer"),
}
"""Failures of outcome `wrong_output` by the start of their text (core/outcome_rules.py): id and title."""
_FACTS = {"expected": "rule", "other": "other_request"}
"""Facts of a wrong answer, by the fields of its row."""
_MOST_TEXT = 2_000
_NO_BYTE = "no byte of the answer arrived"  # within the limit; it may have come while the client gave up
_TITLE = 160
_UNPLANNED = {
    "overlength_not_refused": "A prompt over the limit was not refused",
    "unexpected_ok": "A request that had to fail was answered",
    "unexpected_rejection": "A valid request was refused",
}
_MIXED_UP_REMEDY = (
    "The incident shows which request got whose data. Stop serving users who must not see each other's data."
)
_AFTER_THE_END_REMEDY = (
    "A client shows it as part of the answer, or reads it as the next one. Report it with the server's log."
)
_INTENDED = {"unexpected_rejection": "If the refusal is intended, add to the traffic: expect: [ok, rejected]."}
_OVERLOAD = (
    "The server works and answers in order, but gets more than it can do. Send less at a time or shorter prompts, raise "
    "limits.first_byte, or give the server more KV cache. `loadchaos capacity` finds the load that it bears."
)
_FILTERED = ("filter", "sensitive", "safety", "blocklist", "prohibited", "recitation", "refusal")
"""Parts of a finish_reason by which a server or gateway says that its policy ended the answer."""
_TITLES = {
    "http_error": "Unexplained HTTP error", "stream_error": "Unexplained error in a stream",
    "finish_error": "Answers end with finish_reason error", "finish_abort": "Answers aborted by the server",
    "truncated": "Incomplete answer", "empty": "Answers without a token",
    "protocol_error": "Invalid HTTP, SSE or JSON", "wrong_output": "Wrong answer",
    "connect_error": "Connections fail", "reset": "Connections reset", "stalled": "Answers stall",
    "timeout": "Requests exceed the time limit",
}  # fmt: skip


@dataclass(slots=True)
class BadAnswer:
    """Equal bad answers of one second: the first row's times and a count. `began`: a token came; `waited`: it waited in
    the queue of a server that worked.
    """

    at_ns: int
    sent_ns: int
    traffic: str
    outcome: str
    text: str
    count: int
    sample: EndRow
    began: bool = False
    waited: bool = False

    @property
    def part(self) -> WrongPart | None:
        return next(iter(self.sample.get("wrong") or ()), None)


class BadAnswerQueue:
    """Folds bad end rows into few; `poll` gives those that waited long enough."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[Any, ...], BadAnswer] = OrderedDict()

    def add(self, row: EndRow, outcome: str) -> None:
        at_ns = int(row["at_ns"])
        sent_ns = int(row.get("sent_ns") or at_ns)
        text = "" if _is_model_text(row) else str(row.get("error") or "")[:_MOST_TEXT]
        began = row.get("first_token_ns") is not None and not text.startswith(_NO_BYTE)
        alike = row.get("traffic"), outcome, _short(text), row.get("image_file"), began
        new = BadAnswer(at_ns, sent_ns, str(row.get("traffic", "")), outcome, text, 0, row, began)
        self._waiting.setdefault((at_ns // NS_PER_S, sent_ns // NS_PER_S, *alike), new).count += 1

    def poll(self, now_ns: int | None) -> list[BadAnswer]:
        found = []
        while self._waiting:
            first = next(iter(self._waiting.values()))
            if now_ns is not None and now_ns - first.at_ns < WAIT_NS:
                break
            found.append(first)
            self._waiting.popitem(last=False)
        return found


def _is_model_text(row: EndRow) -> bool:
    """True for an answer with finish_reason error whose text the model wrote. LMDeploy puts its own error text there,
    with no token generated.
    """
    return row.get("outcome") == "finish_error" and row.get("completion_tokens") != 0


@lru_cache(maxsize=2_000)
def _short(text: str) -> str:
    return normalise(text[:400])


def _titled(text: str) -> str:
    short = _short(text)
    return short if len(short) <= _TITLE else short[: _TITLE - 1] + "…"


@lru_cache(maxsize=2_000)
def _classified(text: str) -> tuple[Failure, ...]:
    return tuple(classify_text(text, source="client"))


def bad_outcome(row: EndRow) -> str | None:
    """Bad outcome of an end row, None where it is expected or blameless."""
    outcome = str(row.get("outcome"))
    expect = expected_of(row)
    if outcome in expect:
        return None
    if outcome == "ok":
        edge = row.get("edge")
        return "overlength_not_refused" if edge is not None and edge >= 0 else "unexpected_ok"
    if outcome == "rejected":
        return "unexpected_rejection"
    return None if outcome in BLAMELESS else outcome


def is_echo(bad: BadAnswer) -> bool:
    if _quoted(bad):
        return False
    return says_engine_dead(bad.text) or any(f.role == "echo" for f in _classified(bad.text))


def _quoted(bad: BadAnswer) -> bool:
    return may_be_quoted(bad.outcome, bad.sample.get("status"))


def failure_of(bad: BadAnswer) -> Failure:
    """The failure a bad answer shows. It is named by a signature of its text, else by its outcome and normalised text."""
    failure = _named(bad)
    if bad.outcome != OUTCOME:
        return failure
    part: Mapping[str, object] = bad.part or {}
    facts = {name: str(part[key]) for key, name in _FACTS.items() if part.get(key)}
    wrong = WrongAnswer(
        failure.id,
        str(bad.sample.get("id") or ""),
        bad.at_ns,
        "answer checks",
        bad.text,
        got=str(part.get("got") or ""),
        traffic=bad.traffic,
        facts=facts,
    )
    return replace(failure, wrong=(wrong,))


def _named(bad: BadAnswer) -> Failure:
    for failure in _classified(bad.text) if bad.text and bad.outcome != OUTCOME else ():
        if failure.role == "cause" and not (_quoted(bad) and failure.severity in DEADLY):
            return replace(at(failure, bad.at_ns), outcome=bad.outcome)
    shown = evidence("client", bad.text or f"{bad.outcome} (no text)")

    def named(name: str, title: str, remedy: str = "", attribution: Attribution = "server") -> Failure:
        return Failure(
            name, "request", title, shown, bad.at_ns, remedy=remedy, attribution=attribution, outcome=bad.outcome
        )

    if (label := _UNPLANNED.get(bad.outcome)) is not None:
        title = f"{label}: {_titled(bad.text)}" if bad.text else label
        return named(bad.outcome, title, _INTENDED.get(bad.outcome, ""))
    if bad.outcome == OUTCOME:
        if bad.text.startswith("the word of another request"):
            return named("answer_of_another_request", MIXED_UP, _MIXED_UP_REMEDY)
        if bad.part is not None:
            name = str(bad.part["id"])
            if signature_file.load().get(name) is None:
                return named(name, "Wrong answer")
            return of_signature(name, shown, bad.at_ns, outcome=OUTCOME)
        for begin, (name, title) in _AFTER_THE_END.items():
            if bad.text.startswith(begin):
                return named(name, title, _AFTER_THE_END_REMEDY)
    reason = str(bad.sample.get("finish_reason") or "").lower()
    if bad.outcome == "finish_abort" and reason and "abort" not in reason:
        name = "answers_filtered" if any(part in reason for part in _FILTERED) else "unusual_finish_reason"
        return of_signature(name, shown, bad.at_ns, outcome=bad.outcome)
    if bad.waited:
        title = f"Requests wait in the queue for longer than the limit of the client: {_titled(bad.text)}"
        return named("queue_wait", title, _OVERLOAD, "load")
    label, status = _TITLES.get(bad.outcome, bad.outcome), bad.sample.get("status")
    if bad.outcome == "http_error" and status == 200:
        label = "Error in place of an answer, with status 200"
    details = [str(status)] if status and status != 200 else []
    details += [_titled(bad.text)] if bad.text else []
    return named(f"unexplained_{bad.outcome}", f"{label}: {' '.join(details)}" if details else label)


def media_fault(facts: Facts, at_ns: int) -> Failure:
    """The failure of a server that answers images or videos with an error. The server was asked before the load, which
    then has none.
    """
    return Failure(
        "image_input_error",
        "request",
        f"The server {facts.media_fault}; a model without image input must refuse them with a 4xx status",
        evidence("client", facts.media_fault),
        at_ns,
        remedy="Report it to the maker of the server. To test images, serve a multimodal model.",
        before_load=True,
    )


def at(failure: Failure, now_ns: int) -> Failure:
    """A classified failure, with `now_ns` as its time where it has none."""
    return replace(failure, at_ns=failure.at_ns or now_ns)
