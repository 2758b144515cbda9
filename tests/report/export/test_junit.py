"""junit.xml: what CI systems read of a verdict."""

from typing import Any
from xml.etree import ElementTree as ET

from junitparser import JUnitXml

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.report.export import junit


def test_rules_and_failures_are_test_cases(run_folder: RunFolder, verdict: dict[str, Any]) -> None:
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


def test_what_was_not_proved_is_an_error_and_no_pass(verdict: dict[str, Any]) -> None:
    built = junit.build({**verdict, "failures": [], "expectations": []})
    assert (built.tests, built.failures, built.errors) == (1, 0, 1)


def test_what_the_profile_accepts_and_what_we_injected_is_skipped(verdict: dict[str, Any]) -> None:
    verdict["failures"][0] |= {"accepted": True, "acceptance": "known here"}
    verdict["failures"][1]["attribution"] = "injected"
    assert junit.build(verdict).skipped == 2


def test_control_characters_of_a_server_do_not_break_the_xml(
    run_folder: RunFolder, verdict: dict[str, Any], hostile: str
) -> None:
    verdict["failures"][0]["title"] = "\x00\x08" + hostile + "]]>\ufffe"
    ET.parse(junit.write(run_folder, verdict))


def test_an_empty_verdict_makes_an_empty_suite(run_folder: RunFolder) -> None:
    assert JUnitXml.fromfile(str(junit.write(run_folder, {}))).tests == 0
