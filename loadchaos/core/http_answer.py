"""Answer of a server to one HTTP request that is not load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class HttpAnswer:
    """A complete answer, header names in lower case; or `status` 0, and as `text` the reason why there is none."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""

    def json(self) -> object:
        """Parse the body, whatever the status says. None where it is no JSON."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None

    @property
    def fields(self) -> Mapping[str, object]:
        """The JSON object of an answer with status 200; empty for any other answer."""
        data = self.json() if self.status == 200 else None
        return data if isinstance(data, dict) else {}

    @property
    def models(self) -> list[Mapping[str, object]]:
        """Entries of the list that /v1/models answers; empty for any other answer."""
        listed = self.fields.get("data")
        return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
