"""Failure: what broke, its evidence, its cause, and its count.

The classifier makes failures from log lines and answers, the detectors make them from figures, and the judge adds the
attribution, the incident and the counts. verdict.json and findings.jsonl show them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from loadchaos.analysis.classify import signature_file
from loadchaos.analysis.classify.normalise import normalise
from loadchaos.analysis.classify.versions import with_standing
from loadchaos.analysis.incidents.attribution import known_and_remedy
from loadchaos.analysis.verdict.model import CandidateLine, Evidence, FailureResult, KnownIssue
from loadchaos.core.model import GENERIC_IDS, Attribution, Severity

if TYPE_CHECKING:
    from loadchaos.analysis.incidents.incident import Incident
    from loadchaos.analysis.wrong_answer import WrongAnswer

DEADLY = ("engine_death", "startup")
DEADLY_OR_HUNG = (*DEADLY, "hang")
"""Severities after which a server is of no use."""
SERVER_LOST = (*DEADLY_OR_HUNG, "node")
"""Severities after which a server, or its machine, has to be restarted."""
_MOST_NAMED = 5


def evidence(source: str, text: str, line: int | None = None) -> Evidence:
    return Evidence(source=source, line=line, text=text)


@dataclass(slots=True)
class Failure:
    """One failure, with shapes as in verdict.json.

    Attributes:
        at_ns: CLOCK_MONOTONIC; 0 for a log that was not recorded live.
        clock_s: the log's clock in seconds of some year, else of the server (llama.cpp).
        frames: outermost first; `frame` is the guilty one, "" where the stack names the wrong place, as with CUDA faults.
        facts: figures that the log contains.
        repeats: further equal lines; `last_ns` is the time of the newest one.
        also: other causes in the same death.
        gone: the log also says that the engine is gone.
        of_request: what a deadly one is while the server lives: the request that its handler logged it for.
        candidates: unexplained lines that may name its cause, likeliest first.
        outcome: the request outcome it shows as; an attack may list it among its effects.
        explains_death: it names the cause of a death at the same time, if nothing else does.
        sent_ns: when the request of a bad answer was sent.
        before_load: no request of the load showed it: a request that identified the server did.
        in_log: how many log lines or readings show it; `at_clients`: how many answers, `requests` by (traffic, outcome).
        deaths: the deaths, hangs and outages it caused.
        wrong: the first of the wrong answers it stands for.
    """

    id: str
    severity: Severity
    title: str
    evidence: Evidence
    at_ns: int = 0
    role: Literal["cause", "echo"] = "cause"
    process: str | None = None
    frames: tuple[str, ...] = ()
    known: Sequence[KnownIssue] = ()
    remedy: str = ""
    alt: tuple[str, ...] = ()
    layer: str = ""
    why: str = ""
    facts: Mapping[str, float | str] = field(default_factory=dict)
    repeats: int = 0
    also: tuple[str, ...] = ()
    clock_s: float | None = None
    frame: str = ""
    gone: bool = False
    of_request: Failure | None = field(default=None, repr=False, compare=False)
    candidates: tuple[CandidateLine, ...] = ()
    outcome: str = ""
    replica: str | None = None
    explains_death: bool = False
    attribution: Attribution = "server"
    sent_ns: int | None = field(default=None, compare=False)
    before_load: bool = False
    last_ns: int = 0
    images: tuple[str, ...] = ()
    incident: Incident | None = field(default=None, repr=False, compare=False)
    in_log: int = 0
    at_clients: int = 0
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    deaths: list[Incident] = field(default_factory=list, repr=False, compare=False)
    wrong: tuple[WrongAnswer, ...] = field(default=(), compare=False)

    @property
    def effects(self) -> set[str]:
        return {self.id, self.outcome} if self.outcome else {self.id}

    @property
    def is_wrong_answer(self) -> bool:
        return self.outcome == "wrong_output"

    @property
    def count(self) -> int:
        """Count of its deaths, else of its log lines or answers."""
        return len(self.deaths) or max(self.in_log, self.at_clients)

    @property
    def key(self) -> tuple[str, str, str]:
        """Key of equal failures: by id; unexplained ones also by text. A failure before the load is another one than
        the same in the load.
        """
        by_title = self.id.startswith(GENERIC_IDS)
        standing = f"{self.attribution}, before the load" if self.before_load else self.attribution
        return self.id, normalise(self.title) if by_title else "", standing

    @property
    def shown_title(self) -> str:
        if not self.images:
            return self.title
        more = f" and {len(self.images) - _MOST_NAMED} more" if len(self.images) > _MOST_NAMED else ""
        return f"{self.title} (image{'s' * (len(self.images) > 1)} {', '.join(self.images[:_MOST_NAMED])}{more})"

    @property
    def first_seen_ns(self) -> int:
        return self.deaths[0].opened_ns if self.deaths else self.at_ns

    def result(
        self, dialect: str | None, version: str | None, first_seen: str | None, first_seen_s: float | None
    ) -> FailureResult:
        """The failure as in verdict.json, not accepted.

        Args:
            dialect: of the server under test.
            version: of the server: known issues say how they stand for it.
            first_seen: UTC time of `first_seen_ns`.
            first_seen_s: the same in seconds from the start of the load.
        """
        known, remedy = known_and_remedy(self.attribution, self.known, self.remedy)
        first = self.deaths[0] if self.deaths else None
        by_traffic: dict[str, dict[str, int]] = {}
        for (traffic, outcome), n in sorted(self.requests.items()):
            by_traffic.setdefault(traffic, {})[outcome] = n
        return FailureResult(
            id=self.id,
            severity=self.severity,
            title=self.shown_title,
            count=self.count,
            evidence=self.evidence,
            attribution=self.attribution,
            known=with_standing(known, dialect, version),
            remedy=remedy,
            incident=self.incident.folder if self.incident is not None else None,
            alt=self.alt,
            frames=self.frames,
            process=self.process,
            layer=self.layer,
            frame=self.frame if self.frames else None,
            images=self.images,
            before_load=self.before_load,
            wrong_answers=tuple(w.example() for w in self.wrong) if self.is_wrong_answer else None,
            requests=by_traffic,
            candidates=self.candidates,
            incidents=tuple(d.folder for d in self.deaths) if first else None,
            lost_requests=sum(d.lost.total() for d in self.deaths) if first else None,
            in_flight_at_death=len(first.in_flight) if first else None,
            recovered_after_s=_slowest([d.recovered_after_s() for d in self.deaths]) if first else None,
            noticed_after_s=first.noticed_after_s() if first else None,
            signs=tuple(first.signs) if first else (),
            first_seen=first_seen,
            first_seen_s=first_seen_s,
            accepted=False,
        )


def of_signature(name: str, shown: Evidence, at_ns: int = 0, **more: Any) -> Failure:
    """Make the failure that an entry of signatures/ describes: its severity, title, remedy and known issues."""
    signatures = signature_file.load()
    signature = signatures.get(name)
    assert signature is not None, f"{name} has no entry in signatures/"
    described = {"known": signatures.issues(signature.known), "remedy": signature.remedy, "layer": signature.layer}
    return Failure(name, signature.severity, signature.title, shown, at_ns, **{**described, **more})


def _slowest(recoveries: list[float | None]) -> float | None:
    known = [r for r in recoveries if r is not None]
    return max(known) if known and len(known) == len(recoveries) else None
