"""Send a load with distinct and with equal prompts, by turns: the difference is what the caches of the server give."""

from __future__ import annotations

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.repeat.session import Repeats, RepeatSession
from loadchaos.core import exit_codes
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.load import registry
from loadchaos.load.payloads.text import Options as Text
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.report.repeat_result import Audited
from loadchaos.run.options import Options

TIMES = 3
"""Runs of each kind without `--repeat`: fewer have no interval."""
DISTINCT, EQUAL = "distinct", "equal"


class CacheAudit:
    """Each kind of runs is a repeated load in a folder of its name, which `loadchaos compare` takes."""

    def __init__(self, campaign: Campaign, profile: Profile, options: Options, times: int) -> None:
        self._campaign, self._times = campaign, times
        self.sessions = {
            kind: RepeatSession(
                Campaign(campaign.folder / kind, campaign.print_line, campaign.interrupts),
                _variant(profile, equal=kind == EQUAL),
                options,
                Repeats(str(times), times),
            )
            for kind in (DISTINCT, EQUAL)
        }

    async def run(self) -> None:
        await self._by_turns()
        for session in self.sessions.values():
            session.end()

    async def _by_turns(self) -> None:
        for number in range(self._times):
            for kind, session in self.sessions.items():
                self._campaign.print_line(f"run {number + 1} of {self._times} with {kind} prompts")
                if not await session.run_one(number):
                    return

    def audited(self, kind: str) -> Audited:
        result = self.sessions[kind].result
        folders = [RunFolder(self._campaign.folder / kind / run.run) for run in result.runs if run.run and run.counts]
        verdicts = [verdict for folder in folders if (verdict := Verdict.read(folder)) is not None]
        rates = [verdict.efficiency.prefix_hit_rate for verdict in verdicts if verdict.efficiency]
        return Audited(result=result, hit_rates=tuple(rate for rate in rates if rate is not None))

    @property
    def exit_code(self) -> int:
        if self._campaign.interrupts:
            return self._campaign.interrupts.exit_code
        return exit_codes.worst([run.exit_code for s in self.sessions.values() for run in s.result.runs])


def _variant(profile: Profile, *, equal: bool) -> Profile:
    """The profile with prompts and images that are all new, or all the same. Raises OptionError for prompts of a file."""
    data = profile.to_json()
    for traffic, written in zip(profile.traffic, data["traffic"], strict=True):
        text, payload = traffic.payload_options.get("text"), written["payload"]
        if not isinstance(text, Text):
            raise OptionError(
                f"--audit cache: traffic {traffic.name} has no payload text, whose prompts can be made distinct or equal"
            )
        payload["text"] = {k: v for k, v in payload["text"].items() if k != "shared_prefix"}
        if equal:
            payload["text"]["shared_prefix"] = {"tokens": text.tokens.high, "groups": 1}
        if "images" in payload:
            images = {k: v for k, v in payload["images"].items() if k not in ("near_duplicates", "reuse_distance")}
            payload["images"] = images | ({"unique": "0%", "reuse_distance": 1} if equal else {"unique": "100%"})
    return from_mapping(data, registry.full_registry(), name=profile.name)
