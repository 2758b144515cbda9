"""TLS verification: system certificates, a CA file, or none."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from loadchaos.core.errors import OptionError


@dataclass(frozen=True)
class TlsSettings:
    """Trusted certificates of a connection. `ca` is a PEM file that replaces the system's certificates. `insecure`
    turns verification off.
    """

    ca: str | None = None
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """Build the SSL context for any client. Raises OptionError if the file holds no certificate."""
        if self.ca is not None and self.insecure:
            raise OptionError(
                "ca and insecure exclude each other; give ca to verify certificates, or insecure to skip verification"
            )
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as e:
            why = "it holds no certificate" if isinstance(e, ssl.SSLError) else e.strerror
            raise OptionError(f"ca {self.ca}: {why}; a PEM file that this user may read was expected") from e
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
