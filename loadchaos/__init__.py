"""Load testing and chaos for OpenAI-compatible LLM servers.

In your own locustfile, `from loadchaos import from_profile` gives a profile's traffic as a Locust User class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loadchaos.core.version import __version__

if TYPE_CHECKING:
    from loadchaos.load.worker.locust_user import from_profile as from_profile

__all__ = ["__version__", "from_profile"]


def __getattr__(name: str) -> Any:
    """Import `from_profile` on first use. Locust patches the standard library as soon as it is imported."""
    if name == "from_profile":
        from loadchaos.load.worker.locust_user import from_profile

        return from_profile
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
