"""Audio: short WAV files, unique, repeated or nearly equal, as images are.

A file is a quiet tone behind a burst of noise. The noise is made of the file's name, so that no other file has it.
"""

from __future__ import annotations

import base64
import functools
import math
import random
import struct
from array import array
from typing import Annotated, ClassVar

from loadchaos.core import rng as draws
from loadchaos.core.model import Facts
from loadchaos.core.unit_fields import IntRange, at_least
from loadchaos.core.units import Range
from loadchaos.load.payloads import reuse
from loadchaos.load.wire.request import Request
from loadchaos.profile.request_options import RequestContent

RATE = 16_000
_BURST = 1024
_TONES = 8
_LOUD, _QUIET = 8000, 3000
_PART_BEGIN = b'{"type":"input_audio","input_audio":{"data":"'
_PART_END = b'","format":"wav"}},'
_LONGEST_S = 600


class Options(reuse.NearlyReused):
    """Number of audio files, and `seconds` of each.

    `unique`, `near_duplicates` and `reuse_distance` work as for images: a file that is not new repeats one of that many
    requests earlier, to the byte; a near duplicate differs in one sample. The endpoint `transcriptions` takes one file.
    """

    ORDER: ClassVar[int] = 2
    noun: ClassVar[str] = "audio file"
    seconds: Annotated[IntRange, at_least(1, f"an audio file has 1 to {_LONGEST_S} seconds here", most=_LONGEST_S)] = (
        Range(2, 2)
    )

    def describe(self) -> str:
        what = f"{self.counted} of {self.seconds} s"
        if self.new >= 1:
            return f"{what}, always new"
        near = f", {self.near_duplicates * 100:g}% nearly equal to an earlier one" if self.near_duplicates else ""
        return f"{what}, {self.new * 100:g}% new{near}, the others repeated from {self.reuse_distance} requests earlier"

    def per_request(self) -> RequestContent:
        return RequestContent(audio_files=self.count.mean, audio_s=self.count.mean * self.seconds.mean)

    def add(self, request: Request, facts: Facts, rng: draws.Rng) -> None:  # noqa: ARG002 - files are named by run, not drawn
        base = reuse.base_of(request.step.run_seed, request.step.phase, request.step.traffic, 13)
        for slot in range(self.count_of(base, request.step.ordinal)):
            first = self.first_use(base, request.step.ordinal, slot)
            low, high = self.seconds.low, self.seconds.high
            seconds = low + draws.hash64(base, 9, *first[:2]) % (high - low + 1)
            file = wav(seconds, reuse.identity(base, first), first.variation)
            request.audio += 1
            request.audio_files.append(file)
            request.parts += (_PART_BEGIN, base64.b64encode(file), _PART_END)
            if self.new < 1:
                reuse.note_name(request, base, first)
            request.length_known = False


def wav(seconds: int, identity: bytes, variation: int) -> bytes:
    """Make a WAV file: 16 kHz, one channel, 16 bits. Variations of an identity differ in one sample."""
    samples = bytearray(_tone(seconds, identity[-1] % _TONES))
    noise = array("h", (n % _LOUD for n in array("h", random.Random(identity).randbytes(2 * _BURST))))
    samples[: 2 * _BURST] = noise.tobytes()
    if variation:
        at = 2 * (variation % _BURST)
        (value,) = struct.unpack_from("<h", samples, at)
        struct.pack_into("<h", samples, at, _LOUD + 1 + variation // _BURST % 16_000 - value % 2)
    size = len(samples)
    head = struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16, b"data", size
    )
    return head + samples


@functools.lru_cache(maxsize=32)
def _tone(seconds: int, number: int) -> bytes:
    period = RATE // 10
    wave = array("h", (round(_QUIET * math.sin(2 * math.pi * (20 + 4 * number) * i / period)) for i in range(period)))
    return wave.tobytes() * (10 * seconds)
