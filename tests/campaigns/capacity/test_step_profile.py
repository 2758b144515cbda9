from typing import Any

import pytest

from loadchaos.analysis.capacity.step_watch import StepPlan
from loadchaos.campaigns.capacity.step_profile import searched_phase, step_profile, with_one_phase
from loadchaos.core import resources
from loadchaos.core.errors import OptionError
from loadchaos.load import registry
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.profile.profile import load as load_profile

TRAFFIC = [{"name": name, "payload": {"text": {"tokens": 8}}, "output": {"max": 4}} for name in ("a", "b")]
PLAN = StepPlan("rate", 12.0, 0.99, {"ttft": 1.0}, look_s=15.0, most_s=60.0)


def profile(*phases: dict[str, Any], **more: Any) -> Profile:
    data = {"name": "p", "traffic": TRAFFIC, "load": list(phases), **more}
    return from_mapping(data, registry.full_registry())


@pytest.mark.parametrize(
    ("phases", "number"),
    [
        ([{"users": 2, "for": "5s"}, {"rate": "3/s", "for": "5s"}], 1),
        ([{"rate": "3/s", "for": "5s"}, {"burst": 9}], 0),
        ([{"rate": "3/s", "for": "5s"}, {"users": 2, "requests": 5, "warm_up": True, "traffic": ["b"]}], 0),
        ([{"users": 2, "for": "5s", "traffic": ["a", "b"]}, {"users": 9, "for": "5s"}], 1),
        ([{"repeat": 2, "phases": [{"users": 2, "for": "5s"}, {"burst": 1}]}], 2),
        ([{"burst": 9}], 0),
    ],
)
def test_search_sends_the_traffic_of_the_last_constant_phase(phases: list[dict[str, Any]], number: int) -> None:
    assert searched_phase(profile(*phases), None) == number


def test_search_does_not_guess_between_phases_with_different_traffic() -> None:
    found = profile({"users": 1, "requests": 3, "traffic": ["a"]}, {"users": 9, "for": "5s"})
    with pytest.raises(OptionError, match="--phase 0 sends a; --phase 1 sends a, b"):
        searched_phase(found, None)
    assert searched_phase(found, 0) == 0


def test_step_sends_no_traffic_that_only_another_phase_names() -> None:
    whole = profile({"users": 1, "requests": 3, "traffic": ["a"]}, {"users": 9, "for": "5s", "traffic": ["b"]})
    step = step_profile(with_one_phase(whole, 1), PLAN)
    assert step.traffic_names() == ["b"]
    assert step.traffic_of(step.load[0]) == list(step.traffic)


def test_step_of_mtp_mm_sends_the_second_phase_alone() -> None:
    whole = load_profile(resources.profile("mtp_mm"), registry.full_registry())
    step = step_profile(with_one_phase(whole, 1), PLAN)
    assert step.traffic_names() == ["images", "text", "long"]


@pytest.mark.parametrize(("load", "own", "found"), [(12, 32, 1440), (1, 32, 256), (1, 500, 500), (500, None, 4096)])
def test_step_has_its_own_limit_of_requests_in_flight(load: float, own: int | None, found: int) -> None:
    more = {} if own is None else {"max_in_flight": own}
    plan = StepPlan("rate", load, 0.99, {"ttft": 1.0}, look_s=15.0, most_s=60.0)
    assert step_profile(profile({"rate": "3/s", "for": "5s", **more}), plan).load[0].max_in_flight == found
