"""What is done to the engine, when, and how often; each act is told on a line before it is done."""

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

# At which hook a mode acts; `step` counts at "step" in the worker, at "schedule" and "sample" by themselves.
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
}


class InjectedError(RuntimeError):
    """What `step_raise` raises; its text says whose doing it is."""


def say(text: str) -> None:
    """One line of the server's log."""
    sys.stderr.write(f"loadchaos-sabotage: {text}\n")
    sys.stderr.flush()


@dataclass
class Spec:
    """One order: `encoder_pop probability=0.3 seed=7 step=20`."""

    mode: str
    probability: float = 1.0
    seed: int = 0
    step: int = 1
    times: int | None = None
    seconds: float = 10.0
    factor: float = 3.0
    done: int = 0
    rng: random.Random = field(default_factory=random.Random)


def parse(text: str) -> list[Spec]:
    """Orders apart by `;`, options apart by blanks or commas. ValueError for what nobody knows."""
    orders = []
    for part in text.split(";"):
        words = part.replace(",", " ").split()
        if not words:
            continue
        mode = words[0].removeprefix("mode=")
        if mode not in MODES:
            raise ValueError(f"unknown mode {mode!r}; there are: {', '.join(MODES)}")
        spec = Spec(mode, times=1 if mode in ONCE else None)
        for word in words[1:]:
            name, sign, value = word.partition("=")
            if not sign or name not in ("probability", "seed", "step", "times", "seconds", "factor"):
                raise ValueError(f"unknown option {word!r} of {mode}")
            setattr(spec, name, int(value) if name in ("seed", "step", "times") else float(value))
        spec.rng = random.Random(f"{spec.seed}/{mode}")
        orders.append(spec)
    return orders


class Sabotage:
    """Armed while the trigger file exists. A file with text gives the orders, an empty one those of the environment."""

    def __init__(self, asked: str, trigger: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._asked, self._trigger, self._sleep = asked, Path(trigger), sleep
        self._seen: tuple[int, int] | None = None
        self._orders: list[Spec] = []
        self._steps: dict[str, int] = {}

    def armed(self) -> bool:
        """Whether the trigger file is there; its orders are read anew when it is new."""
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

    def _read(self) -> list[Spec]:
        try:
            with self._trigger.open() as f:
                text = f.read(4096).strip()
            orders = parse(text or self._asked)
        except (OSError, ValueError) as e:
            say(f"off: {e}")
            return []
        for order in orders:
            say(f"armed {order.mode} pid={os.getpid()}")
        return orders

    def at(self, hook: str, owner: Any, argument: Any = None) -> float:
        """Do what is due at this hook. Returns by what factor the step that follows is to be slowed, 1 for none."""
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
                if order.done == 0:  # one line tells of them all
                    self._tell(order, step, f"factor={order.factor:g}")
            else:
                getattr(self, "_" + order.mode)(order, step, owner, argument)
        return slow

    def _tell(self, order: Spec, step: int, what: str) -> None:
        order.done += 1
        say(f"act {order.mode} step={step} pid={os.getpid()} {what}")

    # --- the modes ------------------------------------------------------------------------------------------------------

    def _pop(self, order: Spec, step: int, owner: Any, spared: Any) -> None:
        cache = getattr(owner, "encoder_cache", None)
        entries = cache if isinstance(cache, dict) else getattr(cache, "encoder_outputs", None)
        if not isinstance(entries, dict):
            if order.done == 0:
                order.done = 1
                say(f"missing {order.mode}: {type(owner).__name__} has no encoder cache that is known here")
            return
        free = getattr(spared, "free_encoder_mm_hashes", None) or ()  # those go in this step anyway
        chosen = sorted(str(key) for key in entries if key not in free)
        if chosen:
            key = order.rng.choice(chosen)
            self._tell(order, step, f"popped={key}")
            entries.pop(key, None)

    _encoder_pop = _pop
    _encoder_pop_draft = _pop

    def _step_raise(self, order: Spec, step: int, _owner: Any, _argument: Any) -> None:
        self._tell(order, step, "raised")
        raise InjectedError(f"loadchaos-sabotage: an exception injected in step {step}")

    def _step_sleep(self, order: Spec, step: int, _owner: Any, _argument: Any) -> None:
        self._tell(order, step, f"seconds={order.seconds:g}")
        self._sleep(order.seconds)

    def _step_hang(self, order: Spec, step: int, _owner: Any, _argument: Any) -> None:
        self._tell(order, step, "until disarmed")
        while self.armed():
            self._sleep(0.1)
        say(f"released {order.mode} pid={os.getpid()}")

    def _step_exit(self, order: Spec, step: int, _owner: Any, _argument: Any) -> None:
        self._tell(order, step, "code=3")
        os._exit(3)

    def _step_segv(self, order: Spec, step: int, _owner: Any, _argument: Any) -> None:
        self._tell(order, step, "signal=SIGSEGV")
        os.kill(os.getpid(), signal.SIGSEGV)

    def _preempt(self, order: Spec, step: int, owner: Any, _argument: Any) -> None:
        running = getattr(owner, "running", None)
        if not running:
            return
        self._tell(order, step, f"requests={len(running)}")
        try:
            owner.reset_prefix_cache(reset_running_requests=True)
        except (AttributeError, TypeError) as e:  # before 0.13 the scheduler had no such call
            order.times = order.done
            say(f"missing preempt: {e}")

    def _nan_logits(self, order: Spec, step: int, _owner: Any, argument: Any) -> None:
        rows = len(argument) if argument is not None else 0
        if rows:
            row = order.rng.randrange(rows)
            self._tell(order, step, f"row={row}")
            argument[row] = float("nan")
