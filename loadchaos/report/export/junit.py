"""Write junit.xml: a test case for each expectation, check and failure."""

from __future__ import annotations

from pathlib import Path

from junitparser import Attr, Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from loadchaos.analysis.verdict.model import CheckResult, FailureResult, Verdict
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.report import phrases
from loadchaos.report.formatting import clean, parse_time

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
    suite.add_property("summary", phrases.one_line(verdict))
    suite.add_property("target", phrases.target_text(verdict))
    for kind, rules in (("expectations", verdict.expectations), ("checks", verdict.checks)):
        for rule in rules:
            suite.add_testcase(_rule(rule, f"loadchaos.{profile}.{kind}"))
    for failure in sorted(verdict.failures, key=phrases.worst_first):
        suite.add_testcase(_failure(verdict, failure, f"loadchaos.{profile}.failures"))
    started, ended = parse_time(verdict.started), parse_time(verdict.ended)
    xml = JUnitXml()
    xml.add_testsuite(suite)
    xml.update_statistics()  # type: ignore[no-untyped-call]  # junitparser has no types there
    if started and ended:  # after the sums of the cases, which have no time of their own
        suite.time = xml.time = round((ended - started).total_seconds(), 3)
    return xml


def _rule(rule: CheckResult, classname: str) -> TestCase:
    case = TestCase(clean(rule.name, 200), classname)  # the id: dashboards follow a case by its name
    sentence = phrases.rule_text(rule).sentence
    if rule.verdict == "fail":
        case.result = [Failure(sentence, "expectation")]
    elif rule.accepted:
        case.result = [Skipped(f"accepted: {clean(rule.accepted, 200)}: {sentence}", "unknown")]
    elif rule.verdict != "pass":
        case.result = [Error(f"unknown: {sentence}", "unknown")]
    return case


def _failure(verdict: Verdict, failure: FailureResult, classname: str) -> TestCase:
    case = TestCase(clean(failure.id, 80), classname)
    attribution = failure.attribution
    title = clean(failure.title or failure.id, 400)
    if failure.accepted:
        case.result = [Skipped(f"accepted: {phrases.accepted_text(failure)}: {title}", attribution)]
    elif failure.before_load:
        case.result = [Skipped(f"before the load, not counted: {title}", attribution)]
    elif attribution in {"injected", "expected"}:
        case.result = [Skipped(f"{phrases.cause_text(failure)}: {title}", attribution)]
    else:
        result = Failure(title, phrases.severity_text(failure))
        result.text = "\n".join(_lines(verdict, failure))
        case.result = [result]
    return case


def _lines(verdict: Verdict, failure: FailureResult) -> list[str]:
    rows = [
        ("when", phrases.when_text(verdict, failure)),
        ("evidence", phrases.evidence_text(failure.evidence)),
        ("known issue", ", ".join(phrases.known_text(k) for k in failure.known)),
        ("what to do", phrases.remedy_text(failure.remedy)),
        ("cause", phrases.cause_text(failure)),
        ("incident", ", ".join(phrases.incident_paths(failure))),
    ]
    return [f"{label}: {text}" for label, text in rows if text]
