"""Base of a minimisation and both bisections: tries of candidates, decisions that are kept, secrets to hide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadchaos.campaigns.campaign import Campaign, SavedState
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.decider import SCHEMA, Decider, Decision
from loadchaos.campaigns.minimise.trials import Trials
from loadchaos.campaigns.replay.one_try import TryPlan
from loadchaos.campaigns.replay.resumed import settings_of
from loadchaos.campaigns.replay.servers import result_redactor
from loadchaos.core.units import spent_time
from loadchaos.profile.request_trace import RequestTrace

_LONGEST_REASON = 300


@dataclass(frozen=True)
class SearchResult:
    """Result of a search, as a text."""

    exit_code: int
    text: str


class CandidateSession:
    """A search over candidates; its state is `plan.name`.json, which is continued with the same settings alone."""

    def __init__(
        self,
        campaign: Campaign,
        trace: RequestTrace,
        plan: TryPlan,
        budget_s: float,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._campaign, self._trace, self._plan, self._print = campaign, trace, plan, campaign.print_line
        self._redactor = result_redactor(plan.server)
        self._trials = Trials(plan, campaign, trace.dialect)
        state = SavedState(campaign, f"{plan.name}.json", SCHEMA, {**settings_of(plan), **(settings or {})})
        self._decider = Decider(self._attempt, state, self._report, budget_s)
        self._decider.hide = self._redactor.text

    async def _attempt(self, candidate: Reduction) -> bool | None:
        found = await self._trials.attempt(candidate)
        self._decider.why = self._trials.why
        return found

    def _report(self, decision: Decision) -> None:
        raise NotImplementedError

    def _worth(self, tries: int, folder: str = "bisect") -> str:
        return f"{tries} tries, {spent_time(self._campaign.at_s)}: {self._campaign.folder / folder}"

    def _write_result(self, readme: str, data: Mapping[str, object]) -> None:
        hide = self._redactor
        self._campaign.write({"bisect/README.md": hide.text(readme), "bisect/result.json": hide.data(data)})


def short_reason(why: str) -> str:
    """Shorten the reason of something untried; the state has all of it."""
    cause = why.partition("; look at the log of the server")[0].partition(". To do: ")[0]
    return cause.replace("the server did not become healthy: ", "")[:_LONGEST_REASON]
