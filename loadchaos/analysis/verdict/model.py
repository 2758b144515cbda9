"""Verdict of a run as in verdict.json: what the judge concludes, and reports read.

The fields are the keys of verdict.json in their order. A key whose field has a default is absent in verdicts of earlier
versions. `python -m loadchaos.analysis.verdict.model` prints the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from loadchaos.analysis.figures.refusals import Refusals
from loadchaos.analysis.figures.reported import ReportedComparison
from loadchaos.core import exit_codes, typed_json
from loadchaos.core.latency import LatencyFigures, Statistics
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.rows import StreamReader
from loadchaos.core.model import OUTCOMES, Attribution, Decision, Severity, State
from loadchaos.core.typed_json import IF_KNOWN, IF_SET, Keywords, if_missing, key, only_with
from loadchaos.core.whole_file import read_json

Count = Annotated[int, Keywords(minimum=0)]
Outcomes = Annotated[Mapping[str, Count], Keywords(propertyNames={"enum": list(OUTCOMES)})]
"""Numbers of requests by their outcome."""
Kind = Literal["death", "hang", "unreachable", "outage", "terminated", "restart", "failure"]
_STANDINGS = ("expected", "ours", "known", "unexplained")
_EXIT_CODES = (*range(5), exit_codes.INTERNAL_ERROR, *exit_codes.BY_SIGNAL)

NOT_JUDGED = "answers_not_judged"
"""Id in `accept` that excuses every `NotJudged`."""
NOT_ASKED = "no question was asked under load"
SAME_SERVER = "same_server"
"""Name of the check, and id in `accept`, of a server that another one replaced during the run."""


@dataclass(frozen=True, kw_only=True)
class VerdictTarget:
    """The server under test."""

    kind: Literal["external", "launched", "embedded"]
    dialect: str | None
    version: str | None
    url: str | None = None
    model: str | None = field(default=None, metadata=IF_SET)


# -- failures ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A line that proves a failure; without a number it is not from a log."""

    source: str | None
    line: int | None
    text: str | None


@dataclass(frozen=True, kw_only=True)
class CandidateLine:
    """An unexplained line of a log that may name the cause of a death."""

    source: str | None = None
    line: int | None = None
    process: str | None = None
    text: str | None = None


@dataclass(frozen=True, kw_only=True)
class KnownIssue:
    """An upstream issue: `issue` is its URL, or `owner/repository#number`."""

    issue: str
    title: str | None = field(default=None, metadata=IF_SET)
    state: str | None = field(default=None, metadata=IF_SET)
    affected: str | None = field(default=None, metadata=IF_SET)
    seen: str | None = field(default=None, metadata=IF_SET)
    fixed: str | None = field(default=None, metadata=IF_SET)
    you_run: str | None = field(default=None, metadata=IF_SET)
    standing: str | None = field(default=None, metadata=IF_SET)

    @classmethod
    def of_text(cls, issue: str) -> KnownIssue:
        """Make one of its name alone, as earlier verdicts have it."""
        return cls(issue=issue)


@dataclass(frozen=True, kw_only=True)
class TextDifference:
    """Both texts from their first difference on, at most 32 characters."""

    expected: str
    got: str


