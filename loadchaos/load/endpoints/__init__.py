"""Endpoints of the OpenAI API that requests are sent to; one file each.

A file has `path` (of a dialect) and `body` (of a draft); copy chat.py to add one, and enter it in `ENDPOINTS`.
payloads/build.py looks endpoints up here. Answers are read in wire/completion.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from loadchaos.core.model import Facts, Step
from loadchaos.load.endpoints import chat
from loadchaos.load.payloads.base import Draft

DEFAULT = "chat"


class EndpointModule(Protocol):
    """Contents of an endpoint's file."""

    def path(self, dialect_name: str) -> str:
        """Return the path of the endpoint at this dialect."""

    def body(self, draft: Draft, step: Step, facts: Facts) -> bytes:
        """Return the JSON body."""


ENDPOINTS: Mapping[str, EndpointModule] = {DEFAULT: chat}
