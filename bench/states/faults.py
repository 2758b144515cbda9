"""Faults to measure: server, action, expected states, expected verdict."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.states.run import Run

Act = Callable[["Run"], int]
"""Brings the fault about; CLOCK_MONOTONIC ns of when it was there."""

_DEATH, _HANG = ("dead",), ("degraded", "hung")
_LOST_S, _GOES_ON_S = 20.0, 12.0
SLOTS = 8
"""Requests that LMDeploy works on at a time; four are ours."""


class NotHereError(Exception):
    """This server cannot have the fault."""


def send(role: str, number: int) -> Act:
    """Send a signal to the newest process of a role."""

    def act(run: Run) -> int:
        pid = run.pid_of(role)
        if pid is None:
            raise NotHereError(f"there is no {role} process")
        if number == signal.SIGSTOP:
            run.stopped.append(pid)
        before_ns = time.monotonic_ns()
        os.kill(pid, number)
        return before_ns

    return act


def post(path: str, body: Mapping[str, Any] | None = None, wait_s: float = 0.0) -> Act:
    """POST as another client and wait that long for the answer."""

    def act(run: Run) -> int:
        data = b"" if body is None else json.dumps({"model": run.model(), **body}).encode()
        request = urllib.request.Request(run.address() + path, data, {"Content-Type": "application/json"})

        def ask() -> None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(request, timeout=60).read()

        before_ns = time.monotonic_ns()
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(wait_s)
        return before_ns

    return act


def says(text: str, wait_s: float = 0.0, **more: Any) -> Act:
    """Send a chat request as another client."""
    message = {"role": "user", "content": text}
    return post("/v1/chat/completions", {"messages": [message], "max_tokens": 8, **more}, wait_s)


def each(act: Act, times: int) -> Act:
    """Do the same several times; the fault begins with the last."""
    return lambda run: max(act(run) for _ in range(times))


def sabotage(order: str) -> Act:
    """Order a fault from the plugin; it begins when the log reports it."""

    def act(run: Run) -> int:
        run.trigger.write_text(order)
        return run.log_says("loadchaos-sabotage: act")

    return act


def log_shows(word: str) -> Act:
    """Do nothing: the fault comes by itself, and the log reports when."""
    return lambda run: run.log_says(word)


def again_and_again(path: str, word: str) -> Act:
    """POST until the log reports the fault."""

    def act(run: Run) -> int:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            post(path)(run)
            with contextlib.suppress(NotHereError):
                return run.log_says(word, limit_s=0.1)
        raise NotHereError(f"the log never showed {word!r}")

    return act


def packets(run: Run) -> int:
    """Lose every packet for 20 s."""
    assert run.place.path is not None
    before_ns = time.monotonic_ns()

    def lose() -> None:
        assert run.place.path is not None
        with run.place.path.nothing_passes():
            time.sleep(_LOST_S)

    threading.Thread(target=lose, daemon=True).start()
    return before_ns


def one_dies(run: Run) -> int:
    """Kill the engine core of the second of several servers."""
    before_ns = time.monotonic_ns()
    run.place.servers[1].kill_engine()
    return before_ns


def one_dies_untold(run: Run) -> int:
    """Kill one engine core while the other servers go on answering."""
    before_ns = one_dies(run)
    run.wait(lambda: None, _GOES_ON_S)
    return before_ns


def roll(run: Run) -> int:
    """End and restart each server in order, one after the other."""
    before_ns = time.monotonic_ns()

    def each() -> None:
        for server in run.place.servers:
            server.restart()
            time.sleep(3.0)
        run.rolled.set()

    threading.Thread(target=each, daemon=True).start()
    return before_ns


def nothing(run: Run) -> int:
    """Do nothing for `--healthy` seconds."""
    before_ns = time.monotonic_ns()
    run.wait(lambda: None, run.healthy_s)
    return before_ns


@dataclass(frozen=True)
class Fault:
    """One fault to measure.

    `states` have to follow in this order. `kinds` are the kinds of incident in the verdict. `outlived`: the server
    goes on after the fault, once stopped processes are continued and `undo` was posted.
    """

    about: str
    act: Act
    states: tuple[str, ...]
    kinds: tuple[str, ...]
    on: tuple[str, ...] = ("embedded", "vllm", "lmdeploy")
    place: str = "alone"
    profile: Mapping[str, Any] = field(default_factory=dict)
    before_load: bool = False
    never: tuple[str, ...] = ()
    outlived: bool = False
    undo: str | None = None


_IMAGES = [
    {"name": "images", "payload": {"images": {"count": 2, "size": "64x64", "unique": "50%", "reuse_distance": 6}},
     "output": {"exact": 24}},
]  # fmt: skip
_DESYNC = {
    "embedded": {
        "dialect": "vllm",
        "era": "0.13",
        "defects": ["mm_cache_desync"],
        "flags": {"mm_processor_cache_items": 8},
    }
}
_ASSERTS = {
    "embedded": {
        "dialect": "vllm",
        "era": "0.18",
        "defects": ["near_max_oob"],
        "flags": {"max_model_len": 4096, "num_speculative_tokens": 0},
    }
}
_NEAR_THE_LIMIT = "word " * 3_500
_SATURATING = {
    "traffic": [
        {"name": "text", "weight": 6, "payload": {"text": {"tokens": "16..1024"}}, "output": {"max": 256}},
        {"name": "long", "weight": 1, "payload": {"text": {"tokens": "2048..3500"}}, "output": {"max": 32}},
        {"name": "images", "weight": 3, "payload": {"images": {"count": "1..2", "size": "512x512"},
         "text": {"tokens": "32..128"}}, "output": {"max": 64}},
    ],
    "limits": {"first_byte": "10m", "between_bytes": "2m", "total": "20m"},
}  # fmt: skip

_TWO_PROCESSES = ("embedded", "vllm")
FAULTS: Mapping[str, Fault] = {
    "kill_engine": Fault(
        "kill -9 of the engine core", send("engine_core", signal.SIGKILL), _DEATH, ("death",), _TWO_PROCESSES
    ),
    "kill_worker": Fault("kill -9 of a worker", send("worker", signal.SIGKILL), _DEATH, ("death",), ("vllm",)),
    "kill_api": Fault("kill -9 of the API server", send("api_server", signal.SIGKILL), _DEATH, ("death",)),
    "term_api": Fault(
        "SIGTERM of the API server", send("api_server", signal.SIGTERM), ("terminated",), ("terminated",)
    ),
    "stop_engine": Fault(
        "SIGSTOP of the engine core", send("engine_core", signal.SIGSTOP), _HANG, ("hang",), _TWO_PROCESSES,
        outlived=True,
    ),
    "stop_worker": Fault(
        "SIGSTOP of a worker", send("worker", signal.SIGSTOP), _HANG, ("hang",), ("vllm",), outlived=True
    ),
    "stop_api": Fault(
        "SIGSTOP of the API server", send("api_server", signal.SIGSTOP), _HANG, ("hang",), outlived=True
    ),
    "raise": Fault("an exception in a step", sabotage("step_raise step=5"), _DEATH, ("death",), ("vllm",)),
    "assert": Fault(
        "an exception in a step (a prompt near the limit)", says(_NEAR_THE_LIMIT), _DEATH, ("death",), ("embedded",),
        profile={"target": {**_ASSERTS, "on_death": "wait"}},
    ),
    "step_hang": Fault("a step that never ends", sabotage("step_hang step=5"), _HANG, ("hang",), ("vllm",)),
    "first_request": Fault(
        "the first request kills (MTP on the CPU)", log_shows("Worker failed with error"), _DEATH, ("death",), ("vllm",),
        "mtp", before_load=True,
    ),
    **{
        f"pause_{mode}": Fault(
            f"/pause?mode={mode} by somebody else", post(f"/pause?mode={mode}"), _HANG, ("hang",), ("embedded", "vllm"),
            outlived=True, undo="/resume",
        )
        for mode in ("abort", "wait", "keep")
    },
    "logprobs": Fault(
        "the first request with logprobs compiles", says("hello", wait_s=60, logprobs=True, top_logprobs=3), (), (),
        ("vllm",), never=("hung", "dead"),
    ),
    "lmdeploy_die": Fault("[[DIE]]: the backend is gone", says("[[DIE]]"), _DEATH, ("death",), ("lmdeploy",)),
    "lmdeploy_hang": Fault(
        "[[HANG:1]] in every slot of the engine", each(says("[[HANG:1]]"), SLOTS), _HANG, ("hang",), ("lmdeploy",)
    ),
    "zombie": Fault(
        "the input thread dies, /health stays 200 (vLLM 0.13)",
        again_and_again("/reset_mm_cache", "Exception in thread"), _HANG, ("hang",), ("embedded",),
        profile={"target": {**_DESYNC, "on_death": "wait"}, "traffic": _IMAGES, "load": [{"users": 16, "for": "12h"}]},
    ),
    "packets": Fault(
        "every packet lost for 20 s", packets, ("unreachable", "healthy"), ("unreachable",), ("embedded",), "lossy",
        never=("dead",),
    ),
    "one_of_three": Fault(
        "one of three behind a balancer dies", one_dies, _DEATH, ("death",), ("embedded",), "balanced"
    ),
    "one_unnamed": Fault(
        "one of three that look like one server dies", one_dies_untold, (), ("death",), ("embedded",), "hidden",
        never=("hung", "unreachable", "terminated"),
    ),
    "rolling": Fault(
        "three behind a balancer are restarted in turn", roll, ("terminated", "restarting", "healthy"),
        ("terminated",) * 3, ("embedded",), "balanced", never=("hung",),
    ),
    "healthy": Fault(
        "nothing, under saturating load", nothing, (), (), profile={**_SATURATING, "load": [{"users": 300, "for": "12h"}]},
        never=("hung", "dead", "unreachable", "terminated", "restarting"),
    ),
}  # fmt: skip
