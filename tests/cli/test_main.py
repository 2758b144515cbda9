import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from loadchaos.cli.main import main
from loadchaos.cli.run import _loaded, run_parameters

HEAVY = (
    "pydantic",
    "locust",
    "gevent",
    "httpx",
    "numpy",
    "PIL",
    "rich",
    "ruamel",
    "jinja2",
    "duckdb",
    "prometheus_client",
)


@pytest.mark.parametrize(
    ("argv", "given", "code"),
    [(["--help"], None, 0), (["classify"], "torch.OutOfMemoryError: CUDA out of memory.", 1)],
    ids=["help", "classify"],
)
def test_command_imports_nothing_heavy(argv: list[str], given: str | None, code: int) -> None:
    script = (
        "import sys\nfrom click.testing import CliRunner\nfrom loadchaos.cli.main import main\n"
        f"result = CliRunner().invoke(main, {argv!r}, input={given!r})\n"
        f"assert result.exit_code == {code}, result.output\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "spared"),
    [
        ("loadchaos.run.run", ["rich", "pygments", "jinja2"]),
        ("loadchaos.run.follower", ["httpx", "jinja2", "pygments"]),
    ],
)
def test_process_of_weeks_imports_nothing_that_it_does_not_need(module: str, spared: list[str]) -> None:
    script = f"import sys, {module}\nprint([m for m in {spared} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_help_shows_whole_sentences() -> None:
    output = CliRunner().invoke(main, ["--help-all"], terminal_width=80).output.partition("Test:")[2]
    assert "..." not in output
    assert all(f"  {name} " in output for name in main.commands)


@pytest.mark.parametrize(
    ("command", "daily", "rest"),
    [([], "Test:\n  probe ", "More:\n  init "), (["run"], "  --rate, ", "Sampling:\n  --temperature ")],
    ids=["commands", "run"],
)
def test_help_shows_daily_use_and_help_all_the_rest(command: list[str], daily: str, rest: str) -> None:
    short, whole = (CliRunner().invoke(main, [*command, word]).output for word in ("--help", "--help-all"))
    assert (daily in short, rest in short) == (True, False)
    assert (daily in whole, rest in whole) == (True, True)


def test_help_lists_the_exit_codes() -> None:
    output = CliRunner().invoke(main, ["--help"]).output
    for code in ("0 pass", "1 fail", "3 unknown", "130 Ctrl-C"):
        assert code in output


def test_completion_offers_shipped_profiles_and_files() -> None:
    def offered(typed: str) -> list[tuple[str, str]]:
        found = ShellComplete(main, {}, "loadchaos", "_LOADCHAOS_COMPLETE").get_completions(["run"], typed)
        return [(item.type, item.value) for item in found]

    assert offered("mtp") == [("plain", "mtp_mm")]
    assert offered("my/") == [("file", "my/")]


def test_runs_list_fits_a_narrow_terminal() -> None:
    from loadchaos.report.terminal.runs import RunEntry, text

    run = RunEntry(
        "runs/mtp_mm-20261121T181804Z", verdict="fail", lasted_s=18.5, requests=171,
        failures=["encoder_cache_miss", "connection_reset"], target="external lmdeploy 0.16 or later",
    )  # fmt: skip
    wide, narrow = text([run], Path("runs")).splitlines()[1], text([run], Path("runs"), 90).splitlines()[1]
    assert wide.endswith("0.16 or later  encoder_cache_miss, connection_reset")
    assert len(narrow) <= 90
    assert "external lmde…  encoder_cach" in narrow


@pytest.mark.parametrize("command", [["profiles"], ["explain", "smoke"], ["check", "smoke"]], ids=lambda c: c[0])
def test_profile_commands_print_json(command: list[str]) -> None:
    plain = CliRunner().invoke(main, command)
    output = json.loads(CliRunner().invoke(main, [*command, "--json"]).output)
    assert plain.exit_code == 0
    if command == ["profiles"]:
        assert [line.split()[0] for line in plain.output.splitlines()] == [one["name"] for one in output]
    else:
        assert output["profile"]["name"] == "smoke"
        assert output.get("words", plain.output.rstrip("\n")) == plain.output.rstrip("\n")


def test_check_starts_a_mistake_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("name: x\nload: [{users: 1, requests: 1}]\n")
    done = CliRunner().invoke(main, ["check", str(path)])
    assert (done.exit_code, done.stderr) == (2, f"{path}:1:1: traffic: is missing\n")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://127.0.0.1:8000/v1", "users-4-port-8000"),
        ("https://api.example.com", "users-4-api.example.com-443"),
        ("http://[fd00::1]:81", "users-4-fd00-1-81"),
    ],
)
def test_runs_without_a_profile_are_named_by_their_server(url: str, name: str) -> None:
    words = ["--target", url, "--concurrency", "4", "--num-prompts", "8"]
    loaded, _ = _loaded(None, (), run_parameters(words))
    assert loaded.name == name
    assert _loaded(None, ("name=mine",), run_parameters(words))[0].name == "mine"
