from dataclasses import replace
from xml.etree import ElementTree as ET

from junitparser import JUnitXml

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.report.export import junit
from loadchaos.report.formatting import parse_time
from tests.report.made_up_run import with_failure


def test_junit_has_a_case_per_rule_and_failure(run_folder: RunFolder, verdict: Verdict) -> None:
    path = junit.write(run_folder, verdict)
    xml = JUnitXml.fromfile(str(path))
    cases = {case.name: case for suite in xml for case in suite}
    assert set(cases) == {
        "engine_deaths == 0",
        "hangs == 0",
        "load delivered",
        "connection_reset",
        "encoder_cache_miss",
    }
    assert cases["hangs == 0"].is_passed
    assert (xml.tests, xml.failures, xml.errors) == (5, 3, 1)
    suite = next(iter(xml))
    started, ended = parse_time(verdict.started), parse_time(verdict.ended)
    assert started is not None and ended is not None
    assert suite.time == xml.time == (ended - started).total_seconds() > 0
    assert "issues/38551" in cases["encoder_cache_miss"].result[0].text


def test_junit_unknown_rule_is_an_error(verdict: Verdict) -> None:
    built = junit.build(replace(verdict, failures=(), expectations=()))
    assert (built.tests, built.failures, built.errors) == (1, 0, 1)


def test_junit_skips_accepted_and_injected_failures(verdict: Verdict) -> None:
    verdict = with_failure(verdict, 0, accepted=True, acceptance="known here")
    verdict = with_failure(verdict, 1, attribution="injected")
    assert junit.build(verdict).skipped == 2


def test_junit_removes_control_characters(run_folder: RunFolder, verdict: Verdict, hostile: str) -> None:
    spoiled = with_failure(verdict, 0, title="\x00\x08" + hostile + "]]>\ufffe")
    ET.parse(junit.write(run_folder, spoiled))


def test_junit_of_an_empty_verdict_is_an_empty_suite(run_folder: RunFolder) -> None:
    assert JUnitXml.fromfile(str(junit.write(run_folder, Verdict.from_json({})))).tests == 0
