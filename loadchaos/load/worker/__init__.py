"""The load of one Locust worker: steps of the plan become requests, users are slots, every request leaves two rows.

In a locustfile of your own, `from loadchaos import from_profile` gives a profile's traffic as a class of users.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadchaos.load.worker.locust_user import ProfileUser


def from_profile(
    name: str,
    *,
    model: str | None = None,
    api_key_env: str | None = None,
    headers: Mapping[str, str] | None = None,
    seed: int = 0,
) -> type[ProfileUser]:
    """A Locust User class that sends the traffic of a profile (a path or a shipped name); see users.plain."""
    from loadchaos.load.worker import locust_user  # Locust is imported only where somebody drives

    return locust_user.from_profile(name, model=model, api_key_env=api_key_env, headers=headers, seed=seed)
