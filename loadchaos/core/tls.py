"""Whose certificates are believed: the system's, those of a CA of the user's own, or anybody's."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadchaos.core.errors import OptionError


@dataclass(frozen=True)
class TlsSettings:
    """`ca` is a PEM file with the certificates to believe in place of the system's; `insecure` believes any."""

    ca: str | None = None
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """For clients of all kinds. Raises OptionError for a file that holds no certificate."""
        if self.ca is not None and self.insecure:
            raise OptionError("ca and insecure exclude each other: is the certificate to be checked?")
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as e:
            why = "it holds no certificate" if isinstance(e, ssl.SSLError) else e.strerror
            raise OptionError(f"ca {self.ca}: {why}; a PEM file that this user may read was expected") from e
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def to_json(self) -> dict[str, Any]:
        """As plan.json has it."""
        return {"ca": self.ca, "insecure": self.insecure}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> TlsSettings:
        """Read back; None is the system's trust."""
        return cls(**data) if data else cls()
