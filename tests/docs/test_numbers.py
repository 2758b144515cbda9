"""Numbers that a page tells in a sentence are those of the code. Tables of numbers are generated (docs/tables.py)."""

import pytest

from docs.tables import FOLDER
from loadchaos.analysis.capacity import findings
from loadchaos.campaigns.capacity import search
from loadchaos.cli import capacity
from loadchaos.core.model import DEFAULT_EXPECT
from loadchaos.load import disk_space
from loadchaos.load.worker.worker_plan import FIRST_WAIT_S, SHORTEST_WAIT_S
from loadchaos.profile.client_limits import ClientLimits
from loadchaos.report.html import trend

LIMITS = ClientLimits()
NUMBERS = {2: "two", 3: "three", 5: "five", 7: "seven"}
FRACTIONS = {9: "a ninth", 20: "a twentieth"}


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("profile.md", f"`first_byte` ({LIMITS.first_byte:g}s)"),
        ("profile.md", f"`between_bytes` ({LIMITS.between_bytes:g}s)"),
        ("profile.md", f"`total` ({LIMITS.total / 60:g}m)"),
        ("profile.md", f"at least {SHORTEST_WAIT_S:g} s; without one after {FIRST_WAIT_S:g} s"),
        ("profile.md", f"`retry_idle` ({LIMITS.retry_idle:g}s)"),
        ("profile.md", f"`backoff` ({1000 * LIMITS.backoff:g}ms)"),
        ("profile.md", f"`backoff_max` ({LIMITS.backoff_max:g}s)"),
        ("profile.md", f"default: {', '.join(f'`{rule}`' for rule in DEFAULT_EXPECT)};"),
        ("explanation/soak.md", f"of the last {NUMBERS[trend._BASELINE_RUNS]} good runs"),
        ("explanation/soak.md", f"The band is {NUMBERS[int(trend._WIDTH)]} times their spread"),
        ("explanation/soak.md", f"of the last {trend._MAD_RUNS} good runs) and at least {100 * trend._FLOOR:g} %"),
        ("explanation/soak.md", f"fewer than {NUMBERS[trend._FEWEST]} good runs"),
        ("explanation/soak.md", f"{disk_space._LOW_BYTES >> 30} GB, or {FRACTIONS[round(1 / disk_space._LOW_SHARE)]} of"),
        ("how-to/capacity.md", f"50 % to {100 * capacity._MOST_GOAL:g} %"),
        ("how-to/capacity.md", f"`--max` is at least {FRACTIONS[round(1 / (1 / capacity._ROOM - 1))]} above it"),
        ("how-to/capacity.md", f"and {100 * search._MODEL_ERROR:g} % for the limit of heavy traffic"),
        ("how-to/capacity.md", f"less than {100 * findings._SERVED:g} % of what was due"),
    ],
)  # fmt: skip
def test_number_of_a_page_is_that_of_the_code(page: str, text: str) -> None:
    assert text in " ".join((FOLDER / page).read_text().split())
