"""Load testing and chaos for OpenAI-compatible LLM servers.

In a locustfile of your own, `from loadchaos import from_profile` gives a profile's traffic as a Locust User class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadchaos.load.worker import from_profile as from_profile

__version__ = "0.1.0"
__all__ = ["__version__", "from_profile"]


def __getattr__(name: str) -> Any:
    """Import `from_profile` at its first use: Locust patches the standard library as soon as it is imported."""
    if name == "from_profile":
        from loadchaos.load.worker import from_profile

        return from_profile
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
