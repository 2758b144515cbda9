"""The requests of a script come together."""

from __future__ import annotations

from loadchaos.campaigns.minimise.script import ScriptFacts, _script


def test_script_has_one_client_for_all_threads() -> None:
    """A client takes some 20 ms to make: a burst of 131 would come over three seconds."""
    text = _script([{"words": 3, "body": {}}] * 131, 1, ScriptFacts("x", "serve", "http://127.0.0.1:1"), inline=True)
    assert text.count("httpx.Client(") == 1
    assert "httpx.stream(" not in text
