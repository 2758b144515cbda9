from typing import Any

import pytest

from loadchaos.analysis.judge import Judge
from loadchaos.core.model import Terms
from tests.rows import S, answered, folded

ENDPOINTS = {"talk": "chat", "code": "chat", "vectors": "embeddings"}


def verdict(
    expect: tuple[str, ...] = (), endpoints: dict[str, str] = ENDPOINTS, slo: dict[str, float] | None = None
) -> dict[str, Any]:
    """Twenty requests of each traffic: talk takes 1 s, code 3 s, of vectors every fifth is a timeout."""
    judge = Judge(Terms(profile="p", expect=expect, endpoints=endpoints, slo=slo or {}))
    for n in range(60):
        traffic = list(ENDPOINTS)[n % 3]
        lost = traffic == "vectors" and n % 5 == 0
        due_ns, seconds = (n + 1) * S, {"talk": 1, "code": 3, "vectors": 1}[traffic]
        end: dict[str, Any] = {"first_token_ns": None} if traffic == "vectors" else {}
        outcome = "timeout" if lost else "ok"
        folded(judge, answered(due_ns, n, took_ns=seconds * S, traffic=traffic, outcome=outcome, **end))
    return judge.verdict().to_json()


def test_verdict_sums_the_traffic_of_each_endpoint() -> None:
    found = verdict(slo={"e2e": 2.0})["by_endpoint"]
    assert {name: (part["traffic"], part["outcomes"], part["goodput"]) for name, part in found.items()} == {
        "chat": (["code", "talk"], {"ok": 40}, {"good": 20, "due": 40}),
        "embeddings": (["vectors"], {"ok": 16, "timeout": 4}, {"good": 16, "due": 20}),
    }
    e2e = found["chat"]["latency"]["e2e_s"]
    assert (e2e["n"], round(e2e["p50"]), round(e2e["max"])) == (40, 1, 3)
    assert found["embeddings"]["latency"]["lower_bounds"] == 4


def test_verdict_with_one_endpoint_has_no_figures_by_endpoint() -> None:
    assert "by_endpoint" not in verdict(endpoints=dict.fromkeys(ENDPOINTS, "chat"))
    assert "by_endpoint" not in verdict(endpoints={})  # a ledger of an older version


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        ("endpoint.chat.e2e_max <= 3500ms", "pass"),
        ("endpoint.chat.e2e_max <= 2s", "fail"),  # of code
        ("endpoint.chat.ok_share >= 100%", "pass"),
        ("endpoint.embeddings.ok_share >= 90%", "fail"),
        ("endpoint.embeddings.error_rate <= 10%", "fail"),
        ("endpoint.embeddings.outcomes.timeout == 4", "pass"),
        ("endpoint.chat.outcomes.timeout == 0", "pass"),
        ("endpoint.chat.goodput >= 60%", "fail"),
        ("endpoint.rerank.ok_share >= 1%", "unknown"),
    ],
)
def test_expectation_may_name_an_endpoint(text: str, decision: str) -> None:
    judged = verdict((text,), slo={"e2e": 2.0})["expectations"]
    assert [(r["name"], r["verdict"]) for r in judged] == [(text.split()[0], decision)]


def test_shed_requests_of_an_endpoint_with_a_rule_of_its_own_are_no_other_failures() -> None:
    judge = Judge(
        Terms(profile="p", expect=("ok_share >= 99%", "endpoint.chat.shed_share <= 50%"), endpoints=ENDPOINTS)
    )
    for n in range(40):
        base = {"id": f"lc-a-{n}", "step": n, "traffic": "talk", "phase": 0, "due_ns": n * S}
        judge.fold({"row": "begin", **base, "at_ns": n * S})
        outcome = "shed" if n % 4 == 0 else "ok"
        judge.fold({"row": "end", **base, "at_ns": n * S + 1, "sent_ns": n * S, "outcome": outcome, "expect": ["ok"],
                    "itl_hist": {}, "detail": {}})  # fmt: skip
    assert [(r["name"], r["verdict"]) for r in judge.verdict().to_json()["expectations"]] == [
        ("ok_share", "pass"), ("endpoint.chat.shed_share", "pass"),
    ]  # fmt: skip
