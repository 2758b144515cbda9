"""Explain bad answers: by a death, a cause in the log, or as failures.

A misfit is a request beyond the limits of the server, which is our own fault.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from loadchaos.analysis.failure import DEADLY, Failure, evidence
from loadchaos.analysis.figures.requests import Sent
from loadchaos.analysis.incidents import bad_answers
from loadchaos.analysis.incidents.bad_answers import BadAnswer
from loadchaos.analysis.incidents.tracker import IncidentTracker
from loadchaos.core.model import Facts
from loadchaos.core.units import NS_PER_S

_NEAR_NS = 5 * NS_PER_S
_BURST_NS = 20 * NS_PER_S  # one failure stands for a burst of up to 10 s, and for 10 s of repeats that are only counted
_UNINFORMATIVE = ("", "internal server error", "internal error happened", "internal error")
_MOST_EXAMPLES = 100
_LIVES = "Answers say that the engine is dead, but nothing else shows a death"

Record = Callable[[Failure], Failure]
"""Registers a failure: gives it its attribution and incident, and returns the registered one to count it in."""


class Explainer:
    """Explains bad answers once state and log have caught up with them. `misfits` are refusals that were our own fault."""

    def __init__(self, tracker: IncidentTracker, record: Record) -> None:
        self._tracker, self._record = tracker, record
        self._logged: deque[tuple[int, Failure]] = deque(maxlen=200)  # for answers without a cause of their own
        self.facts: Facts | None = None
        self.misfits: list[str] = []

    def add_logged(self, at_ns: int, known: Failure) -> None:
        """Add a failure that a log named: answers near it may have this cause."""
        self._logged.append((at_ns, known))

    def explain(self, bad: BadAnswer) -> None:
        if bad.outcome == "unexpected_rejection" and (misfit := self._misfit(bad)):
            self.misfits.append(misfit)
            return
        failure = _engine_dead(bad) if bad_answers.is_echo(bad) else bad_answers.failure_of(bad)
        failure = replace(failure, sent_ns=bad.sent_ns)
        _add_image(failure, bad)
        unnamed = failure.id.startswith("unexplained_") or bad.waited
        deadly = failure.severity in DEADLY
        if deadly:
            self._tracker.note_told(bad.at_ns)
        if (unnamed or deadly) and self._tracker.count_lost(bad, cut=deadly) is not None:
            return
        if deadly and self._tracker.proves_death(bad):
            self._tracker.add_deadly(failure, None)
            self._tracker.count_lost(bad, cut=True)
            return
        if deadly:
            failure = _of_request(failure)
        known = self._hidden_cause(bad) if unnamed else None
        if known is None:
            known = self._record(failure)
        known.at_clients += bad.count
        _add_image(known, bad)
        known.requests[bad.traffic, bad.outcome] += bad.count
        _add_example(known, bad)

    def _hidden_cause(self, bad: BadAnswer) -> Failure | None:
        if bad.outcome not in ("http_error", "stream_error", "finish_error", "truncated", "reset", "protocol_error"):
            return None
        text = bad.text.strip().strip('."{}').lower()
        if bad.outcome == "http_error" and not any(text == h or (h and h in text[:200]) for h in _UNINFORMATIVE):
            return None
        causes = [(at, e) for at, e in self._logged if e.severity == "request" and e.role == "cause"]
        near = [(at, e) for at, e in causes if at - _NEAR_NS <= bad.at_ns <= at + _NEAR_NS + _BURST_NS]
        return min(near, key=lambda item: abs(item[0] - bad.at_ns))[1] if near else None

    def _misfit(self, bad: BadAnswer) -> str | None:
        tokens, facts = bad.sample.get("planned_tokens"), self.facts
        limit = (facts.input_limit or facts.max_model_len) if facts is not None else None
        if tokens is not None and limit is not None and tokens >= limit and bad.sample.get("edge") is None:
            return f"{bad.traffic}: {tokens} tokens planned, the server accepts {limit}"
        images, most = int(bad.sample.get("images") or 0), facts.max_images if facts is not None else None
        if most is not None and images > most:
            return f"{bad.traffic}: {images} images planned, the server accepts {most}"
        return None


def _of_request(failure: Failure) -> Failure:
    """A failure whose text tells a death, of the requests that it ended: the server answered others."""
    title = _LIVES if failure.role == "echo" else failure.title
    return replace(failure, severity="request", role="cause", title=title)


def _engine_dead(bad: BadAnswer) -> Failure:
    title, shown = "Answers say that the engine is dead, and no log names the cause", evidence("client", bad.text)
    failure = bad_answers.failure_of(bad)
    return replace(failure, id="engine_dead_error", severity="engine_death", title=title, role="echo", evidence=shown)


def _add_image(failure: Failure, bad: BadAnswer) -> None:
    file = str(bad.sample.get("image_file") or "")
    if file and file not in failure.images and len(failure.images) < _MOST_EXAMPLES:
        failure.images += (file,)


def _add_example(failure: Failure, bad: BadAnswer) -> None:
    """Add the request to the incident of its failure as an example. The requests in flight at its begin may have been
    others.
    """
    incident, sample = failure.incident, bad.sample
    if incident is None or incident.kind != "failure" or sample.get("id") is None:
        return
    held = incident.examples
    if len(held) < _MOST_EXAMPLES and all(sent.id != sample["id"] for sent in held):
        held.append(Sent.of(sample, bad.sent_ns, sample.get("planned_tokens")))
