"""Write junit.xml: a test case for each expectation, check and failure."""

from __future__ import annotations

from pathlib import Path

from junitparser import Attr, Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from loadchaos.analysis.verdict.model import CheckResult, FailureResult, Verdict
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.report.formatting import clean, parse_time
from loadchaos.report.phrases import (
    accepted_text,
    cause_text,
    evidence_text,
    incident_paths,
    known_text,
    one_line,
    remedy_text,
    rule_text,
    severity_text,
    target_text,
    when_text,
    worst_first,
)

TestSuite.timestamp = Attr("timestamp")


def write(folder: RunFolder, verdict: Verdict) -> Path:
    part = folder.junit.with_name("junit.xml.part")
    build(verdict).write(str(part), pretty=True)
    part.replace(folder.junit)
    return folder.junit


def build(verdict: Verdict) -> JUnitXml:
    """Build one suite named after the profile. An unknown rule is an error, so that CI does not take it for a pass."""
    profile = clean(verdict.profile or "loadchaos", 80)
    suite = TestSuite(f"loadchaos.{profile}")
    suite.timestamp = clean(verdict.started or "", 40)
    suite.add_property("verdict", clean(verdict.verdict, 20))
    suite.add_property("summary", one_line(verdict))
    suite.add_property("target", target_text(verdict))
    for kind, rules in (("expectations", verdict.expectations), ("checks", verdict.checks)):
        for rule in rules:
            suite.add_testcase(_rule(rule, f"loadchaos.{profile}.{kind}"))
    for failure in sorted(verdict.failures, key=worst_first):
        suite.add_testcase(_failure(verdict, failure, f"loadchaos.{profile}.failures"))
    started, ended = parse_time(verdict.started), parse_time(verdict.ended)
    suite.update_statistics()  # type: ignore[no-untyped-call]  # junitparser has no types there
    if started and ended:
        suite.time = round((ended - started).total_seconds(), 3)
    xml = JUnitXml()
    xml.add_testsuite(suite)
    xml.update_statistics()  # type: ignore[no-untyped-call]  # junitparser has no types there
    return xml


def _rule(rule: CheckResult, classname: str) -> TestCase:
    case = TestCase(clean(rule.name, 200), classname)  # the id: dashboards follow a case by its name
    sentence = rule_text(rule).sentence
    if rule.verdict == "fail":
        case.result = [Failure(sentence, "expectation")]
    elif rule.verdict != "pass":
        case.result = [Error(f"unknown: {sentence}", "unknown")]
    return case


def _failure(verdict: Verdict, failure: FailureResult, classname: str) -> TestCase:
    case = TestCase(clean(failure.id, 80), classname)
    attribution = failure.attribution
    title = clean(failure.title or failure.id, 400)
    if failure.accepted:
        case.result = [Skipped(f"accepted: {accepted_text(failure)}: {title}", attribution)]
    elif failure.before_load:
        case.result = [Skipped(f"before the load, not counted: {title}", attribution)]
    elif attribution in {"injected", "expected"}:
        case.result = [Skipped(f"{cause_text(failure)}: {title}", attribution)]
    else:
        result = Failure(title, severity_text(failure))
        result.text = "\n".join(_lines(verdict, failure))
        case.result = [result]
    return case


def _lines(verdict: Verdict, failure: FailureResult) -> list[str]:
    rows = [
        ("when", when_text(verdict, failure)),
        ("evidence", evidence_text(failure.evidence)),
        ("known issue", ", ".join(known_text(k) for k in failure.known)),
        ("what to do", remedy_text(failure.remedy)),
        ("cause", cause_text(failure)),
        ("incident", ", ".join(incident_paths(failure))),
    ]
    return [f"{label}: {text}" for label, text in rows if text]
