"""Read a server's settings and machine from its settings page, /metrics and the begin of its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from loadchaos.core.model import Facts
from loadchaos.server.dialects import DIALECTS, UNKNOWN, any_server
from loadchaos.server.discovery.client import DiscoveryClient

_SETTINGS_S = 30.0  # vLLM collects its environment on the first call, which runs a dozen programs

_MOST_FLAGS = 4_000

_FACTS = {"max_images": "max_images", "max_num_batched_tokens": "step_tokens"}
"""Facts that are settings: our name of the setting, name of the fact."""

Configured = Mapping[str, tuple[Any, str]]
"""Settings by our names, each with where it was learned."""


async def configuration(client: DiscoveryClient, facts: Facts) -> tuple[Configured, Mapping[str, str]]:
    """Settings and descriptions of the machine. Some servers have the page in development mode only."""
    dialect = DIALECTS.get(facts.dialect, UNKNOWN)
    page = client.pages.get("/metrics")
    found = dict(dialect.metrics_settings(page.text)) if page is not None else {}
    if not dialect.settings_path or (dialect.development_path is not None and not facts.development_endpoints):
        return found, {}
    answer = client.pages.get(dialect.settings_path)
    if answer is None:
        answer = await client.ask("GET", dialect.settings_path, admin=True, limit_s=_SETTINGS_S)
    settings = dialect.read_settings(answer.json())
    source = dialect.settings_path.partition("?")[0]
    return {**found, **{name: (value, source) for name, value in settings.values.items()}}, settings.system


def with_configuration(facts: Facts, configured: Configured) -> Facts:
    """Add the facts that only the settings tell. What is known already stays, and what is no whole number is left out."""
    found = {fact: configured[name] for name, fact in _FACTS.items() if name in configured}
    values: dict[str, tuple[Any, str]] = {f: one for f, one in found.items() if type(one[0]) is int and one[0] >= 0}
    new = {fact: value for fact, (value, _) in values.items() if getattr(facts, fact) is None}
    sources = {fact: values[fact][1] for fact in new}
    return replace(facts, **new, sources={**facts.sources, **sources}) if new else facts


def flags_in_log(head: str) -> str | None:
    """The flags of the newest start that the log shows; None if it does not."""
    known = any_server(lambda d: d.log_flags)
    flags = [hit["flags"] for line in head.splitlines() for p in known if (hit := p.search(line)) is not None]
    return flags[-1].strip()[:_MOST_FLAGS] if flags else None
