"""The command line answers at once: what a command needs is imported when it runs."""

import subprocess
import sys

from click.testing import CliRunner

from loadchaos.cli import main

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


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom loadchaos.cli import main\n"
        "result = CliRunner().invoke(main, ['--help'])\nassert result.exit_code == 0, result.output\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_help_cuts_no_command_short() -> None:
    told = CliRunner().invoke(main, ["--help"], terminal_width=80).output.partition("Commands:")[2]
    assert "..." not in told
    assert all(f"  {name} " in told for name in main.commands)


def test_help_says_the_exit_codes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadchaos", "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    for code in ("0 pass", "1 fail", "3 unknown", "130 Ctrl-C"):
        assert code in done.stdout
