"""Golden logs: each log in tests/crashes matches its header.

`pytest --update` rewrites headers.

A header is `SOURCE: where it is from`, then one `FAILURE: id | severity | process | line | title` each, then a blank line.
"""

from pathlib import Path

import pytest

from loadchaos.analysis.classify.classifier import classify_text
from loadchaos.analysis.failure import Failure
from tests.crash_logs import CRASHES, log_text

LOGS = sorted(CRASHES.rglob("*.log"))


def read(path: Path) -> tuple[str, list[str], str]:
    """SOURCE line, FAILURE lines, the raw log."""
    head, _, body = path.read_text("utf-8").partition("\n\n")
    lines = head.splitlines()
    return lines[0], lines[1:], body


def expectation(failure: Failure) -> str:
    line = failure.evidence.line
    return f"FAILURE: {failure.id} | {failure.severity} | {failure.process or '-'} | {line} | {failure.title}"


@pytest.mark.parametrize("path", LOGS, ids=lambda p: str(p.relative_to(CRASHES)))
def test_classifier_matches_the_header_of_each_log(path: Path, request: pytest.FixtureRequest) -> None:
    source, expected, body = read(path)
    found = [expectation(f) for f in classify_text(body)]
    if request.config.getoption("--update"):
        path.write_text("\n".join([source, *found]) + "\n\n" + body, "utf-8")
        return
    assert source.startswith("SOURCE: ")
    assert found == expected


@pytest.mark.parametrize("path", sorted((CRASHES / "benign").glob("*.log")), ids=lambda p: p.stem)
def test_classifier_finds_no_failure_in_benign_logs(path: Path) -> None:
    assert [expectation(f) for f in classify_text(read(path)[2])] == []


def test_golden_logs_are_small() -> None:
    assert [p for p in LOGS if p.stat().st_size > 60_000] == []


def test_cut_tool_call_is_reported_only_when_it_made_a_500() -> None:
    log = log_text(CRASHES / "benign" / "vllm-tool-call-cut-by-length.log")
    assert classify_text(log) == []
    unhandled = log.replace("Error in extracting tool call from response.", "Exception in ASGI application")
    assert {f.id for f in classify_text(unhandled)} & {"tool_parser_failed", "tool_call_not_json"}


@pytest.mark.parametrize("after_refusal", [False, True])
def test_stream_that_ends_with_a_bug_is_a_failure(after_refusal: bool) -> None:
    """Only a traceback that is a refusal alone is none."""
    begin = "(APIServer pid=15386) ERROR 11-23 06:51:12 [serving.py:906] "
    lines = read(CRASHES / "benign" / "vllm-stream-refused-0.29.log")[2].splitlines()
    last = next(n for n, line in enumerate(lines) if "vllm.exceptions.VLLMValidationError:" in line)
    traceback = [line for line in lines[:last] if "serving.py:906]" in line and "Error in chat" not in line]
    bug = f"{begin}IndexError: list index out of range"
    if after_refusal:
        between = [begin, f"{begin}During handling of the above exception, another exception occurred:", begin]
        lines[last + 1 : last + 1] = [*between, *traceback, bug]
    else:
        lines[last] = bug
    assert [f.id for f in classify_text("\n".join(lines))] == ["stream_generator_error"]
