"""TLS verification: system certificates, a CA file, or none."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import cache

from loadchaos.core.errors import OptionError


@dataclass(frozen=True)
class TlsSettings:
    """Trusted certificates of a connection. `ca` is a PEM file that replaces the system's certificates. `insecure`
    turns verification off.
    """

    ca: str | None = None
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """Give the SSL context for any client. Raises OptionError if the file holds no certificate."""
        if self.ca is not None and self.insecure:
            raise OptionError(
                "ca and insecure exclude each other; give ca to verify certificates, or insecure to skip verification"
            )
        if self.ca is None and not self.insecure:
            return _system_context()
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as e:
            why = "it holds no certificate" if isinstance(e, ssl.SSLError) else e.strerror
            raise OptionError(f"ca {self.ca}: {why}; a PEM file that this user may read was expected") from e
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@cache
def _system_context() -> ssl.SSLContext:
    """The certificates of the system take 0.8 MB in each context, and 20 ms to read."""
    return ssl.create_default_context()
