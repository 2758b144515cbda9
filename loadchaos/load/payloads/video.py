"""Short videos: JPEG frames in an AVI file, or as a list (`video/jpeg`)."""

from __future__ import annotations

import base64
import functools
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from loadchaos.core import rng as draws
from loadchaos.core.model import SENT_AS_TEXT, Facts
from loadchaos.core.unit_fields import ImageSize
from loadchaos.core.units import Size
from loadchaos.load.payloads import avi, jpeg, reuse
from loadchaos.load.wire.request import Request
from loadchaos.profile.request_options import RequestContent

_PART_BEGINS = {
    "avi": b'{"type":"video_url","video_url":{"url":"data:video/avi;base64,',
    "frames": b'{"type":"video_url","video_url":{"url":"data:video/jpeg;base64,',
}
_PART_END = b'"}},'
_MAX_PIXELS = 4_000_000


class Options(reuse.Reused):
    """Number of videos, and `frames` of `size` at `fps` in each.

    `format`: `avi` is Motion-JPEG, `frames` is `video/jpeg`, which vLLM and LMDeploy also take. `unique` and
    `reuse_distance` work as for images: a video that is not new repeats one of that many requests earlier, to the byte.
    """

    ORDER: ClassVar[int] = 1
    noun: ClassVar[str] = "video"
    frames: int = Field(default=8, gt=0, le=256)
    size: ImageSize = Size(256, 256)
    fps: int = Field(default=2, gt=0, le=60)
    format: Literal["avi", "frames"] = "avi"

    @field_validator("size")
    @classmethod
    def _size_allowed(cls, value: Size) -> Size:
        if value.width * value.height > _MAX_PIXELS:
            raise ValueError(f"a frame has at most 4 megapixels here (got {value})")
        return value

    def per_request(self) -> RequestContent:
        return RequestContent(videos=self.count.mean, frames=self.count.mean * self.frames)

    def kind(self) -> str:
        """Key of `Facts.video_tokens`. The properties that decide the prompt tokens."""
        return f"{self.size}x{self.frames} {self.format} {self.fps}/s"

    def video(self) -> tuple[str, bytes]:
        return self.kind(), _part(self, bytes(16))

    def describe(self) -> str:
        new = "always new" if self.unique >= 1 else f"{self.unique * 100:g}% new"
        return f"{self.counted} of {self.frames} frames of {self.size}, {new}"

    def add(self, request: Request, facts: Facts, rng: draws.Rng) -> None:  # noqa: ARG002 - videos are named by run, not drawn
        tokens = facts.video_tokens.get(self.kind())
        if facts.videos is False:
            request.notes.append(f"the model does not accept video: {SENT_AS_TEXT}")
            return
        base = reuse.base_of(request.step.run_seed, request.step.phase, request.step.traffic, 12)
        count = self.count_of(base, request.step.ordinal)
        for slot in range(count):
            first = self.first_use(base, request.step.ordinal, slot)
            request.parts.append(_part(self, reuse.identity(base, first)))
            if self.unique < 1:
                reuse.note_name(request, base, first[:2])
        if count:
            request.videos += count
            request.image_tokens += count * (tokens or 0)
            request.image_tokens_known = request.image_tokens_known and tokens is not None


@functools.lru_cache(maxsize=64)
def _part(options: Options, name: bytes) -> bytes:
    """Build one video as JSON bytes with a trailing comma. Its frames are near duplicates."""
    template = jpeg.template(options.size.width, options.size.height)
    if options.format == "frames":
        data = b",".join(b"".join(template.base64(name, n)) for n in range(options.frames))
    else:
        pictures = [template.file(name, n) for n in range(options.frames)]
        data = base64.b64encode(avi.file(pictures, options.size.width, options.size.height, options.fps))
    return _PART_BEGINS[options.format] + data + _PART_END
