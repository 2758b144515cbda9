"""One bisection over launch flags, from the recorded run to its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadchaos.campaigns.bisect import flag_parts
from loadchaos.campaigns.bisect.flag_parts import Flag
from loadchaos.campaigns.bisect.flag_search import FlagFindings, FlagSearch, Remedy
from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.minimise.candidate import Reduction, whole_of
from loadchaos.campaigns.minimise.candidate_session import CandidateSession, SearchResult, short_reason
from loadchaos.campaigns.minimise.decider import Decision
from loadchaos.campaigns.replay.estimate import probability
from loadchaos.campaigns.replay.one_try import TryPlan
from loadchaos.campaigns.replay.servers import redacted_command
from loadchaos.core import exit_codes
from loadchaos.core.stats import wilson
from loadchaos.core.units import spent_time
from loadchaos.profile.request_trace import RequestTrace
from loadchaos.server.dialects import DIALECTS


class FlagSession(CandidateSession):
    """One bisection over flags, with its result files."""

    def __init__(self, campaign: Campaign, trace: RequestTrace, plan: TryPlan, budget_s: float) -> None:
        super().__init__(campaign, trace, replace(plan, name="bisect"), budget_s)
        self._whole = whole_of(trace, plan.server, plan.rounds)
        self._trials.strict = True
        self._trials.must_start = lambda candidate: candidate.flags == self._whole.flags
        self._search = FlagSearch(self._whole, self._decider)

    async def run(self, changes: Sequence[str] = ()) -> SearchResult:
        argv = self._whole.command + tuple(word for flag in self._whole.flags for word in flag)
        self._search = FlagSearch(self._whole, self._decider, likely_changes(argv, changes, self._plan.expected.remedy))
        try:
            findings = await self._search.run()
        finally:
            await self._trials.stop()
        if findings is None and self._search.out_of_time:
            return SearchResult(exit_codes.UNKNOWN, "UNKNOWN: the budget was spent before the failure came again")
        if findings is None:
            why = next((f": {short_reason(d.why)}" for d in self._decider.steps[-1:] if d.why), "")
            text = f"NOT REPRODUCED: the recorded requests do not fail often enough with all flags{why}"
            return SearchResult(exit_codes.FAIL, text)
        self._write_result(self._readme(findings), self._data(findings))
        text = self._redactor.text(f"{summary(findings)}\n{self._worth(self._decider.tries)}")
        return SearchResult(exit_codes.UNKNOWN if findings.out_of_time else exit_codes.PASS, text)

    async def _attempt(self, candidate: Reduction) -> bool | None:
        self._trials.fresh = self._decider.counting and not self._plan.share
        return await super()._attempt(candidate)

    def _report(self, decision: Decision) -> None:
        kept, left = len(self._search.smallest.loose), self._search.left
        if decision.fails and self._search.reducing:
            kept = decision.flags - len(self._whole.flags) + len(self._whole.loose)
        mean_s = sum(d.seconds for d in self._decider.steps) / len(self._decider.steps)
        eta = f", at most {left} more candidates, {spent_time(left * mean_s)}" if left else ""
        self._print(f"{decision.step}: {outcome(decision)}; {kept} of {len(self._whole.loose)} flags kept{eta}")

    def _data(self, found: FlagFindings) -> dict[str, object]:
        assert self._plan.server.launch is not None
        env = self._plan.server.launch.env
        return {
            "schema": 1, "failure": self._plan.expected.describe(), "finished": not found.out_of_time,
            "command": redacted_command(self._plan.server), "server_version": self._trials.version,
            "smallest_command": redacted_command(found.smallest.server(self._plan.server)),
            "environment": sorted(env), "rounds": found.smallest.rounds,
            "all_flags": {"failed": found.before[0], "tries": found.before[1]},
            "smallest": {"failed": found.successes, "tries": found.tries},
            "needed": [
                {
                    "flag": list(part.flag), "key": part.key, "failed_without": part.decision.successes,
                    "tries_without": part.decision.tries, "not_tried_because": part.decision.why,
                }
                for part in found.needed
            ],
            "remedies": [
                {
                    "change": r.change, "proved": r.proved, "failed": r.decision.successes, "tries": r.decision.tries,
                    "confidence": round(r.confidence, 4), "interval": list(wilson(r.decision.successes, r.decision.tries)),
                    "not_tried_because": r.decision.why,
                }
                for r in found.remedies
            ],
        }  # fmt: skip

    def _readme(self, found: FlagFindings) -> str:
        expected, version = self._plan.expected, self._trials.version
        needed = "".join(
            f"| `{table_cell(p.describe())}` | {table_cell(outcome(p.decision))} |\n" for p in found.needed
        )
        remedies = "".join(
            f"| {table_cell(r.change)} | {remedy_name(r)}: {table_cell(remedy_text(r, found))} |\n"
            for r in found.remedies
        )
        unfinished = "The budget was spent before the end: this is the result so far.\n\n" if found.out_of_time else ""
        return f"""# Launch flags of {expected.describe()}

