"""Tests of junit.xml."""

from typing import Any
from xml.etree import ElementTree as ET

from junitparser import JUnitXml

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.report.export import junit


def test_junit_has_a_case_per_rule_and_failure(run_folder: RunFolder, verdict: dict[str, Any]) -> None:
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
    assert "issues/38551" in cases["encoder_cache_miss"].result[0].text


def test_junit_unknown_rule_is_an_error(verdict: dict[str, Any]) -> None:
    built = junit.build({**verdict, "failures": [], "expectations": []})
    assert (built.tests, built.failures, built.errors) == (1, 0, 1)


def test_junit_skips_accepted_and_injected_failures(verdict: dict[str, Any]) -> None:
    verdict["failures"][0] |= {"accepted": True, "acceptance": "known here"}
    verdict["failures"][1]["attribution"] = "injected"
    assert junit.build(verdict).skipped == 2


def test_junit_removes_control_characters(run_folder: RunFolder, verdict: dict[str, Any], hostile: str) -> None:
    verdict["failures"][0]["title"] = "\x00\x08" + hostile + "]]>\ufffe"
    ET.parse(junit.write(run_folder, verdict))


def test_junit_of_an_empty_verdict_is_an_empty_suite(run_folder: RunFolder) -> None:
    assert JUnitXml.fromfile(str(junit.write(run_folder, {}))).tests == 0
