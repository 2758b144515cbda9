from typing import Any

from loadchaos.analysis.incidents.record import IncidentRecord
from loadchaos.analysis.wrong_answer import WrongAnswer
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.report.incident.page import IncidentView, page

WRONG = WrongAnswer(
    "wrong_answer", "probes copy, question 7", 5, "keyed", "right when asked again; token 1, margin 4.48",
    expected="bako dumi", got="bako remi", prompt="Repeat these words: bako dumi",
    facts={"idle answer": "bako dumi", "counters that moved": "preemptions +2"},
)  # fmt: skip


def incident(**more: Any) -> IncidentRecord:
    evidence = {"source": "keyed", "line": None, "text": "question 7: right when asked again"}
    found = {"id": "wrong_answer", "kind": "failure", "opened_at_s": 1.0, "evidence": evidence, **more}
    return from_json(IncidentRecord, found)


def test_page_of_a_wrong_answer_marks_the_first_difference() -> None:
    text = page(
        incident(wrong_answers=[to_json(WRONG.example())]), IncidentView(["question 7: right when asked again"])
    )
    assert "## Server log" not in text
    assert "## Evidence" not in text, "Wrong answers has all of it"
    for part in (
        "prompt: `Repeat these words: bako dumi`", "expected: `bako dumi`", "got: `bako remi`",
        "first difference: character 5: expected `dumi`, got `remi`", "margin 4.48", "idle answer: `bako dumi`",
        "counters that moved: `preemptions +2`",
    ):  # fmt: skip
        assert part in text, part


def test_page_names_a_log_only_where_the_evidence_is_from_one() -> None:
    view = IncidentView(["ttft grew by 40 %"])
    assert "## Evidence\n\n```text\nttft grew" in page(incident(), view)
    logged = {"source": "server.log", "line": 7, "text": "x"}
    assert "## Server log" in page(incident(evidence=logged), view)
