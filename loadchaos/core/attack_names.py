"""Names of the attacks that a profile may use; each is one file in chaos/.

Add a name here, and the file that implements it:

    NetworkFault   loadchaos/chaos/toxics/NAME.py
    ProcessSignal  loadchaos/chaos/signals/NAME.py
    HostLoad       loadchaos/chaos/host/NAME.py
    EngineFault    a mode of plugins/vllm, with its effects in loadchaos/chaos/engine.py
"""

from __future__ import annotations

from typing import Literal

NetworkFault = Literal[
    "latency",
    "bandwidth",
    "slow_close",
    "timeout",
    "reset_peer",
    "slicer",
    "limit_data",
    "down",
]
ProcessSignal = Literal["sigkill", "sigterm", "sigstop"]
HostLoad = Literal["cpu"]
EngineFault = Literal[
    "encoder_pop",
    "encoder_pop_draft",
    "step_raise",
    "step_sleep",
    "step_hang",
    "step_exit",
    "step_segv",
    "slow_steps",
    "preempt",
    "nan_logits",
]
