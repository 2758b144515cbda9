"""What a profile has watched beside the server itself: a canary, and the machines the server runs on."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from loadchaos.core.units import DurationS
from loadchaos.profile.base import Part

_PAGE = "an address such as http://10.0.0.1:9400/metrics"
PageUrl = Annotated[str, Field(pattern=r"^https?://[^/\s]+")]


class CanaryOptions(Part):
    """Two small prompts asked every so often beside the load; what they are answered is learned before it begins."""

    every: DurationS = Field(default=5.0, gt=0)


class Watching(Part):
    """`dcgm` and `node` are pages of dcgm-exporter and node-exporter, of every machine of the server."""

    canary: CanaryOptions | None = None
    dcgm: tuple[PageUrl, ...] = Field(default=(), description=_PAGE)
    node: tuple[PageUrl, ...] = Field(default=(), description=_PAGE)
