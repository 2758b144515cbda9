"""Logs of servers that crashed, with the failures that they name."""

from pathlib import Path

CRASHES = Path(__file__).parent / "crashes"


def log_text(path: Path) -> str:
    """The log itself, without its head of expectations."""
    return path.read_text("utf-8").partition("\n\n")[2]
