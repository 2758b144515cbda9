import re
from pathlib import Path

from loadchaos.analysis.capacity.step_columns import CapacityStep
from loadchaos.core.typed_json import from_json
from loadchaos.report.capacity_text import headline, status_text
from loadchaos.report.html import capacity_page
from loadchaos.report.terminal import capacity as terminal
from tests.report.made_up_search import search_data, search_result, step


def axes(page: str) -> list[list[str]]:
    """Labels of each horizontal axis."""
    return [re.findall(r">([^<]*)</span>", axis) for axis in re.findall(r'<div class="axis">(.*?)</div>', page)]


def test_axis_has_the_two_loads_of_the_answer_and_no_label_beside_them() -> None:
    assert set(map(tuple, axes(capacity_page.render(search_result())))) == {("5", "10", "12")}
    close = {**search_data()["answer"], "low": 11.5}
    assert set(map(tuple, axes(capacity_page.render(search_result(answer=close))))) == {("5", "11.5")}


def test_axis_of_a_search_without_an_answer_has_round_loads() -> None:
    nothing = {**search_data()["answer"], "known": False, "low": None, "high": None, "interval": [None, None]}
    assert set(map(tuple, axes(capacity_page.render(search_result(answer=nothing))))) == {("5", "10")}


def test_cells_of_a_step_have_their_heading_for_a_phone() -> None:
    page = capacity_page.render(
        search_result(steps=[step(0, 4, "met", 1.0, why="the whole interval is above the goal")])
    )
    assert re.search(r'data-head="TTFT p99">120 ms</td>', page)
    assert "the whole interval is above the goal" in page


def test_step_that_met_the_goal_near_the_saturation_is_not_told_as_missed() -> None:
    measured = {"status": "met", "leans": True, "why": ""}
    assert (
        status_text(from_json(CapacityStep, step(0, 4, "undecided", 1.0, leans=False, measured=measured)))
        == "near saturation"
    )
    assert status_text(from_json(CapacityStep, step(0, 4, "undecided", 0.5, leans=False))) == "looks not met"


def test_page_and_text_name_the_phase_of_a_profile_with_several() -> None:
    shown = "load.1 of 2 phases: images, text"
    data = search_result(phase={"number": 1, "of": 2, "traffic": ["images", "text"]})
    assert f"<p>Traffic: {shown}</p>" in capacity_page.render(data)
    assert f"\n      traffic: {shown}\n" in terminal.render(data, Path("runs/x"))
    assert "raffic:" not in capacity_page.render(search_result(phase={"number": 0, "of": 1, "traffic": ["text"]}))


def test_headline_says_if_the_wanted_capacity_is_reached() -> None:
    for verdict, said in (
        ("pass", "the capacity is not below"),
        ("fail", "the capacity is below"),
        ("unknown", "unknown if below"),
    ):
        shown = headline(search_result(verdict=verdict, at_least=50))
        assert shown.endswith(f"; {said} --at-least 50 requests/s")
    assert "--at-least" not in headline(search_result())
