"""A run in GitHub Actions: annotations and a summary that say what broke, and nothing of the server's becomes a command."""

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadchaos.cli import _without
from loadchaos.errors import OptionError
from loadchaos.tell import github, notify

Verdict = dict[str, Any]


def test_each_failure_and_broken_expectation_is_one_line_worst_first(verdict: Verdict) -> None:
    lines = github.annotate(verdict, "profiles/mtp_mm.yaml")
    assert lines[0].startswith(
        "::error file=profiles/mtp_mm.yaml,line=1,title=loadchaos%3A encoder_cache_miss (engine death)::"
    )
    assert "vllm/issues/38551" in lines[0]
    assert any("engine_deaths" in x and x.startswith("::error") for x in lines)
    assert any("load delivered" in x and x.startswith("::warning") for x in lines)
    assert all("\n" not in x and re.match(r"::(error|warning) [^:]*::", x) for x in lines)


def test_an_accepted_failure_is_a_warning(verdict: Verdict) -> None:
    verdict["failures"] = [{**verdict["failures"][1], "accepted": True}]
    assert github.annotate(verdict, "p.yaml")[0].startswith("::warning ")


def test_a_log_line_that_looks_like_a_command_is_none() -> None:
    first, *middle, last = github.fenced("x\n::add-mask::secret\ny").splitlines()
    token = first.removeprefix("::stop-commands::")
    assert first != token
    assert last == f"::{token}::"
    assert middle == ["x", "::add-mask::secret", "y"]
    assert github.fenced("x") != github.fenced("x"), "a server must not be able to guess it"


def test_the_summary_is_appended_and_tells_what_a_person_asks(
    verdict: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert not github.summarise(verdict, tmp_path)
    page = tmp_path / "summary.md"
    page.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    assert github.summarise(verdict, tmp_path)
    text = page.read_text()
    assert text.startswith("before\n## :x: FAIL mtp\\_mm")
    for part in (
        "### encoder\\_cache\\_miss (engine death)",
        "| images |",
        "1 engine death in 386 exposures",
        "**FAIL**",
    ):
        assert part in text, part


def test_hostile_text_in_the_summary_stays_text(verdict: Verdict, tmp_path: Path) -> None:
    for failure in verdict["failures"]:
        failure["title"] = "<img src=x> [a](http://evil.example) @somebody | `x`"
        failure["evidence"]["text"] = "a ``` b <script>"
    text = github.summary(verdict, tmp_path)
    assert "<img" not in text
    assert not re.search(r"(?<!\\)\]\(", text), "a link"
    assert "@somebody" not in text
    outside_of_code = re.sub(r"(`+) .*? \1(?!`)", "", text)
    assert "<script" not in outside_of_code


# -- notifications -------------------------------------------------------------------------------------------------


class Hook(HTTPServer):
    """A webhook that keeps what it gets and answers `status`."""

    status = 200
    got: list[dict[str, Any]]


@pytest.fixture
def hook() -> Iterator[Hook]:
    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server.got.append(orjson.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(server.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = Hook(("127.0.0.1", 0), Answer)
    server.got = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_webhook_gets_the_verdict(hook: Hook, verdict: Verdict, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{hook.server_port}/x"
    assert notify.send(url, notify.message(verdict, tmp_path / "mtp_mm-1")) == ""
    (got,) = hook.got
    assert got["text"].startswith("loadchaos: FAIL mtp_mm: ")
    assert (got["verdict"], got["exit_code"], got["run"]) == ("fail", 1, "mtp_mm-1")
    assert {f["id"] for f in got["failures"]} == {"connection_reset", "encoder_cache_miss"}


def test_a_notification_that_fails_is_said_without_its_address(hook: Hook, verdict: Verdict, tmp_path: Path) -> None:
    hook.status = 403
    told = notify.message(verdict, tmp_path)
    assert notify.send(f"http://127.0.0.1:{hook.server_port}/secret", told) == "the notification was refused: 403"
    for address in ("http://127.0.0.1:1/secret", "http://[/secret", "nobody://secret"):
        trouble = notify.send(address, told)
        assert "not sent" in trouble
        assert "secret" not in trouble


def test_an_address_may_stand_in_a_variable_and_is_never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "https://hooks.example/T1")
    assert notify.address("env:HOOK") == "https://hooks.example/T1"
    with pytest.raises(OptionError, match="not set"):
        notify.address("env:NO_SUCH_VARIABLE")
    argv = ["loadchaos", "run", "p", "--notify=https://hooks.example/T1", "--notify", "env:HOOK"]
    assert _without(argv, ["https://hooks.example/T1", "env:HOOK"]) == (
        "loadchaos", "run", "p", "--notify=***", "--notify", "env:HOOK",
    )  # fmt: skip
