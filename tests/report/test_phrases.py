import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from loadchaos.analysis.classify import signature_file
from loadchaos.analysis.figures.series import Series
from loadchaos.analysis.verdict.cause import Who
from loadchaos.analysis.verdict.model import CheckResult, FailureResult, Verdict
from loadchaos.core import model
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.model import EXPOSURES
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.profile.profile import Mechanism
from loadchaos.report import phrases
from loadchaos.report.export import github, junit
from loadchaos.report.formatting import duration, number, percent, plural, tick_duration, unify_units
from loadchaos.report.html import page
from loadchaos.report.phrases import RuleText, failure_evidence, rule_text, wrong_answer_texts
from loadchaos.report.terminal import summary

ANALYSIS = Path(phrases.__file__).parents[1] / "analysis"


def check_names() -> Iterator[str]:
    """Names of all checks that the analysis makes.

    The part of a name that varies becomes `images`.
    """
    for path in sorted(ANALYSIS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "CheckResult":
                name = node.args[0]
                if isinstance(name, ast.Constant):
                    yield str(name.value)
                elif isinstance(name, ast.JoinedStr):
                    yield "".join(str(v.value) if isinstance(v, ast.Constant) else "images" for v in name.values)


NAMES = sorted({*check_names(), "exact_lengths", "exact_outputs"})


def rule(name: str, actual: str, verdict: model.Decision = "pass", expected: str = "") -> CheckResult:
    return CheckResult(name, expected, actual, verdict)


def failure(**keys: Any) -> FailureResult:
    return from_json(FailureResult, keys)


def full_verdict() -> Verdict:
    """Verdict with every known check, state, outcome and attribution."""
    ids = [(s, a) for s in get_args(model.Severity) for a in get_args(model.Attribution)]
    return Verdict.from_json({
        "profile": "p", "verdict": "fail", "exit_code": 1, "target": {"kind": "external", "url": "http://h:1"},
        "checks": [to_json(rule(n, "it is", "unknown" if i % 2 else "pass")) for i, n in enumerate(NAMES)],
        "expectations": [to_json(rule("hangs", "0", expected="== 0"))],
        "outcomes": dict.fromkeys(model.OUTCOMES, 2), "by_traffic": {"text": dict.fromkeys(model.OUTCOMES, 2)},
        "states": [{"state": s, "replica": "a", "at_s": 1.0, "signs": []} for s in model.STATES],
        "failures": [{"id": "x", "severity": s, "attribution": a, "title": "t"} for s, a in ids],
        "worth": "w", "generator": {"lag_p99_s": 0.1},
    })  # fmt: skip


def test_check_names_of_the_analysis_are_found() -> None:
    assert len(NAMES) > 15
    assert {"run", "requires images", "attack images"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_check_text_exists_for_every_check(name: str) -> None:
    text = phrases.check_text(name)
    assert text is not None, f"add {name!r} to report/phrases.py"
    assert "_" not in text.label
    assert "{" not in text.label


def test_states_outcomes_severities_and_causes_have_text() -> None:
    assert tuple(phrases.STATES) == model.STATES
    assert tuple(phrases.OUTCOMES) == model.OUTCOMES
    assert set(phrases.SEVERITY) == set(get_args(model.Severity))
    assert set(phrases.CAUSE) == set(get_args(Who))
    assert set(phrases.MECHANISMS) >= set(get_args(Mechanism))


def test_outcome_counts_have_singular_and_plural() -> None:
    assert phrases.outcome_count_text("http_error", 1) == "1 HTTP error"
    assert phrases.outcome_count_text("http_error", 1200) == "1,200 HTTP errors"
    assert phrases.outcome_count_text("ok", 17) == "17 ok"
    for outcome in model.OUTCOMES:
        assert "_" not in phrases.outcome_count_text(outcome, 2).replace("finish_reason", "")


def raw_ids() -> set[str]:
    first_words = {n.partition(" ")[0] for n in NAMES}
    return {i for i in {*first_words, *model.OUTCOMES, *model.STATES, *get_args(model.Severity)} if "_" in i}


def test_terminal_shows_no_raw_id(tmp_path: Path) -> None:
    shown = summary.render(full_verdict(), tmp_path, width=200)
    assert [i for i in sorted(raw_ids()) if i in shown] == []


def test_html_page_shows_no_raw_id(tmp_path: Path) -> None:
    shown = page.render(full_verdict(), Series(), tmp_path)
    shown = shown[: shown.index('<script id="numbers"')]
    for outcome in model.OUTCOMES:  # the id is the tooltip of the row
        shown = shown.replace(f'title="{outcome}"', "")
    assert [i for i in sorted(raw_ids()) if i in shown] == []


def test_github_summary_and_annotations_show_no_raw_id(tmp_path: Path) -> None:
    verdict = full_verdict()
    shown = github.summary(verdict, tmp_path) + "\n".join(github.annotate(replace(verdict, failures=()), "p.yaml"))
    assert [i for i in sorted(raw_ids()) if i in shown] == []


def test_junit_messages_show_no_raw_id(tmp_path: Path) -> None:
    junit.write(RunFolder(tmp_path), full_verdict())
    messages = (tmp_path / "junit.xml").read_text().split('message="')[1:]
    assert [i for i in sorted(raw_ids()) if any(i in m.partition('"')[0] for m in messages)] == []


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (rule("run", "completed"), "run completed"),
        (rule("run", "interrupted by SIGINT", "unknown", "completed"),
         "run: interrupted by SIGINT (expected: completed)"),
        (rule("ledger", "complete"), "record complete"),
        (rule("ledger", "3 unreadable rows"), "record: 3 unreadable rows"),
        (rule("load_delivered", "29.8% (179 of 600)", "unknown", ">= 95%"),
         "load delivered: 179 of 600 requests (29.8 %, expected >= 95 %)"),
        (rule("load_delivered", "87.5% (7 of 8; 1 missed: no_slot)", "unknown", ">= 95%"),
         "load delivered: 7 of 8 requests (87.5 %, expected >= 95 %); not sent: 1 (no free slot)"),
        (rule("exposure", "40", "unknown", "image_requests >= 300"), "exposure: 40 image requests (expected >= 300)"),
        (rule("requires speculative_decoding", "12 drafts", expected="active"), "speculative decoding in use: 12 drafts"),
        (rule("hangs", "0", expected="== 0"), "hangs: 0 (expected == 0)"),
        (rule("engine_deaths == 0", "1", "fail", "0"), "engine_deaths: 1 (expected == 0)"),
        (rule("new_check", "it is"), "new_check: it is"),
    ],
)  # fmt: skip
def test_rule_text_is_one_plain_sentence(given: CheckResult, sentence: str) -> None:
    assert rule_text(given).sentence == sentence


