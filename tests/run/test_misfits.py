"""Profiles that do not fit the server end before the load."""

from __future__ import annotations

from typing import Any

import pytest

from tests.run.conftest import Start

TOOLS = {"name": "tools", "payload": {"tools": {"choice": "auto"}, "text": {"tokens": 64}}, "output": {"max": 8}}
LORA = {"name": "lora", "payload": {"sampling": {"models": {"sim": 1, "other": 1}}}, "output": {"max": 8}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("traffic", "says"),
    [(TOOLS, "--enable-auto-tool-choice and --tool-call-parser"), (LORA, "does not serve other (it serves: sim)")],
)
def test_server_without_a_feature_is_a_target_error_and_no_failure(
    traffic: dict[str, Any], says: str, start: Start
) -> None:
    run = start(traffic=[traffic])
    assert run.ends(60) == 4
    assert says in " ".join(run.output.split())
    assert run.verdict()["failures"] == []
    assert run.rows("requests-*.jsonl", row="begin") == []


@pytest.mark.slow
def test_server_with_the_features_is_loaded_as_planned(start: Start) -> None:
    schema = {"name": "schema", "payload": {"structured": {"json_schema": "small"}}, "output": {"max": 8}}
    served = {**LORA, "payload": {"sampling": {"models": {"sim": 1, "other": 0}, "n": 2}}}
    run = start(traffic=[schema, served])
    assert run.ends(60) == 0, run.output
