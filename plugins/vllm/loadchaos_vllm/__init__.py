"""Faults inside a vLLM engine, armed by environment and trigger file; vLLM calls `register` in each of its processes."""

from __future__ import annotations

import os

__all__ = ["register"]


def register() -> None:
    """Lay the hooks where LOADCHAOS_SABOTAGE_TRIGGER names a file; without it nothing is touched. May be called again."""
    trigger = os.environ.get("LOADCHAOS_SABOTAGE_TRIGGER", "")
    asked = os.environ.get("LOADCHAOS_SABOTAGE", "")
    if not trigger:
        if asked:
            from loadchaos_vllm.sabotage import say

            say("off: LOADCHAOS_SABOTAGE is set, but LOADCHAOS_SABOTAGE_TRIGGER names no file")
        return
    from loadchaos_vllm.hooks import lay
    from loadchaos_vllm.sabotage import Sabotage

    lay(Sabotage(asked, trigger))
