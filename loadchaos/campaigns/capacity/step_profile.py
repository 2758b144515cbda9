"""Profile and plan of one capacity step, and the checks before the first."""

from __future__ import annotations

from collections.abc import Mapping

from loadchaos.analysis.capacity import rule
from loadchaos.analysis.capacity.step_watch import StepPlan
from loadchaos.campaigns.capacity.search import NextStep, SearchSettings
from loadchaos.core.errors import OptionError
from loadchaos.core.units import format_duration
from loadchaos.load import registry
from loadchaos.profile import slo
from loadchaos.profile.load import STEADY_LAWS, Phase
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.profile.traffic import Traffic

_LEAST_LOOK_S, _MOST_LOOK_S = 15.0, 60.0
_MARGIN = 1.1
_SCOUT_S = 30.0
_WARM_UP_S = 30.0
_ANSWER_S = 30.0
_LEAST_IN_FLIGHT, _MOST_IN_FLIGHT = 256, 4096
_IN_FLIGHT_S = 120.0
"""Time for which each request may be in flight on average before one finds no free slot."""
_NEEDS_TOKENS = ("ttft", "tpot", "itl_")
_NEEDS_STREAM = ("tpot", "itl_")
_EXPECT = ("engine_deaths == 0", "hangs == 0", "wrong_answers == 0")
_ANOTHER_LOAD = (
    "a capacity search needs a phase with users or a constant rate (law: constant, poisson or gamma); give the profile one, "
    "e.g. with --set 'load=[{rate: 1/s, law: poisson, for: 1m}]'"
)


def step_plan(search: SearchSettings, step: NextStep, most_s: float = float("inf")) -> StepPlan:
    """Make the plan of a step: how long it is measured. The first look comes when enough requests for a proof have been
    sent. `most_s` is the time that is left.
    """
    needed_s = _MARGIN * rule.least_requests(search.goal) / step.load if search.by == "rate" else 0.0
    look_s = max(_LEAST_LOOK_S, needed_s)
    longest_s = max(look_s, min(look_s * 2 ** (rule.LOOKS - 1), _MOST_LOOK_S))
    most_s = min(longest_s, most_s)
    return StepPlan(search.by, step.load, search.goal, search.limits_s, look_s, most_s, step.scout)


def step_profile(profile: Profile, plan: StepPlan) -> Profile:
    """The same traffic with another load. A death of the server ends the search, so it ends the step, too."""
    data = profile.to_json()
    data["target"] = {**data.get("target", {}), "on_death": "stop"}
    for name in ("abort_when", "exposure", "requires", "schedule", "correctness"):
        data.pop(name, None)
    for_s = (_SCOUT_S if plan.scout else plan.most_s) + _WARM_UP_S + _ANSWER_S
    phase: dict[str, object] = {"for": format_duration(for_s)}
    if plan.by == "rate":
        own = profile.load[0]
        phase |= {"rate": f"{plan.load:.6f}/s", "law": own.law if own.law in STEADY_LAWS and own.rate else "poisson"}
        if own.law == "gamma":
            phase["burstiness"] = own.burstiness
        phase["max_in_flight"] = min(
            _MOST_IN_FLIGHT, max(_LEAST_IN_FLIGHT, own.max_in_flight or 0, round(plan.load * _IN_FLIGHT_S))
        )
    else:
        phase["users"] = round(plan.load)
    return from_mapping(
        {**data, "load": [phase], "slo": slo.written(plan.limits_s), "expect": list(_EXPECT)}, registry.full_registry()
    )


def arrivals_of(profile: Profile) -> float:
    """Variance to mean ratio of the arrivals of a step by rate."""
    phase = profile.load[0]
    if phase.rate is None or phase.law == "poisson":
        return 1.0
    return 1 / phase.burstiness if phase.law == "gamma" else 0.0


def searched_phase(profile: Profile, wanted: int | None) -> int:
    """Number of the phase to search: `wanted`, else the last constant one. Raises OptionError for no such phase."""
    if wanted is not None:
        if wanted >= len(profile.load):
            raise OptionError(f"--phase {wanted}: a number from 0 to {len(profile.load) - 1} was expected")
        return wanted
    fit = [n for n, phase in enumerate(profile.load) if not phase.warm_up and _unfit(phase) is None]
    if not fit:
        return next(n for n, phase in enumerate(profile.load) if not phase.warm_up)
    sent = {n: _traffic_text(profile, profile.load[n]) for n in fit}
    if len(set(sent.values())) > 1:
        shown = "; ".join(f"--phase {n} sends {names}" for n, names in sent.items())
        raise OptionError(f"load: its phases send different traffic, and a search sends that of one phase: {shown}")
    return fit[-1]


def with_one_phase(profile: Profile, number: int) -> Profile:
    phase = profile.load[number]
    return profile.model_copy(update={"load": (phase,), "traffic": tuple(_sent(profile, phase))})


def _sent(profile: Profile, phase: Phase) -> list[Traffic]:
    return [traffic for traffic in profile.traffic_of(phase) if traffic.weight]


def _traffic_text(profile: Profile, phase: Phase) -> str:
    return ", ".join(traffic.name for traffic in _sent(profile, phase))


def refuse_unfit(profile: Profile, number: int, limits_s: Mapping[str, float]) -> None:
    """Raise OptionError for a profile whose phase `number` cannot be searched."""
    if profile.attacks:
        raise OptionError(
            f"attacks: the profile attacks the server ({profile.attacks[0].operation}), and a capacity search does not; "
            "leave the attacks out with --set attacks=[]"
        )
    phase = profile.load[number]
    why = _unfit(phase)
    if why is not None:
        raise OptionError(f"load.{number}: {why}; {_ANOTHER_LOAD}")
    sent = _sent(profile, phase)
    for place, traffic in ((f"traffic.{n} ({t.name})", t) for n, t in enumerate(profile.traffic) if t in sent):
        if "ok" not in traffic.expect:
            raise OptionError(
                f"{place}: its requests need not succeed, so they have no goodput: remove it or expect ok"
            )
        _refuse_figures(place, limits_s, streams=traffic.streams, generates=traffic.generates)


def _refuse_figures(place: str, limits_s: Mapping[str, float], *, streams: bool, generates: bool) -> None:
    for name in limits_s:
        if not generates and name.startswith(_NEEDS_TOKENS):
            raise OptionError(f"{place}: its answers have no tokens, so {name} cannot be measured; use --slo e2e=...")
        if not streams and name.startswith(_NEEDS_STREAM):
            raise OptionError(f"{place}: its answers are not streamed, so {name} cannot be measured; use --slo e2e=...")


def _unfit(phase: Phase) -> str | None:
    if phase.replay is not None or phase.trace is not None:
        return f"a {'replay' if phase.replay is not None else 'trace'} has its own times"
    if phase.burst is not None:
        return "bursts have no constant load"
    return None if phase.law in STEADY_LAWS else f"the law {phase.law} changes the rate"
