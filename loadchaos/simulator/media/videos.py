"""Videos of a Qwen3-VL server, counted in tokens. JPEG frames in a row (`video/jpeg`) or an AVI file; two frames make a
patch.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import struct

from loadchaos.simulator.engine import tokenizer
from loadchaos.simulator.media.processor import VIDEO, DecodedImage, ImageError, Processor

_FRAMES_A_PATCH = 2


def read(url: str, processor: Processor) -> DecodedImage:
    """Return a video's placeholder in a prompt. Raises ImageError with the messages of vLLM's decoders."""
    head, _, payload = url.partition(",")
    try:
        if head == f"{VIDEO}jpeg;base64":
            parts = [base64.b64decode(part, validate=True) for part in payload.split(",")]
            data, frames, fps = b"".join(parts), parts, 1.0
        else:
            data = base64.b64decode(payload, validate=True)
            frames, fps = _of_avi(data)
    except binascii.Error as error:
        raise ImageError("Non-base64 digit found") from error
    width, height = _size(frames)
    each = processor.tokens(width, height)
    patches = -(-len(frames) // _FRAMES_A_PATCH)
    tokens = sum(each + 2 + _stamp(n, fps) for n in range(patches)) - 2  # the prompt has the first two marks itself
    return DecodedImage(hashlib.blake2b(data, digest_size=32).hexdigest(), width, height, tokens)


def _stamp(patch: int, fps: float) -> int:
    first = patch * _FRAMES_A_PATCH / fps
    return len(tokenizer.encode(f"<{first + 0.5 / fps:.1f} seconds>"))


def _of_avi(data: bytes) -> tuple[list[bytes], float]:
    movie = data.find(b"movi")
    if data[:4] != b"RIFF" or movie < 0 or b"MJPG" not in data[:movie]:
        raise ImageError("Could not open video stream")
    fps = 1e6 / max(1, struct.unpack_from("<I", data, data.index(b"avih") + 8)[0])
    frames, at = [], movie + 4
    while data[at : at + 4] == b"00dc":
        size = struct.unpack_from("<I", data, at + 4)[0]
        frames.append(data[at + 8 : at + 8 + size])
        at += 8 + size + size % 2
    return frames, fps


def _size(frames: list[bytes]) -> tuple[int, int]:
    from PIL import Image  # as with images: only where some are sent

    sizes = []
    for frame in frames:
        try:
            with Image.open(io.BytesIO(frame)) as picture:
                picture.load()
                sizes.append(picture.size)
        except (OSError, SyntaxError, ValueError) as error:
            raise ImageError("Failed to load image: cannot identify image file <_io.BytesIO object>") from error
    if not sizes:
        raise ImageError("Expected reading 1 frames, but only loaded 0 frames from video.")
    return sizes[0]
