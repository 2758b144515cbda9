"""Servers that refuse `max_tokens` or `temperature: 0`, as newer models of OpenAI do, get what they ask for."""

import json
from pathlib import Path

import pytest

from loadchaos.core.field_changes import change_for
from tests.run.conftest import Start
from tests.run.foreign_server import PAGES, ForeignServer, serving

MAX_TOKENS = {
    "max_tokens": "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
    "instead."
}
TEMPERATURE = {
    "temperature": "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is "
    "supported."
}
LOAD = ("--users", "2", "--num-prompts", "6", "--random-input-len", "40", "--random-output-len", "4")


@pytest.mark.parametrize(
    ("refuses", "told"),
    [
        (MAX_TOKENS, "it is sent max_completion_tokens in place of max_tokens, as it asked"),
        (MAX_TOKENS | TEMPERATURE, "it is sent max_completion_tokens in place of max_tokens and no temperature"),
    ],
    ids=["max_tokens", "and temperature"],
)
def test_refused_fields_are_replaced_before_the_load(refuses: dict[str, str], told: str, start: Start) -> None:
    with serving(ForeignServer(pages=PAGES, refuses=refuses)) as server:
        run = start("--target", server.url, *LOAD, profile=())
        assert run.ends() == 0, run.output
    assert told in run.output
    refused = [body for body in server.bodies if refuses.keys() & body.keys()]
    assert len(refused) == len(refuses), "each field is tried once"
    ends = run.rows("requests-0.jsonl", row="end")
    assert [(r["outcome"], r["completion_tokens"]) for r in ends] == [("ok", 4)] * 6


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_limits_of_requests_from_a_file_get_the_name_that_is_taken(name: str, start: Start, tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "the prompt of a file"}], name: 3}) + "\n")
    with serving(ForeignServer(pages=PAGES, refuses=MAX_TOKENS)) as server:
        custom = ("--dataset-name", "custom", "--dataset-path", str(file))
        run = start("--target", server.url, *LOAD[:4], *custom, profile=())
        assert run.ends() == 0, run.output
    assert [body["max_completion_tokens"] for body in server.bodies if body.get("stream")] == [3] * 6


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, "'max_tokens' or 'max_completion_tokens' is too large: 999. This model's maximum context length is 64."),
        (500, MAX_TOKENS["max_tokens"]),
        (400, "temperature must be non-negative, got -1"),
    ],
)
def test_other_refusals_change_nothing(status: int, text: str) -> None:
    assert change_for(status, text) == ()
