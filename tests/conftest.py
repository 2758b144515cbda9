"""Options of the whole suite, and its last line: what was skipped, and why.

`--update` rewrites golden files, and the diff is the review.
"""

from collections import Counter

import hypothesis
import pytest

# A busy machine is not a fault of the code: how long one example takes is measured in bench/, never asserted.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

_skipped: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite golden headers of tests/crashes")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1


def pytest_unconfigure() -> None:
    """After pytest's own summary: a suite that skipped is not one that passed, so nobody should have to look for it."""
    reasons = "; ".join(f"{n} x {reason}" for reason, n in _skipped.most_common())
    print(f"skipped: {_skipped.total()}" + (f" ({reasons})" if reasons else ""))