def test_rule_text_has_columns_for_tables() -> None:
    found = rule_text(rule("shed", "2.0%", "unknown", "<= 1%"))
    assert found == RuleText(
        "requests shed (429, 503)", "2.0 %", "<= 1 %", "requests shed (429, 503): 2.0 % (expected <= 1 %)"
    )


def test_exposures_read_as_words() -> None:
    for name in EXPOSURES:
        sentence = rule_text(rule("exposure", "3", "unknown", f"{name} >= 9")).sentence
        assert "_" not in sentence


def test_external_target_names_its_address() -> None:
    target = {"kind": "external", "url": "http://h:1", "dialect": "vllm", "version": "0.18.0"}
    assert phrases.target_text(Verdict.from_json({"target": target})) == "external target http://h:1: vllm 0.18.0"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0 ms"), (0.00025, "0.25 ms"), (0.005, "5.0 ms"), (0.0123, "12.3 ms"), (0.65, "650 ms"),
     (0.9996, "1.0 s"), (4.0, "4.0 s"), (12.34, "12.3 s"), (100.0, "100 s"), (125, "2 min 5 s"), (300, "5 min"),
     (7300, "2 h 1 min"), (3600, "1 h"), (-0.245, "-245 ms")],
)  # fmt: skip
def test_duration_has_one_format(value: float | None, text: str) -> None:
    assert duration(value) == text


def test_numbers_counts_and_percentages_have_one_format() -> None:
    assert (number(1234567), number(1.5), number(None)) == ("1,234,567", "1.50", "–")
    assert (plural(1, "request"), plural(2000, "request")) == ("1 request", "2,000 requests")
    assert (percent(0.298, 1), percent(1)) == ("29.8 %", "100 %")
    assert unify_units("29.8% of 5 %") == "29.8 % of 5 %"