@dataclass(frozen=True, kw_only=True)
class WrongAnswerExample:
    """A wrong answer with its proof; long texts are cut around the first difference."""

    subject: Annotated[str, "id of the request or probe"]
    found_by: Annotated[str, "name of the check or oracle"]
    traffic: str = ""
    summary: str
    prompt: str = ""
    expected: str = ""
    got: str = ""
    first_difference: Annotated[int | None, "first character of got that differs"] = None
    difference: TextDifference | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FailureResult:
    """A failure with its counts, and whether it counts against the run."""

    id: str
    severity: Severity
    title: str
    count: Count
    evidence: Evidence
    attribution: Attribution
    known: tuple[KnownIssue, ...]
    remedy: str
    incident: Annotated[str | None, "name of its folder under incidents/"]
    alt: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    process: str | None = None
    layer: Annotated[str, "layer of its signature: OS and host are the machine, its limits or a kill from outside"] = (
        field(default="", metadata=IF_SET)
    )
    frame: Annotated[str | None, "the guilty one of frames; empty where the stack names the wrong place"] = field(
        default=None, metadata=IF_KNOWN
    )
    images: Annotated[tuple[str, ...], "files of the hostile images that showed it"] = field(
        default=(), metadata=IF_SET
    )
    before_load: Annotated[
        bool, "true when a request before the load showed it, and none of the load: it does not count"
    ] = field(default=False, metadata=IF_SET)
    wrong_answers: Annotated[
        tuple[WrongAnswerExample, ...] | None,
        "the first wrong answers; a failure with this key counts in the figure wrong_answers",
    ] = field(default=None, metadata=IF_KNOWN)
    requests: Annotated[Mapping[str, Mapping[str, Count]], "failed requests by traffic and outcome"] = field(
        default_factory=dict, metadata=IF_SET
    )
    candidates: Annotated[
        tuple[CandidateLine, ...], "unexplained log lines that may name the cause of a death, likeliest first"
    ] = field(default=(), metadata=IF_SET)
    incidents: Annotated[
        tuple[str, ...] | None, "deaths, hangs and outages: the folders of all, and the keys that follow"
    ] = field(default=None, metadata=IF_KNOWN)
    lost_requests: Count | None = field(default=None, metadata=only_with("incidents"))
    in_flight_at_death: Count | None = field(default=None, metadata=only_with("incidents"))
    recovered_after_s: Annotated[float | None, "the longest, null when it did not come back"] = field(
        default=None, metadata=only_with("incidents")
    )
    noticed_after_s: float | None = field(default=None, metadata=only_with("incidents"))
    signs: tuple[str, ...] = field(default=(), metadata=only_with("incidents"))
    first_seen: str | None
    first_seen_s: float | None = None
    accepted: bool
    acceptance: Annotated[str, "why it is accepted, or why an entry of `accept` did not hold"] = field(
        default="", metadata=IF_SET
    )

    @property
    def counts(self) -> bool:
        return not (self.accepted or self.before_load) and self.attribution != "expected"


# -- rules, states, and what happened ------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckResult:
    """Result of an expectation or of a check."""

    name: str
    expected: str
    actual: str
    verdict: Decision
    accepted: Annotated[str, "why it passes without a proof: an entry of `accept`, or an option"] = field(
        default="", metadata=IF_SET
    )


@dataclass(frozen=True)
class NotJudged(CheckResult):
    """Check of answers that nothing was judged by. It leaves `wrong_answers == 0` unproved, unless an entry of `accept`
    with its name, or with `NOT_JUDGED` for all of them, excuses it: a model with random weights answers nothing right.
    """

    verdict: Decision = "unknown"


@dataclass(frozen=True, kw_only=True)
class StateChange:
    """Change of the state of a replica, or of one engine of it."""

    replica: str | None
    engine: str | None = None
    state: State
    before: State | None = field(default=None, metadata=key("from"))
    at: str | None
    at_s: float | None = None
    signs: tuple[str, ...]
    noticed_after_s: float | None


@dataclass(frozen=True, kw_only=True)
class IncidentReference:
    """An incident by its number; its folder under incidents/ has the evidence."""

    n: Annotated[int, Keywords(minimum=1)]
    id: str
    folder: str
    kind: Kind
    replica: str


@dataclass(frozen=True, kw_only=True)
class AttackCounts:
    """Counts of an attack: begun, and how it went."""

    begun: Count
    ok: Count
    failed: Count
    skipped: Count


@dataclass(frozen=True, kw_only=True)
class Generator:
    """The load generator: its own delays, and whether it was the limit."""

    limited: bool
    why: tuple[str, ...] = ()
    slots: Annotated[tuple[str, ...], "limits of requests in flight that were reached because the server was slow"] = ()
    lag_p99_s: float | None
    send_lag_p99_s: float | None = None
    cpu_share_max: float | None = None
    stale_connections: int = 0
    retries: int = 0
    backed_off: int = 0
    host: Annotated[tuple[str, ...], "what took CPU time from loadchaos on its own machine"] = ()
    governor: Annotated[str, "policy for the frequency of its CPUs, where known"] = field(default="", metadata=IF_SET)
    reader: Annotated[
        StreamReader | None, "what read streams without TLS: `python` if one worker had no native reader"
    ] = field(default=None, metadata=IF_SET)


