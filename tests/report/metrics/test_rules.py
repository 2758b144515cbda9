"""Tests of the recording and alert rules with promtool."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

FOLDER = Path(__file__).parents[3] / "dashboards"
RULES = [FOLDER / "rules.yaml", FOLDER / "alerts.yaml"]


@pytest.mark.parametrize("path", RULES, ids=lambda p: p.name)
def test_rules_pass_promtool(path: Path, prometheus_program: Callable[[str], Path]) -> None:
    argv = [str(prometheus_program("promtool")), "check", "rules", "--lint-fatal", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_as_their_tests_expect(prometheus_program: Callable[[str], Path]) -> None:
    argv = [str(prometheus_program("promtool")), "test", "rules", str(FOLDER / "alerts_test.yaml")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_have_a_test_each() -> None:
    alerts = {r["alert"] for g in YAML(typ="safe").load(RULES[1])["groups"] for r in g["rules"]}
    tests = YAML(typ="safe").load(FOLDER / "alerts_test.yaml")["tests"]
    fired = {a["alertname"] for t in tests for a in t["alert_rule_test"] if a["exp_alerts"]}
    assert alerts == fired


def test_alerts_have_summary_and_next_step() -> None:
    for group in YAML(typ="safe").load(RULES[1])["groups"]:
        for rule in group["rules"]:
            assert "$labels." in rule["annotations"]["summary"], rule["alert"]
            assert len(rule["annotations"]["description"]) > 30, rule["alert"]
            assert rule["labels"]["severity"] in {"critical", "warning", "info"}
