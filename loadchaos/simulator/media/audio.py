"""Audio in a prompt, counted in tokens: WAV files of 25 tokens a second."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import wave

from loadchaos.simulator.media.processor import AUDIO, DecodedImage, ImageError

_TOKENS_A_SECOND = 25


def read(url: str) -> DecodedImage:
    """Return an audio file's placeholder in a prompt. Its width is its seconds. Raises ImageError for another or a
    broken file.
    """
    try:
        return of_bytes(base64.b64decode(url.removeprefix(AUDIO).partition(",")[2], validate=True))
    except binascii.Error as error:
        raise ImageError("Invalid base64-encoded audio") from error


def of_bytes(data: bytes) -> DecodedImage:
    """Return the placeholder of a WAV file. Raises ImageError for another or a broken file."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            seconds = file.getnframes() / file.getframerate()
    except (wave.Error, EOFError, ZeroDivisionError) as error:
        raise ImageError("Invalid or unsupported audio file.") from error
    tokens = max(1, round(seconds * _TOKENS_A_SECOND))
    return DecodedImage(hashlib.blake2b(data, digest_size=32).hexdigest(), round(seconds), 1, tokens)
