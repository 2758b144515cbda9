from pathlib import Path

from docs.commands_page import page


def test_cli_page_is_current() -> None:
    written = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == page().rstrip("\n") + "\n", "run `make docs`"
