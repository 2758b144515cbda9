import pytest

from loadchaos.campaigns.replay.estimate import TryCount, against_line, fixed_confidence, result_line


@pytest.mark.parametrize(
    ("reproduced", "tries", "line"),
    [
        (4, 5, "REPRODUCED 4 of 5 (p = 0.80, 95 % CI 0.38 to 0.96)"),
        (0, 9, "NOT REPRODUCED 0 of 9 (p < 0.28 at 95 %)"),
        (0, 0, "UNKNOWN: no try proved anything"),
    ],
)
def test_result_line(reproduced: int, tries: int, line: str) -> None:
    assert result_line(reproduced, tries) == line


@pytest.mark.parametrize(("results", "tries"), [([True, True], 2), ([False] * 5, 5), ([False, True, False, True], 4)])
def test_try_count_auto_stops_when_the_test_decides(results: list[bool], tries: int) -> None:
    count = TryCount(None)
    for n, result in enumerate(results, 1):
        assert not count.done
        count.add(result)
        assert count.done == (n == tries)


def test_try_count_auto_stops_after_twenty() -> None:
    count = TryCount(None)
    results = [True] + [False] * 3  # a balance that decides nothing
    done = []
    for n in range(20):
        count.add(results[n % 4])
        done.append(count.done)
    assert done[-1]


def test_try_count_of_a_number_ends_there() -> None:
    count = TryCount(3)
    assert count.left() == (3, True)
    for _ in range(3):
        assert not count.done
        count.add(reproduced=True)
    assert count.done


def test_fixed_confidence_grows_with_the_tries_and_with_p() -> None:
    assert fixed_confidence(3, [True, True]) == pytest.approx(0.95)
    assert fixed_confidence(3, [True, False, True]) < 0.9
    assert fixed_confidence(6, [True, True]) > fixed_confidence(3, [True, True])


@pytest.mark.parametrize(
    ("reproduced", "tries", "begin"),
    [
        (0, 3, "FIXED 0 of 3 (2 of 2 before; confidence 95 %)"),
        (1, 2, "STILL FAILS 1 of 2"),
        (0, 1, "NOT PROVED FIXED"),
        (0, 0, "UNKNOWN"),
    ],
)
def test_against_line(reproduced: int, tries: int, begin: str) -> None:
    assert against_line(reproduced, tries, [True, True]).startswith(begin)
