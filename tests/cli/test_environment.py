import socket
from pathlib import Path
from typing import Any

import pytest

from loadchaos.cli.environment import from_openai_variables, key_variable, words_from_environment
from loadchaos.cli.run import run
from tests.invoking import output_of

BASE = "http://127.0.0.1:8000/v1"


@pytest.mark.parametrize(
    ("base_url", "target", "used"),
    [
        (BASE, "http://127.0.0.1:8000", True),
        (BASE, "127.0.0.1:8000", True),
        (BASE, "http://127.0.0.1:8001", False),
        (BASE, "https://127.0.0.1:8000", False),
        (BASE, "http://other:8000", False),
        (None, "https://api.openai.com", True),
        (None, "http://127.0.0.1:8000", False),
        ("https://gpt.example", "https://gpt.example:443/v1", True),
        (BASE, "http://127.0.0.1:99999999", False),
        (BASE, None, False),
    ],
)
def test_openai_key_is_sent_to_its_own_host_only(
    base_url: str | None, target: str | None, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    if base_url is not None:
        monkeypatch.setenv("OPENAI_BASE_URL", base_url)
    assert key_variable(target, []) == ("OPENAI_API_KEY" if used else None)
    assert key_variable(target, ["authorization=env:MINE"]) is None


@pytest.mark.parametrize(
    ("admin_url", "replicas", "refused"),
    [
        (None, [], None),
        ("http://127.0.0.1:8000/admin", ["127.0.0.1:8000"], None),
        ("http://127.0.0.1:9000", [], "--admin-url"),
        (None, ["http://other:8000"], "a replica of the profile"),
    ],
)
def test_openai_key_is_not_used_where_another_host_would_get_it(
    admin_url: str | None,
    replicas: list[str],
    refused: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", BASE)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    options: dict[str, Any] = {"target": BASE, "api_key_env": None, "headers": (), "admin_url": admin_url}
    options |= from_openai_variables(options, needs_target=True, replicas=replicas)
    assert options["api_key_env"] == ("OPENAI_API_KEY" if refused is None else None)
    note = "is sent to the target" if refused is None else f"is not used: {refused} is another host; give --api-key-env"
    assert note in capsys.readouterr().err


def test_openai_base_url_is_used_only_where_no_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", BASE)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def target(given: str | None, *, needs: bool) -> Any:
        options: dict[str, Any] = {"target": given, "api_key_env": None, "headers": (), "admin_url": None}
        options |= from_openai_variables(options, needs_target=needs)
        return options["target"]

    assert target(None, needs=True) == BASE
    assert target("http://x:1", needs=True) == "http://x:1"
    assert target(None, needs=False) is None, "the profile has a server of its own"


def test_every_option_has_a_variable_and_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADCHAOS_RUN_RATE", "7")
    monkeypatch.setenv("LOADCHAOS_RUN_PRINT_PROFILE", "1")
    monkeypatch.setenv("LOADCHAOS_RUN_AUTHORIZE", "a:1 b:2")
    assert "rate: 7/s" in output_of("run", "--num-prompts", "5")
    context = run.make_context("run", ["--num-prompts", "5"], auto_envvar_prefix="LOADCHAOS_RUN")
    assert set(words_from_environment(context)) == {
        "--authorize=a:1", "--authorize=b:2", "--request-rate=7", "--print-profile",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        ("completions", "--endpoint completions: traffic of mtp_mm cannot be sent there:"),
        ("nope", "--endpoint nope: chat, completions"),
    ],
)
def test_endpoint_names_the_traffic_that_cannot_move(endpoint: str, text: str) -> None:
    printed = output_of("run", "mtp_mm", "--endpoint", endpoint, "--embedded", code=2)
    assert text in printed
    assert endpoint == "nope" or "traffic.0.payload.images: the endpoint completions cannot carry images" in printed


def test_variables_have_the_long_names_of_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADCHAOS_RUN_SET", "load.0.rate=9/s")
    monkeypatch.setenv("LOADCHAOS_RUN_REQUEST_RATE", "7")
    context = run.make_context("run", ["--num-prompts", "5"], auto_envvar_prefix="LOADCHAOS_RUN")
    assert context.params["overrides"] == ("load.0.rate=9/s",)
    assert words_from_environment(context) == ["--request-rate=7", "--set=load.0.rate=9/s"]
    monkeypatch.setenv("LOADCHAOS_CAPACITY_SLO", "tttf=2s")
    assert "--slo tttf: one of ttft" in output_of("capacity", "smoke", "--target", "http://127.0.0.1:9", code=2)


@pytest.mark.parametrize("value", ["1", "v0.1.0"])
def test_a_variable_with_a_version_does_not_replace_the_command(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADCHAOS_VERSION", value)
    monkeypatch.setenv("LOADCHAOS_HELP", value)
    monkeypatch.setenv("LOADCHAOS_RUN_HELP", value)
    assert "rate: 7/s" in output_of("run", "--rate", "7", "--num-prompts", "5", "--print-profile")


def test_a_variable_may_leave_a_flag_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADCHAOS_RUN_SHARED", "false")
    context = run.make_context("run", ["--num-prompts", "5"], auto_envvar_prefix="LOADCHAOS_RUN")
    assert words_from_environment(context) == []


def test_a_proxy_that_is_not_used_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with socket.socket() as bound:  # it does not listen
        bound.bind(("127.0.0.2", 0))
        port = bound.getsockname()[1]
        load = ("--users", "1", "--num-prompts", "2", "--wait-ready", "1s", "--no-live")
        output_of("run", "--target", f"http://127.0.0.2:{port}", *load, code=4)
    assert capfd.readouterr().err.count("note: HTTP_PROXY is set and not used") == 1
