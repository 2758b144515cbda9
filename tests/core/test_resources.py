import pytest

from loadchaos.core import resources
from loadchaos.core.errors import OptionError


@pytest.mark.parametrize(("wrong", "right"), [("smok", "smoke"), ("soak.yaml", "soak_nightly"), ("mtp", "mtp_mm")])
def test_profile_error_suggests_a_similar_name(wrong: str, right: str) -> None:
    with pytest.raises(OptionError, match=f"did you mean {right}"):
        resources.profile(wrong)


def test_profile_error_suggests_no_unrelated_name() -> None:
    with pytest.raises(OptionError) as error:
        resources.profile("nope.yaml")
    assert "did you mean" not in str(error.value)
