"""Hash a request body, and recognise the body that was sent. XXH3 with 64 bits: it recognises equal bodies and finds
errors, and protects from no attacker. A body of 500 kB takes it 8 us, where SHA-1 and CRC-32 together took 350 us.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import xxhash

from loadchaos.core.whole_file import write_whole

body_hash = xxhash.xxh3_64_hexdigest
"""Return the hash of a body as 16 hexadecimal digits."""


def is_sent_body(body: bytes, length: int | None, digest: str | None, crc: int | None) -> bool:
    """Compare a body that was built again with the one that was sent, as the ledger or a trace describes it. None is
    unknown. Only ledgers and traces of earlier versions have a CRC-32; their digest is a SHA-1 and is not compared.
    """
    if length not in (None, len(body)):
        return False
    if crc is not None:
        return zlib.crc32(body) == crc
    return digest in (None, body_hash(body))


def store_body(folder: Path, body: bytes) -> str:
    """Write a body once. Returns its content address."""
    name = body_hash(body)
    file = folder / f"{name}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, body)
    return name
