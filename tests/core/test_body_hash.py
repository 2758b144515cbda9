import zlib

import pytest

from loadchaos.core.body_hash import body_hash, is_sent_body

BODY = b'{"model": "m", "messages": []}'


def test_body_hash_has_the_form_of_a_trace() -> None:
    assert body_hash(b"") == "2d06800538d394c2"  # XXH3_64bits of an empty input, seed 0 (xxHash's own test vector)
    assert len(body_hash(BODY)) == 16


@pytest.mark.parametrize(
    ("length", "digest", "crc", "same"),
    [
        (len(BODY), body_hash(BODY), None, True),
        (len(BODY), body_hash(BODY + b" "), None, False),
        (len(BODY) + 1, body_hash(BODY), None, False),
        (None, None, None, True),
        (len(BODY), "of an earlier version", zlib.crc32(BODY), True),
        (len(BODY), body_hash(BODY), zlib.crc32(BODY) ^ 1, False),
    ],
)
def test_body_is_compared_by_hash_and_in_ledgers_of_earlier_versions_by_crc(
    length: int | None, digest: str | None, crc: int | None, same: bool
) -> None:
    assert is_sent_body(BODY, length, digest, crc) is same
