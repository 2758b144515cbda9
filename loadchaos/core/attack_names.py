"""Table of the attacks that a profile may use: kinds and names.

An entry here and its implementation are all that a new attack needs:

    NETWORK_FAULTS   a class in loadchaos/chaos/toxics.py
    PROCESS_SIGNALS  an entry in loadchaos/chaos/signals.py
    HOST_LOADS       a function in loadchaos/chaos/host.py
    ENGINE_FAULTS    a mode in plugins/vllm/loadchaos_vllm/sabotage.py
    ATTACK_KINDS     loadchaos/chaos/KIND.py with a function `make`

The keys of a profile, its schema, the ledger's `kind` and the tables of docs/attacks.md follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from loadchaos.core.plugins import PluginTable

NETWORK_FAULTS = ("latency", "bandwidth", "slow_close", "timeout", "reset_peer", "slicer", "limit_data", "down")
PROCESS_SIGNALS = ("sigkill", "sigterm", "sigstop")
HOST_LOADS = ("cpu",)

_ENCODER_MISS = ("encoder_cache_miss", "encoder_cache_miss_skipped")
STALLS = ("alive_but_hung", "stalled", "timeout", "shm_broadcast_stall", "rpc_timeout")
LOST = ("http_error", "stream_error", "finish_error", "truncated", "connect_error", "reset", "engine_dead_error",
         "engine_death_unexplained", "engine_core_proc_died", "worker_proc_died")  # fmt: skip
ENGINE_FAULTS: Mapping[str, Sequence[str]] = {
    "encoder_pop": _ENCODER_MISS,
    "encoder_pop_draft": _ENCODER_MISS,
    "step_raise": LOST,
    "step_sleep": STALLS,
    "step_hang": STALLS,
    "step_exit": LOST,
    "step_segv": LOST,
    "slow_steps": STALLS,
    "preempt": ("preemption_storm", "async_placeholder_underflow"),
    "nan_logits": ("wrong_output", "empty", "sampler_nan"),
    **dict.fromkeys(
        ("swap_rows", "zero_kv", "swap_kv", "stale_encoder", "drop_token", "repeat_token", "ignore_adapter"),
        ("wrong_output",),
    ),
}
"""Faults inside an engine, each with the failure ids and outcomes that it may cause by itself."""


PLUGIN_ATTACKS = PluginTable[Callable[..., Any]]("attacks", Callable, {})
"""Attacks of other packages. An entry makes an `Attack` (chaos/base.py) of the params in a profile and an AttackContext; it
raises OptionError where they are not valid.
"""


def engine_attack(fault: str) -> str:
    """Name of an attack by a fault inside an engine, in the ledger and the report."""
    return f"engine_{fault}"


@dataclass(frozen=True)
class KindSpec:
    """One kind of attack: a key of an entry in `attacks`. `effect` ({names} stands for the names) and `needs` are text
    for docs/attacks.md. `names` None: those of the server's dialect. `instant` names have no undo, so `for` does not go
    with them.
    """

    effect: str
    needs: str
    names: Collection[str] | None = None
    instant: Collection[str] = ()
    params: bool = True

    def describe(self) -> str:
        """The effect with the names filled in, as Markdown."""
        return self.effect.format(names=", ".join(f"`{name}`" for name in self.names or ()))


ATTACK_KINDS: Mapping[str, KindSpec] = {
    "admin": KindSpec(
        "an operation of the server's dialect, for example `reset_mm_cache` or `sleep`",
        "development endpoints (vLLM: `VLLM_SERVER_DEV_MODE=1`)",
    ),
    "process": KindSpec(
        "{names} to a `role` (`engine_core`, `api_server`, `worker`)",
        "a server that loadchaos started, that listens on this machine, or whose pid is given by `--pid`",
        PROCESS_SIGNALS,
        instant=("sigkill", "sigterm"),
        params=False,
    ),
    "engine": KindSpec(
        "a fault inside a vLLM engine: {names}",
        "a vLLM with [loadchaos-vllm](../plugins/vllm/README.md); its environment names the trigger file",
        ENGINE_FAULTS,
    ),
    "network": KindSpec(
        "a fault between clients and server, see below",
        "nothing; a proxy is put in the path only when a profile asks for it",
        NETWORK_FAULTS,
    ),
    "host": KindSpec(
        "{names}: busy processes on the machine of the server; their number is `processes`, or the number of CPUs",
        "this machine",
        HOST_LOADS,
    ),
    "plugin": KindSpec(
        "an attack that an installed package adds ([plugins](how-to/plugins.md))", "what the package says"
    ),
}
if TYPE_CHECKING:
    AttackKind = str
else:
    AttackKind = Literal[tuple(ATTACK_KINDS)]
