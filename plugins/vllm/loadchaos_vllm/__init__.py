"""Inject faults into a vLLM engine.

vLLM calls `register` in each of its processes; faults are armed by environment and trigger file. To add a fault, add a
mode to `sabotage.MODES` and a method to `FaultInjector`.
"""

from __future__ import annotations

import os

__all__ = ["register"]


def register() -> None:
    """Install the hooks if LOADCHAOS_SABOTAGE_TRIGGER names a file.

    Without it nothing is changed. Repeated calls are safe.
    """
    trigger = os.environ.get("LOADCHAOS_SABOTAGE_TRIGGER", "")
    default = os.environ.get("LOADCHAOS_SABOTAGE", "")
    if not trigger:
        if default:
            from loadchaos_vllm.sabotage import log_line

            log_line("off: LOADCHAOS_SABOTAGE is set, but LOADCHAOS_SABOTAGE_TRIGGER names no file")
        return
    from loadchaos_vllm.hooks import install_hooks
    from loadchaos_vllm.sabotage import FaultInjector

    install_hooks(FaultInjector(default, trigger))
