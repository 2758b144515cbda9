import json
from pathlib import Path

import pytest

from loadchaos.analysis.classify.classifier import classify_text
from loadchaos.core.redact import Redactor
from loadchaos.load.registry import full_registry
from loadchaos.profile.profile import load
from loadchaos.run.prompt_texts import error_passages, passages
from tests.analysis.classify.test_quoted_prompts import HOSTILE

FORMS = {
    "repr": "2026-11-22 10:00:01 gateway | user said {0!r} to model x",
    "json": '{{"ts": "2026-11-22", "seen": {1}, "model": "x"}}',
    "json in json": '{{"ts": "2026-11-22", "body": {2}}}',
}
OWN = "(EngineCore pid=8) ERROR 11-22 10:00:00 [core.py:9] "
DEATHS = [
    OWN + "RuntimeError: CUDA error: an illegal memory access was encountered",
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the cause.",
    "Engine core proc EngineCore_0 died unexpectedly, shutting down client.",
]


def quoted(form: str, prompt: str) -> str:
    body = json.dumps({"messages": [{"role": "user", "content": prompt}]})
    return form.format(prompt, json.dumps(prompt), json.dumps(body))


def redactor_for(prompt: str) -> Redactor:
    redactor = Redactor()
    redactor.add_prompts(passages(prompt))
    return redactor


@pytest.mark.parametrize("prompt", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_quoted_prompt_of_unknown_form_is_no_failure(form: str, prompt: str) -> None:
    for text in (prompt, f"Please explain this:\n{prompt}\nWhat is it?"):
        log = f"INFO: started\n{quoted(form, text)}\nINFO: next"
        assert classify_text(redactor_for(text).text(log)) == []


@pytest.mark.parametrize("death", DEATHS)
def test_servers_own_line_counts_though_a_prompt_holds_it(death: str) -> None:
    redactor = redactor_for(f"{death}\n{death}")
    log = f"INFO: started\n{death}\n"
    assert redactor.text(log) == log
    assert redactor.text(f"INFO: started\n{OWN}{death}\n").endswith(f"{OWN}{death}\n")


def test_error_texts_of_a_requests_file_are_found(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": f"What is this?\n{HOSTILE[1]}"}]}
    (tmp_path / "requests.jsonl").write_text(json.dumps(body) + "\n")
    (tmp_path / "profile.yaml").write_text(
        "name: x\nload: [{users: 1, for: 1s}]\ntraffic: [{name: a, payload: {requests: {file: requests.jsonl}}}]\n"
    )
    found = error_passages(load(tmp_path / "profile.yaml", full_registry()))
    assert any(passage.startswith("\\nEngineCore encountered") for passage in found)


def test_plain_prompts_have_no_error_texts() -> None:
    assert list(passages("Tell me about errors in Python, and how CUDA memory works.\nThanks!")) == []
