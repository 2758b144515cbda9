from typing import Any

import pytest

from loadchaos.analysis.incidents.attribution import AttackLog
from tests.rows import S


def act(what: str, at_s: float, *, ok: bool = True) -> Any:
    row = {"row": "attack", "attack": "pause", "kind": "process", "n": 1, "replica": "server", "what": what}
    return {
        **row,
        "at_ns": round(at_s * S),
        "ok": None if what == "begin" else ok,
        "effects": ["truncated", "stalled"],
    }


def paused(*, to_s: float = 100.5, undone: bool | None = True) -> AttackLog:
    """`undone`: whether the undo succeeded; None: there was none."""
    log = AttackLog()
    log.on_attack(act("begin", 100))
    if undone is not None:
        log.on_attack(act("undo", to_s, ok=undone))
    log.on_attack(act("end", to_s))
    return log


@pytest.mark.parametrize(
    ("outcome", "sent_s", "at_s", "attribution"),
    [
        ("truncated", 99, 100.6, "expected"),
        ("truncated", 101, 102, "expected"),
        ("truncated", 109, 109.5, "server"),
        ("truncated", 100.2, 109.5, "server"),
        ("stalled", 100.2, 109.5, "expected"),
        ("stalled", 103, 109.5, "server"),
    ],
)
def test_attack_that_was_taken_back_excuses_only_answers_near_it(
    outcome: str, sent_s: float, at_s: float, attribution: str
) -> None:
    assert paused().attribute([outcome], round(at_s * S), sent_ns=round(sent_s * S)) == attribution


@pytest.mark.parametrize(("at_s", "attribution"), [(70, "server"), (98, "server"), (99.5, "expected")])
def test_attack_excuses_nothing_that_failed_before_it(at_s: float, attribution: str) -> None:
    assert paused(undone=None).attribute(["truncated"], round(at_s * S), sent_ns=round((at_s - 1) * S)) == attribution


def test_attack_excuses_answers_for_as_long_as_it_lasted() -> None:
    assert paused(to_s=108).attribute(["truncated"], 115 * S, sent_ns=107 * S) == "expected"


@pytest.mark.parametrize("undone", [False, None])
def test_attack_that_was_not_taken_back_excuses_later_answers(undone: bool | None) -> None:
    assert paused(undone=undone).attribute(["truncated"], 109 * S, sent_ns=108 * S) == "expected"
