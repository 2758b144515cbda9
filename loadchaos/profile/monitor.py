"""`watch` of a profile: canary and exporters on the server's machines."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from loadchaos.core.units import DurationS
from loadchaos.profile.base import ProfilePart

_PAGE = "an address such as http://10.0.0.1:9400/metrics"
PageUrl = Annotated[str, Field(pattern=r"^https?://[^/\s]+")]


class CanaryOptions(ProfilePart):
    """Two small prompts, sent every `every` seconds during the load. The expected answers are learned before the load
    begins.
    """

    every: DurationS = Field(default=5.0, gt=0)


class MonitorOptions(ProfilePart):
    """Monitoring in addition to the server's own metrics. `dcgm` and `node` are the pages of dcgm-exporter and
    node-exporter on the server's machines.
    """

    canary: CanaryOptions | None = None
    dcgm: tuple[PageUrl, ...] = Field(default=(), description=_PAGE)
    node: tuple[PageUrl, ...] = Field(default=(), description=_PAGE)
