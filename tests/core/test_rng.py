from collections import Counter

from loadchaos.core.rng import Rng, hash64, hash_prefix, hash_step, text_seed


def test_hash64_of_a_seed_never_changes() -> None:
    assert hash64(1, 2, 3) == hash64(1, 2, 3) != hash64(1, 3, 2)
    assert text_seed("images") == 3760176746


def test_rng_between_reaches_both_ends_evenly() -> None:
    draws = Rng(5)
    counts = Counter(draws.between(1, 4) for _ in range(40_000))
    assert set(counts) == {1, 2, 3, 4}
    assert max(counts.values()) - min(counts.values()) < 600


def test_hash_step_of_a_prefix_equals_hash64() -> None:
    assert [hash_step(hash_prefix(7, 2), n) for n in range(5)] == [hash64(7, 2, n) for n in range(5)]
