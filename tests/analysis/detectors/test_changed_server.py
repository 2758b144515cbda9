from itertools import cycle, islice
from typing import Any

import pytest

from tests.analysis.conftest import History


def answered(history: History, fingerprints: list[str | None]) -> History:
    for name in fingerprints:
        labels: dict[str, Any] = {} if name is None else {"labels": {"system_fingerprint": name}}
        history.serve(0.05).answer(history.send(), **labels)
    return history


@pytest.mark.parametrize("mixed", [0, 30], ids=["at once", "one replica after the other"])
def test_server_that_another_one_replaces_leaves_the_run_unknown(history: History, mixed: int) -> None:
    between = list(islice(cycle(["vllm-0.19", "vllm-0.20"]), mixed))
    answered(history.begin(), [*["vllm-0.19"] * 40, *between, *["vllm-0.20"] * 40])
    verdict = history.end().verdict()
    check = verdict["checks"][0]
    assert check["name"] == "same_server"
    assert verdict["verdict"] == "unknown"
    assert "system_fingerprint of answers was 'vllm-0.19', and 'vllm-0.20' from" in check["actual"]


def test_change_of_the_server_can_be_accepted_by_its_name(history: History) -> None:
    answered(history.begin(), [*["a"] * 40, *["b"] * 40]).end()
    for name, decision in (("answers_not_judged", "unknown"), ("same_server", "pass")):
        entry = {"id": name, "because": "a rollout", "until": "2099-01-01"}
        assert history.decision(history.verdict(accept=[entry]), "same_server") == decision


@pytest.mark.parametrize(
    "names", [["a", "b"], ["a"] * 9 + ["b"], [f"fp_{n}" for n in range(60)]], ids=["half", "a tenth", "one each"]
)
def test_servers_that_answer_in_turn_are_a_note(history: History, names: list[str | None]) -> None:
    verdict = answered(history.begin(), list(islice(cycle(names), 60))).end().verdict()
    assert "same_server" not in history.unknowns(verdict)
    (note,) = [n for n in verdict["notes"] if "in turn" in n]
    assert repr(names[0]) in note


@pytest.mark.parametrize("names", [["a"], [None], [None, "a"]])
def test_one_server_is_silent(history: History, names: list[str | None]) -> None:
    verdict = answered(history.begin(), list(islice(cycle(names), 60))).end().verdict()
    assert "same_server" not in history.unknowns(verdict)
    assert not [n for n in verdict["notes"] if "in turn" in n]


@pytest.mark.parametrize(
    ("read", "changed"), [(["1", "2"], True), (["1", "2", "2"], True), (["1", "2", "1"], False), (["1"], False)]
)
def test_pages_that_name_another_version_are_a_change_unless_the_first_comes_back(
    history: History, read: list[str], changed: bool
) -> None:
    history.begin()
    for version in read:
        named: dict[str, Any] = {"version": version, "model": "id m"}
        history.work(2).add("identity", named=named)
    verdict = history.end().verdict()
    assert ("same_server" in history.unknowns(verdict)) == changed
    assert any("several servers" in n for n in verdict["notes"]) == (not changed and len(read) > 1)
