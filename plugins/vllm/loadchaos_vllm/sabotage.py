"""Decide which fault to inject, when and how often.

Each act is logged before it happens.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

ONCE = ("step_raise", "step_sleep", "step_exit", "step_segv")

# mode -> hook. Steps are counted per hook.
MODES = {
    "encoder_pop": "step",
    "encoder_pop_draft": "draft",
    "step_raise": "step",
    "step_sleep": "step",
    "step_hang": "step",
    "step_exit": "step",
    "step_segv": "step",
    "slow_steps": "step",
    "preempt": "schedule",
    "nan_logits": "sample",
    "swap_rows": "sample",
    "zero_kv": "step",
    "swap_kv": "step",
    "stale_encoder": "step",
    "drop_token": "output",
    "repeat_token": "output",
    "ignore_adapter": "adapters",
}


class InjectedError(RuntimeError):
    """The exception of `step_raise`; its text names loadchaos."""


def log_line(text: str) -> None:
    """Write one line to the server's log."""
    sys.stderr.write(f"loadchaos-sabotage: {text}\n")
    sys.stderr.flush()


@dataclass
class FaultOrder:
    """One fault to inject: `encoder_pop probability=0.3 seed=7 step=20`."""

    mode: str
    probability: float = 1.0
    seed: int = 0
    step: int = 1
    times: int | None = None
    seconds: float = 10.0
    factor: float = 3.0
    done: int = 0
    rng: random.Random = field(default_factory=random.Random)


def parse(text: str) -> list[FaultOrder]:
    """Parse orders separated by `;`, options by blanks or commas.

    Raises:
        ValueError: A mode or option is unknown.
    """
    orders = []
    for part in text.split(";"):
        fields = part.replace(",", " ").split()
        if not fields:
            continue
        mode = fields[0].removeprefix("mode=")
        if mode not in MODES:
            raise ValueError(f"unknown mode {mode!r}; there are: {', '.join(MODES)}")
        spec = FaultOrder(mode, times=1 if mode in ONCE else None)
        for word in fields[1:]:
            name, sign, value = word.partition("=")
            if not sign or name not in ("probability", "seed", "step", "times", "seconds", "factor"):
                raise ValueError(f"unknown option {word!r} of {mode}")
            setattr(spec, name, int(value) if name in ("seed", "step", "times") else float(value))
        spec.rng = random.Random(f"{spec.seed}/{mode}")
        orders.append(spec)
    return orders