# -- figures -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ThroughputFigures:
    """Requests that succeeded and their tokens, from the first send to the last end; null: usage is missing."""

    seconds: float | None
    requests: Count
    input_tokens: int | None = None
    output_tokens: int | None = None
    requests_per_s: float | None
    input_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class AcceptanceQuantiles:
    """Quantiles of the share of accepted drafts of single answers."""

    p10: float
    p50: float
    p90: float
    n: Count


@dataclass(frozen=True, kw_only=True)
class EfficiencyFigures:
    """Prefix cache, accepted drafts and energy; null: the server does not tell it."""

    prefix_hit_rate: float | None = None
    prefix_hit_tokens: int | None = None
    prefix_source: Literal["usage", "counters"] | None = None
    acceptance: float | None = None
    accepted_tokens: int | None = None
    drafted_tokens: int | None = None
    acceptance_source: Literal["answers", "counters"] | None = None
    acceptance_by_request: AcceptanceQuantiles | None = None
    energy_j: float | None = None
    mean_power_w: float | None = None
    joules_per_output_token: float | None = None
    output_tokens_per_s_per_w: float | None = None
    warm_cache: Annotated[str | None, "why latencies are those of a warm prefix cache"] = None


@dataclass(frozen=True, kw_only=True)
class GoodputPart:
    """Requests that succeeded within the limits, of those that had to."""

    good: Count
    due: Count
    share: float | None = None


@dataclass(frozen=True, kw_only=True)
class GoodputFigures:
    """Goodput: requests that succeeded within the limits of `slo`."""

    slo_s: Mapping[str, float]
    good: Count
    due: Count
    share: float | None
    good_per_s: float | None = None
    over: Annotated[Mapping[str, int], "requests by the limit that they missed, `failed` or `not_sent`"] = field(
        default_factory=dict
    )
    by_traffic: Mapping[str, GoodputPart] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EndpointGoodput:
    """Goodput of an endpoint."""

    good: Count
    due: Count


@dataclass(frozen=True, kw_only=True)
class EndpointResult:
    """Sums of the kinds of traffic of one endpoint."""

    traffic: tuple[str, ...]
    outcomes: Outcomes
    latency: LatencyFigures
    goodput: EndpointGoodput | None = field(default=None, metadata=IF_SET)


@dataclass(frozen=True, kw_only=True)
class SessionStatistics(Statistics):
    """Statistics of the times of sessions; some may be lower bounds."""

    lower_bounds: Count = 0


@dataclass(frozen=True, kw_only=True)
class SessionCounts:
    """Sessions by their end, their turns and requests, and their times."""

    sessions: Count = 0
    finished: Count = 0
    lost: Count = 0
    left: Count = 0
    cut: Count = 0
    planned_turns: Count = 0
    turns: Count = 0
    turns_lost: Count = 0
    turns_left: Count = 0
    turns_cut: Count = 0
    requests: Count = 0
    tool_calls: Count = 0
    bad_calls: Count = 0
    mean_think_s: float | None = None
    session_e2e_s: SessionStatistics


@dataclass(frozen=True, kw_only=True)
class TrafficSessions(SessionCounts):
    """Sessions of one traffic; `tools` is its tool_choice."""

    tools: str | None = None


@dataclass(frozen=True, kw_only=True)
class SessionFigures(SessionCounts):
    """Sessions of all traffic; `why`: reasons why they ended early."""

    unfinished: Count = 0
    why: Mapping[str, Count] = field(default_factory=dict)
    by_traffic: Mapping[str, TrafficSessions] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StallFigure:
    """The longest time in which requests were in flight and nothing arrived from the server."""

    seconds: float
    requests: Annotated[int, "requests that waited", Keywords(minimum=0)]
    at_s: float | None
    replica: Annotated[str | None, "the only replica that it was at; null: not known, or several"] = None


@dataclass(frozen=True, kw_only=True)
class SteadyFigures:
    """Requests of the time in which about as many were in flight as usual: latencies of those that began in it,
    throughput of those that ended in it.
    """

    from_s: float
    seconds: float
    requests: Count
    requests_per_s: float | None
    output_tokens_per_s: float | None = None
    in_flight: float | None
    ttft_s: Statistics
    e2e_s: Statistics


@dataclass(frozen=True, kw_only=True)
class WarmUpFigures:
    """Requests of the warm-up, which the figures leave out."""

    phases: tuple[Count, ...] = field(default=(), metadata=IF_SET)
    seconds: float | None = field(default=None, metadata=IF_SET)
    requests: Count


