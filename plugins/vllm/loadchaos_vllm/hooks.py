"""Where the engine is hooked: methods of vLLM's classes, wrapped when their module is imported, never imported by us."""

from __future__ import annotations

import functools
import importlib.util
import sys
import time
from importlib.machinery import ModuleSpec
from typing import Any, Callable

from loadchaos_vllm.sabotage import MODES, Sabotage, say

# hook -> the classes that have it, (module, class, method), over the versions of vLLM: V1's runner and V2's.
PLACES: dict[str, list[tuple[str, str, str]]] = {
    "step": [
        ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", "execute_model"),
        ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner", "execute_model"),
    ],
    "draft": [("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", "propose_draft_token_ids")],
    "schedule": [("vllm.v1.core.sched.scheduler", "Scheduler", "schedule")],
    "sample": [("vllm.v1.sample.sampler", "Sampler", "forward")],
}
_MARK = "__loadchaos_sabotage__"


def lay(sabotage: Sabotage) -> None:
    """Wrap what is imported already, and the rest when it is; a place that does not exist is told once."""
    wanted: dict[str, list[tuple[str, str, str]]] = {}
    for hook, places in PLACES.items():
        there = [place for place in places if place[0] in sys.modules or _exists(place[0])]
        if not there:
            modes = ", ".join(mode for mode, at in MODES.items() if at == hook)
            say(f"missing {modes}: this vLLM has no {' nor '.join(place[0] for place in places)}")
        for module, owner, method in there:
            wanted.setdefault(module, []).append((hook, owner, method))
    later: dict[str, Callable[[Any], None]] = {}
    for module, found in wanted.items():
        patch = functools.partial(_patch, found=found, sabotage=sabotage)
        if module in sys.modules and getattr(sys.modules[module], found[0][1], None) is not None:
            patch(sys.modules[module])
        else:
            later[module] = patch
    if later:
        sys.meta_path.insert(0, _Finder(later))


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # its package is not there, or is broken: vLLM itself will say
        return False


def _patch(module: Any, found: list[tuple[str, str, str]], sabotage: Sabotage) -> None:
    for hook, owner_name, method in found:
        owner = getattr(module, owner_name, None)
        original = owner.__dict__.get(method) if owner is not None else None
        if original is None:
            modes = ", ".join(mode for mode, at in MODES.items() if at == hook)
            say(f"missing {modes}: {module.__name__}.{owner_name} has no {method}")
        elif not hasattr(original, _MARK):
            setattr(owner, method, _wrap(original, hook, sabotage))


def _wrap(original: Callable[..., Any], hook: str, sabotage: Sabotage) -> Callable[..., Any]:
    @functools.wraps(original)
    def sabotaged(self: Any, *args: Any, **kwargs: Any) -> Any:
        argument = args[0] if args else next(iter(kwargs.values()), None)
        if getattr(argument, "total_num_scheduled_tokens", 1) == 0:
            return original(self, *args, **kwargs)  # a step without work reads and drafts nothing
        slow = sabotage.at(hook, self, argument)
        if slow <= 1:
            return original(self, *args, **kwargs)
        begin = time.monotonic()
        try:
            return original(self, *args, **kwargs)
        finally:
            time.sleep((slow - 1) * (time.monotonic() - begin))

    setattr(sabotaged, _MARK, True)
    return sabotaged


class _Finder:
    """Finds a module as everybody else does, and has it patched once it is executed."""

    def __init__(self, later: dict[str, Callable[[Any], None]]) -> None:
        self._later = later

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Of the modules we wait for; None for all others."""
        patch = self._later.get(name)
        if patch is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None and spec.loader is not None:
                execute = spec.loader.exec_module

                def executed(module: Any, execute: Any = execute, patch: Any = patch) -> None:
                    execute(module)
                    patch(module)

                # On the instance: its class, and with it what tracebacks and inspect ask of a loader, stays as it is.
                spec.loader.exec_module = executed  # type: ignore[method-assign]  # that is the point
                return spec
        return None
