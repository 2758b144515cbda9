"""Base of payloads: options in a profile, and what they add to a request."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from loadchaos.core.model import Facts
from loadchaos.core.rng import Rng
from loadchaos.load.wire.request import Request
from loadchaos.profile.request_options import PayloadOptions


class Payload(PayloadOptions):
    """A payload. Those with a lower `ORDER` add first: images before text, as their cost is subtracted from its length."""

    ORDER: ClassVar[int]

    @abstractmethod
    def add(self, request: Request, facts: Facts, rng: Rng) -> None:
        """Add to the request. Pure: equal arguments give equal bytes."""
