import textwrap
from collections.abc import Callable
from pathlib import Path

from loadchaos.profile.profile import Profile

PAGE = Path(__file__).parent.parent.parent / "docs/attacks.md"


def test_attacks_page_examples_are_valid(write: Callable[..., Profile], good: str) -> None:
    block = PAGE.read_text().split("\n\n    attacks:\n", 1)[1].split("\n\n", 1)[0]
    attacks = write(good + "attacks:\n" + textwrap.indent(textwrap.dedent(block), "  ") + "\n").attacks
    assert [a.operation for a in attacks] == [
        "reset_mm_cache",
        "sleep",
        "sigkill_engine_core",
        "sigstop_worker",
        "engine_encoder_pop_draft",
        "host_cpu",
        "network_latency",
        "reset_prefix_cache",
        "reset_encoder_cache",
        "reset_mm_cache",
        "wake_up",
    ]
