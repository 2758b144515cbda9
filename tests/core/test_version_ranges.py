import pytest

from loadchaos.core.version_ranges import clauses, order, within


def test_versions_are_ordered_by_release() -> None:
    texts = ["0.8.5.dev3", "0.8.5rc1", "0.8.5", "0.8.5.post1", "0.9", "0.10.2", "v0.18.0+cpu", "0.18.1", "1.0"]
    found = [order(t) for t in texts]
    assert None not in found
    assert found == sorted(found, key=lambda o: o or ((), 0, 0))
    assert order("0.18") == order("v0.18.0+cpu") == order("0.18.0")
    assert order("b6987") == order("6987")
    assert order("main") is order("") is None


@pytest.mark.parametrize(
    ("spec", "version", "inside"),
    [
        (">=0.11.0, <0.27.1", "0.18.0", True),
        (">=0.11.0, <0.27.1", "0.27.1", False),
        (">=0.11.0, <0.27.1", "0.27.1rc1", True),
        (">=0.11.0, <0.27.1", "0.10.2", False),
        ("<=0.13.0", "0.13.0", True),
        ("some", "0.13.0", None),
        ("<=0.13.0", "main", None),
    ],
)
def test_version_ranges_are_parsed(spec: str, version: str, inside: bool | None) -> None:
    assert within(spec, version) is inside


@pytest.mark.parametrize("text", ["", "all", "0.32.0", ">=0.11.0 <0.27.1", ">=", "<=0.13.0,"])
def test_text_that_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a range such as"):
        clauses(text)
