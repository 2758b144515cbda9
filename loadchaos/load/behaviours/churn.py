"""A client that opens a new connection for each request."""

from __future__ import annotations

from typing import ClassVar

from loadchaos.load.behaviours.base import Behaviour


class Options(Behaviour):
    """This behaviour has no options."""

    FRESH: ClassVar[bool] = True