class FaultInjector:
    """Inject faults while the trigger file exists.

    The file contains the orders; an empty file means those of the environment.
    """

    def __init__(self, default: str, trigger: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._default, self._trigger, self._sleep = default, Path(trigger), sleep
        self._seen: tuple[int, int] | None = None
        self._orders: list[FaultOrder] = []
        self._steps: dict[str, int] = {}

    def armed(self) -> bool:
        """True while the trigger file exists.

        Its orders are read when it has changed.
        """
        try:
            stat = self._trigger.stat()
        except OSError:
            self._seen = None
            return False
        key = (stat.st_mtime_ns, stat.st_size)
        if key != self._seen:
            self._seen = key
            self._steps = {}
            self._orders = self._read()
        return True

    def _read(self) -> list[FaultOrder]:
        try:
            with self._trigger.open() as f:
                text = f.read(4096).strip()
            orders = parse(text or self._default)
        except (OSError, ValueError) as e:
            log_line(f"off: {e}")
            return []
        for order in orders:
            log_line(f"armed {order.mode} pid={os.getpid()}")
        return orders

    def at(self, hook: str, owner: Any, argument: Any = None) -> float:
        """Inject the faults due at this hook.

        Returns the slow-down factor of the step (1: none).
        """
        slow = 1.0
        if not self.armed():
            return slow
        step = self._steps[hook] = self._steps.get(hook, 0) + 1
        for order in self._orders:
            if (
                MODES[order.mode] != hook
                or step < order.step
                or (order.times is not None and order.done >= order.times)
            ):
                continue
            if order.probability < 1 and order.rng.random() >= order.probability:
                continue
            if order.mode == "slow_steps":
                slow *= order.factor
                if order.done == 0:  # one line for all slowed steps
                    self._log_act(order, step, f"factor={order.factor:g}")
            else:
                getattr(self, "_" + order.mode)(order, step, owner, argument)
        return slow

    def _log_act(self, order: FaultOrder, step: int, what: str) -> None:
        order.done += 1
        log_line(f"act {order.mode} step={step} pid={os.getpid()} {what}")

    # --- modes ----------------------------------------------------------------------------------------------------------

    def _pop(self, order: FaultOrder, step: int, owner: Any, argument: Any) -> None:
        cache = getattr(owner, "encoder_cache", None)
        entries = cache if isinstance(cache, dict) else getattr(cache, "encoder_outputs", None)
        if not isinstance(entries, dict):
            if order.done == 0:
                order.done = 1
                log_line(f"missing {order.mode}: {type(owner).__name__} has no encoder cache that is known here")
            return
        free = getattr(argument, "free_encoder_mm_hashes", None) or ()  # they are removed in this step anyway
        chosen = sorted(str(key) for key in entries if key not in free)
        if chosen:
            key = order.rng.choice(chosen)
            self._log_act(order, step, f"popped={key}")
            entries.pop(key, None)

    _encoder_pop = _pop
    _encoder_pop_draft = _pop

    def _step_raise(self, order: FaultOrder, step: int, _owner: Any, _argument: Any) -> None:
        self._log_act(order, step, "raised")
        raise InjectedError(f"loadchaos-sabotage: an exception injected in step {step}")

    def _step_sleep(self, order: FaultOrder, step: int, _owner: Any, _argument: Any) -> None:
        self._log_act(order, step, f"seconds={order.seconds:g}")
        self._sleep(order.seconds)

    def _step_hang(self, order: FaultOrder, step: int, _owner: Any, _argument: Any) -> None:
        self._log_act(order, step, "until disarmed")
        while self.armed():
            self._sleep(0.1)
        log_line(f"released {order.mode} pid={os.getpid()}")

    def _step_exit(self, order: FaultOrder, step: int, _owner: Any, _argument: Any) -> None:
        self._log_act(order, step, "code=3")
        os._exit(3)

    def _step_segv(self, order: FaultOrder, step: int, _owner: Any, _argument: Any) -> None:
        self._log_act(order, step, "signal=SIGSEGV")
        os.kill(os.getpid(), signal.SIGSEGV)

    def _preempt(self, order: FaultOrder, step: int, owner: Any, _argument: Any) -> None:
        running = getattr(owner, "running", None)
        if not running:
            return
        self._log_act(order, step, f"requests={len(running)}")
        try:
            owner.reset_prefix_cache(reset_running_requests=True)
        except (AttributeError, TypeError) as e:  # before 0.13 the scheduler had no such call
            order.times = order.done
            log_line(f"missing preempt: {e}")

    def _nan_logits(self, order: FaultOrder, step: int, _owner: Any, argument: Any) -> None:
        rows = len(argument) if argument is not None else 0
        if rows:
            row = order.rng.randrange(rows)
            self._log_act(order, step, f"row={row}")
            argument[row] = float("nan")

    def _swap_rows(self, order: FaultOrder, step: int, _owner: Any, argument: Any) -> None:
        rows = len(argument) if argument is not None else 0
        if rows < 2:
            return
        a, b = order.rng.sample(range(rows), 2)
        self._log_act(order, step, f"rows={a},{b}")
        first = argument[a].clone() if hasattr(argument[a], "clone") else argument[a]
        argument[a] = argument[b]
        argument[b] = first

    def _kv_blocks(self, order: FaultOrder, owner: Any, wanted: int) -> list[int]:
        """Random KV blocks of running requests; fewer than wanted, if there are no more."""
        requests = getattr(owner, "requests", None)
        if not isinstance(requests, dict) or not getattr(owner, "kv_caches", None):
            if order.done == 0:
                order.done = 1
                log_line(f"missing {order.mode}: {type(owner).__name__} has no KV cache that is known here")
            return []
        held = {block for state in requests.values() for block in state.block_ids[0]}
        return order.rng.sample(sorted(held), min(wanted, len(held)))

    def _parts(self, owner: Any, block: int) -> list[Any]:
        """Return the tensors of one block in all layers."""
        parts = []
        for cache in owner.kv_caches:
            # Keys and values may come first: (2, blocks, ...).
            by_kind = len(cache.shape) > 4 and cache.shape[0] == 2
            parts += [cache[0][block], cache[1][block]] if by_kind else [cache[block]]
        return parts

    def _zero_kv(self, order: FaultOrder, step: int, owner: Any, _argument: Any) -> None:
        for block in self._kv_blocks(order, owner, 1):
            self._log_act(order, step, f"block={block}")
            for part in self._parts(owner, block):
                part[...] = 0

    def _swap_kv(self, order: FaultOrder, step: int, owner: Any, _argument: Any) -> None:
        blocks = self._kv_blocks(order, owner, 2)
        if len(blocks) < 2:
            return
        self._log_act(order, step, f"blocks={blocks[0]},{blocks[1]}")
        for one, other in zip(self._parts(owner, blocks[0]), self._parts(owner, blocks[1])):
            kept = one.clone()
            one[...] = other
            other[...] = kept

    def _stale_encoder(self, order: FaultOrder, step: int, owner: Any, _argument: Any) -> None:
        cache = getattr(owner, "encoder_cache", None)
        entries = cache if isinstance(cache, dict) else getattr(cache, "encoder_outputs", None)
        if not isinstance(entries, dict) or len(entries) < 2:
            return
        a, b = order.rng.sample(sorted(entries, key=str), 2)
        if getattr(entries[a], "shape", None) == getattr(entries[b], "shape", None):
            self._log_act(order, step, f"entries={a},{b}")
            entries[a] = entries[b]

    def _ignore_adapter(self, order: FaultOrder, step: int, _owner: Any, argument: Any) -> None:
        used = sorted({adapter for adapter in getattr(argument, "index_mapping", ()) if adapter > 0})
        if not used:
            return
        ignored = order.rng.choice(used)
        self._log_act(order, step, f"adapter={ignored}")
        for name in ("index_mapping", "prompt_mapping"):  # adapter of each token, and of each sampled one; 0: none
            setattr(argument, name, tuple(0 if a == ignored else a for a in getattr(argument, name)))

    def _outputs(self, order: FaultOrder, argument: Any) -> Any:
        """A random output with tokens that does not end its request; None: there is none."""
        found = [o for o in argument or () if o.new_token_ids and o.finish_reason is None]
        return order.rng.choice(found) if found else None

    def _drop_token(self, order: FaultOrder, step: int, _owner: Any, argument: Any) -> None:
        output = self._outputs(order, argument)
        if output is not None:
            self._log_act(order, step, f"request={output.request_id}")
            del output.new_token_ids[0]

    def _repeat_token(self, order: FaultOrder, step: int, _owner: Any, argument: Any) -> None:
        output = self._outputs(order, argument)
        if output is None or len(output.new_token_ids) != 1:
            return
        self._log_act(order, step, f"request={output.request_id}")
        output.new_token_ids.append(output.new_token_ids[0])
        logprobs = getattr(output, "new_logprobs", None)
        if logprobs is not None:  # one row for each token, or the API server fails
            fields = ("logprob_token_ids", "logprobs", "sampled_token_ranks")
            output.new_logprobs = logprobs._replace(
                **{name: getattr(logprobs, name).repeat(2, axis=0) for name in fields}
            )