# -- the whole -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict of a run, the contents of verdict.json."""

    schema: Literal[1]
    profile: str
    verdict: Decision
    exit_code: Annotated[
        int,
        Keywords(enum=sorted(_EXIT_CODES)),
        "0 pass, 1 fail, 2 profile or options, 3 unknown, 4 the target, 70 a bug of loadchaos, 130 and 143 ended by a "
        "signal",
    ] = field(metadata=if_missing(exit_codes.UNKNOWN))
    started: str | None
    ended: str | None
    target: VerdictTarget
    outcomes: Outcomes
    by_traffic: Mapping[str, Outcomes]
    answer_labels: Annotated[
        Mapping[str, Mapping[str, Mapping[str, Count]]],
        "numbers of answers by traffic, label (`finish_reason`) and value as the server gave it; rare values are `other`",
    ] = field(default_factory=dict, metadata=IF_SET)
    failures: tuple[FailureResult, ...]
    failure_counts: Annotated[
        Mapping[str, int],
        Keywords(propertyNames={"enum": [*_STANDINGS, "load", "before_load"]}, required=list(_STANDINGS)),
        "How often there was a failure: expected of an attack, ours (self-inflicted, injected), known by name, unexplained, "
        "of too much load",
    ] = field(default_factory=dict)
    states: tuple[StateChange, ...]
    latency: Mapping[str, LatencyFigures]
    latency_all: LatencyFigures | None = None
    throughput: ThroughputFigures | None = None
    efficiency: EfficiencyFigures | None = None
    by_endpoint: Annotated[
        Mapping[str, EndpointResult], "only with several endpoints: sums of their kinds of traffic"
    ] = field(default_factory=dict, metadata=IF_SET)
    sessions: SessionFigures | None = field(default=None, metadata=IF_SET)
    warm_up: WarmUpFigures | None = field(default=None, metadata=IF_SET)
    goodput: GoodputFigures | None = field(default=None, metadata=IF_SET)
    refusals: Refusals | None = field(default=None, metadata=IF_SET)
    reported: ReportedComparison | None = field(default=None, metadata=IF_SET)
    steady: SteadyFigures | None = field(default=None, metadata=IF_SET)
    longest_stall: Annotated[StallFigure | None, "null: no request was in flight"] = None
    expectations: tuple[CheckResult, ...]
    checks: tuple[CheckResult, ...]
    worth: str
    generator: Generator
    exposures: Mapping[str, Count] = field(default_factory=dict)
    incidents: tuple[IncidentReference, ...] = ()
    attacks: Mapping[str, AttackCounts] = field(default_factory=dict)
    by_hand: Annotated[
        tuple[str, ...],
        "what somebody did in the web UI while the run went: such a run is not like another of its profile",
    ] = field(default=(), metadata=IF_SET)
    notes: tuple[str, ...] = field(default=(), metadata=IF_SET)
    replay: Annotated[str, "command that sends the same load again"] = field(default="", metadata=IF_SET)

    @classmethod
    def from_json(cls, data: object) -> Verdict:
        """Read verdict.json of this or an earlier version, whatever is in it."""
        return typed_json.from_json(cls, data)

    @classmethod
    def read(cls, folder: RunFolder) -> Verdict | None:
        """Read the verdict of a run; None where it has none, or no readable one. Somebody else's run in a list may have a
        pipe in its place, which never ends, or a link to a file outside.
        """
        is_file = folder.verdict.is_file() and not folder.verdict.is_symlink()
        found = read_json(folder.verdict) if is_file else None
        return cls.from_json(found) if found else None

    def to_json(self) -> dict[str, Any]:
        """Convert to the contents of verdict.json; `notes` are there even without any."""
        return {**typed_json.to_json(self), "notes": list(self.notes)}

    @property
    def sent(self) -> int:
        return sum(n for outcome, n in self.outcomes.items() if outcome != "missed")


def schema() -> str:
    """JSON Schema of a verdict, as committed in schemas/verdict.json."""
    times = (
        "Times are ISO 8601 UTC; fields that end in _s are seconds, at_s and first_seen_s from the start of the load."
    )
    return typed_json.document(Verdict, "verdict.json", "what a run of loadchaos came to", times)


if __name__ == "__main__":
    print(schema(), end="")
