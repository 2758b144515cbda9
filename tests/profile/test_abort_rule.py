from collections.abc import Callable

import pytest

from loadchaos.core.errors import ProfileError
from loadchaos.profile.abort_rule import AbortRule, parse
from loadchaos.profile.profile import Profile

PROFILE = """
name: t
abort_when: {rule}
traffic: [{{name: text, payload: {{text: {{tokens: 32}}}}}}]
load: [{{users: 1, for: 10s}}]
"""


def test_abort_rule_is_parsed() -> None:
    assert parse("error_rate > 50% for 10s") == AbortRule("error_rate > 50% for 10s", 0.5, False, 10.0)
    assert parse(" error_rate >= 0.9 for 1m30s ") == AbortRule("error_rate >= 0.9 for 1m30s", 0.9, True, 90.0)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("error_rate > 50%", "error_rate > share for duration"),
        ("errors > 50% for 10s", "only error_rate"),
        ("error_rate < 50% for 10s", "> or >="),
        ("error_rate > 50% for 10", "unit"),
        ("error_rate > 50% for 0s", "above 0"),
        ("error_rate > 150% for 10s", "150%"),
    ],
)
def test_abort_rule_mistakes_name_file_line_and_key(write: Callable[..., Profile], rule: str, said: str) -> None:
    with pytest.raises(ProfileError) as caught:
        write(PROFILE.format(rule=f'"{rule}"'))
    text = str(caught.value)
    assert ":3" in text
    assert "abort_when" in text
    assert said in text


def test_abort_rule_is_kept_in_the_profile(write: Callable[..., Profile]) -> None:
    profile = write(PROFILE.format(rule="error_rate > 50% for 10s"))
    assert profile.abort_when == "error_rate > 50% for 10s"
    assert profile.to_json()["abort_when"] == profile.abort_when