{unfinished}Server: {self._trials.dialect} {version or "(version unknown)"}. With all flags it fails {share(*found.before)}.

    {redacted_command(self._plan.server)}

The smallest set with which it still fails, {share(found.successes, found.tries)}:

    {redacted_command(found.smallest.server(self._plan.server))}

## Needed flags

| part | without it |
|---|---|
{needed or "| none | |" + chr(10)}
## Single changes of the whole command

| change | result |
|---|---|
{remedies or "| none was tried | |" + chr(10)}"""


def likely_changes(argv: Sequence[str], wanted: Sequence[str], remedy: str) -> list[Flag]:
    embedded = flag_parts.is_embedded(argv)
    server = argv[argv.index("--dialect") + 1] if "--dialect" in argv[:-1] else None
    dialect = next(
        (d for d in DIALECTS.values() if d.name == server or any(d.command_word and d.command_word in w for w in argv)),
        None,
    )
    texts = [*wanted, *flag_parts.flags_of_remedy(remedy), *(dialect.switches if dialect is not None else ())]
    changes = [flag_parts.parse_change(text) for text in dict.fromkeys(texts)]
    return list(dict.fromkeys(flag_parts.for_embedded(c) if embedded else c for c in changes))


def outcome(decision: Decision) -> str:
    if decision.untriable:
        return short_reason(decision.why) or "it cannot be tried"
    return f"{'still fails' if decision.fails else 'fails less often'} ({decision.successes} of {decision.tries})"


def share(failed: int, tries: int) -> str:
    return f"{failed} of {tries} ({probability(failed, tries)})"


def remedy_name(remedy: Remedy) -> str:
    if remedy.proved:
        return "CURED"
    return "not a remedy" if remedy.decision.fails else "not proved"


def remedy_text(remedy: Remedy, found: FlagFindings) -> str:
    decision = remedy.decision
    if decision.untriable:
        return short_reason(decision.why) or "it cannot be tried"
    if decision.fails:
        return f"still fails, {decision.successes} of {decision.tries}"
    before = f"{found.before[0]} of {found.before[1]} before"
    why = f"; {short_reason(decision.why)}" if decision.why else ""
    return f"{share(decision.successes, decision.tries)}; {before}; confidence {remedy.confidence * 100:.0f} %{why}"


def summary(found: FlagFindings) -> str:
    whole, kept = found.whole.loose, found.smallest.loose
    lines = [f"NEEDED {len(kept)} of {len(whole)} flags; with these it fails {share(found.successes, found.tries)}"]
    lines += [f"  {part.describe()}: without it {outcome(part.decision)}" for part in found.needed]
    order = sorted(found.remedies, key=lambda r: (not r.proved, not r.decision.fails))
    lines += [f"{remedy_name(r)} {r.change}: {remedy_text(r, found)}" for r in order]
    if found.remedies and not any(r.proved for r in found.remedies):
        lines.append("no single change of the flags was proved to be a remedy")
    if found.out_of_time:
        lines.append("the budget is spent: continue with --resume and a larger --budget")
    return "\n".join(lines)


def table_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