def test_tick_duration_has_no_trailing_zero() -> None:
    assert [tick_duration(s) for s in (0, 0.0005, 0.05, 1.5, 100.0)] == ["0 s", "500 µs", "50 ms", "1.5 s", "100 s"]


def test_unify_units_rewrites_durations_only() -> None:
    assert unify_units("9s750ms, <= 5m, 434ms, 850us") == "9.8 s, <= 5 min, 434 ms, 0.85 ms"
    for text in ("vllm-5m", "0.27.1", "4x", "m5s", "5 s", "10ms-log", "s1"):
        assert unify_units(text) == text


def test_wrong_answers_begin_with_what_was_expected_and_are_their_own_evidence() -> None:
    wrong = {"subject": "probes copy, question 7", "summary": "right when asked again", "found_by": "keyed",
             "expected": "a b c", "got": "a b x", "first_difference": 4, "facts": {}}  # fmt: skip
    evidence = {"source": "keyed", "text": "question 7"}
    found = failure(wrong_answers=[wrong], evidence=evidence)
    (text,) = wrong_answer_texts(found)
    assert text.startswith(
        "probes copy, question 7: expected 'a b c', got 'a b x' (they differ from character 4 on); right"
    )
    assert text.endswith("; found by keyed")
    assert failure_evidence(found) == ""
    assert failure_evidence(failure(evidence=evidence)) == "keyed  question 7"
    wrong = {"subject": "r1", "summary": "no JSON", "facts": {"rule": "type"}}
    (shown,) = wrong_answer_texts(failure(wrong_answers=[wrong]))
    assert shown == "r1: no JSON; rule type"


@pytest.mark.parametrize(
    ("name", "attribution", "text"),
    [
        ("engine_death_unexplained", "server", "not known; no log and no answer names it (not caused by our attacks)"),
        ("unexplained_reset", "server", "not known; no log and no answer names it (not caused by our attacks)"),
        ("encoder_cache_miss", "server", "server bug; shown by line 7 of server.log (not caused by our attacks)"),
        ("engine_death_unexplained", "injected", "our own attack, not a server bug; it injected this"),
    ],
)
def test_unexplained_failure_is_not_called_a_server_bug(name: str, attribution: str, text: str) -> None:
    """Somebody may have killed the server, or a gateway stands before it."""
    shown = {"source": "server.log", "line": 7, "text": "x"}
    found = failure(id=name, attribution=attribution, severity="engine_death", evidence=shown)
    assert phrases.cause_text(found) == text


@pytest.mark.parametrize(
    "name", ["engine_core_proc_died", "worker_proc_died", "oom_killer", "systemd_killed", "xid_79"]
)
def test_machine_or_a_kill_is_not_called_a_server_bug(name: str) -> None:
    """A process that somebody killed leaves the same lines as one that crashed."""
    [signature] = [s for s in signature_file.load().all if s.id == name]
    found = failure(id=name, severity=signature.severity, layer=signature.layer)
    assert "no server bug is known" in phrases.cause_text(found)
    assert (
        phrases.cause_text(replace(found, attribution="expected"))
        == "our own attack, not a server bug; an expected effect"
    )


@pytest.mark.parametrize("name", ["segfault", "encoder_cache_miss", "xid_31"])
def test_crash_of_native_code_is_called_a_server_bug(name: str) -> None:
    [signature] = [s for s in signature_file.load().all if s.id == name]
    shown = {"source": "server.log", "line": 7, "text": "x"}
    found = failure(id=name, severity=signature.severity, layer=signature.layer, evidence=shown)
    assert phrases.cause_text(found) == "server bug; shown by line 7 of server.log (not caused by our attacks)"


def test_answers_shorter_than_asked_are_a_remark_of_a_rule_that_passed() -> None:
    why = "this server has no option for an exact length"
    check = CheckResult("exact_outputs", "usage as planned", f"60 of 60 outputs; 58 shorter: {why}", "pass")
    assert phrases.rule_text(check).sentence == f"output lengths: 58 of 60 answers are shorter than asked: {why}"
    assert not phrases.is_normal(check)
    assert phrases.is_normal(replace(check, actual="60 of 60 outputs"))
