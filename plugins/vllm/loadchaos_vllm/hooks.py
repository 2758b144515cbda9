"""Wrap methods of vLLM's classes once their modules are imported.

We never import vLLM ourselves.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import time
from importlib.machinery import ModuleSpec
from typing import Any, Callable

from loadchaos_vllm.sabotage import MODES, FaultInjector, log_line

# hook -> (module, class, method) in the versions of vLLM: V1's runner and V2's.
PLACES: dict[str, list[tuple[str, str, str]]] = {
    "step": [
        ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", "execute_model"),
        ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner", "execute_model"),
    ],
    "draft": [("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", "propose_draft_token_ids")],
    "schedule": [("vllm.v1.core.sched.scheduler", "Scheduler", "schedule")],
    "output": [("vllm.v1.engine.output_processor", "OutputProcessor", "process_outputs")],
    "adapters": [("vllm.lora.model_manager", "LoRAModelManager", "set_adapter_mapping")],
    "sample": [("vllm.v1.sample.sampler", "Sampler", "forward")],
}
_MARK = "__loadchaos_sabotage__"


def install_hooks(injector: FaultInjector) -> None:
    """Wrap modules that are imported, and the others when they are.

    A missing place is logged once.
    """
    by_module: dict[str, list[tuple[str, str, str]]] = {}
    for hook, places in PLACES.items():
        there = [place for place in places if place[0] in sys.modules or _exists(place[0])]
        if not there:
            modes = ", ".join(mode for mode, at in MODES.items() if at == hook)
            log_line(f"missing {modes}: this vLLM has no {' nor '.join(place[0] for place in places)}")
        for module, owner, method in there:
            by_module.setdefault(module, []).append((hook, owner, method))
    later: dict[str, Callable[[Any], None]] = {}
    for module, found in by_module.items():
        patch = functools.partial(_patch, found=found, injector=injector)
        if module in sys.modules and getattr(sys.modules[module], found[0][1], None) is not None:
            patch(sys.modules[module])
        else:
            later[module] = patch
    if later:
        sys.meta_path.insert(0, _PatchingFinder(later))


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # its package is missing or broken: vLLM itself reports that
        return False


def _patch(module: Any, found: list[tuple[str, str, str]], injector: FaultInjector) -> None:
    for hook, owner_name, method in found:
        owner = getattr(module, owner_name, None)
        original = owner.__dict__.get(method) if owner is not None else None
        if original is None:
            modes = ", ".join(mode for mode, at in MODES.items() if at == hook)
            log_line(f"missing {modes}: {module.__name__}.{owner_name} has no {method}")
        elif not hasattr(original, _MARK):
            setattr(owner, method, _wrap(original, hook, injector))


def _wrap(original: Callable[..., Any], hook: str, injector: FaultInjector) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        argument = args[0] if args else next(iter(kwargs.values()), None)
        if getattr(argument, "total_num_scheduled_tokens", 1) == 0:
            return original(self, *args, **kwargs)  # a step without work reads and drafts nothing
        slow = injector.at(hook, self, argument)
        if slow <= 1:
            return original(self, *args, **kwargs)
        begin = time.monotonic()
        try:
            return original(self, *args, **kwargs)
        finally:
            time.sleep((slow - 1) * (time.monotonic() - begin))

    setattr(wrapped, _MARK, True)
    return wrapped


class _PatchingFinder:
    """Find a module with the other finders and patch it once it is executed."""

    def __init__(self, later: dict[str, Callable[[Any], None]]) -> None:
        self._later = later

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find a module that is to be patched; None for all others."""
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

                # Set on the instance: tracebacks and inspect use the loader's class, which must stay as it is.
                spec.loader.exec_module = executed  # type: ignore[method-assign]  # intended
                return spec
        return None
