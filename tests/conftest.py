"""Options of the whole suite: `--update` rewrites golden files, and the diff is the review."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite golden headers of tests/crashes")
