"""State of a replay, a minimisation or a bisection on disk. It is not continued with settings that its tries did not
have.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import orjson

from loadchaos.campaigns.replay.one_try import TryPlan
from loadchaos.core.errors import OptionError
from loadchaos.core.redact import launch_secrets
from loadchaos.core.whole_file import write_json

_INHERITED = (
    "VLLM_", "LMDEPLOY_", "SGLANG_", "SGL_", "CUDA_", "NCCL_", "TORCH_", "PYTORCH_", "TRITON_", "HF_", "LOADCHAOS_",
)  # fmt: skip
"""Prefixes of variables that a launched server inherits and reads."""
T = TypeVar("T")
SHARED, FRESH = "shared by tries (--share-server)", "fresh for each try"


class SearchState:
    """JSON file with the schema, the settings and the results of a search so far."""

    def __init__(self, file: Path, schema: int, settings: Mapping[str, str]) -> None:
        self._file, self._schema, self._settings = file, schema, dict(settings)

    def load(self, read: Callable[[Mapping[str, Any]], T], otherwise: T) -> T:
        """Results of the file, as `read` makes them of its keys; `otherwise` where there is no file. Raises OptionError
        for a file of another version or with other settings, and for one that cannot be read.
        """
        try:
            data = orjson.loads(self._file.read_bytes())
            saved = data.get("settings") if data.get("schema") == self._schema else None
            require_same(self._file, saved, self._settings)
            return read(data)
        except FileNotFoundError:
            return otherwise
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise OptionError(f"{self._file}: the state cannot be read: {e}; start without --resume") from e

    def save(self, **results: Any) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._file, {"schema": self._schema, "settings": self._settings, **results})


def settings_of(plan: TryPlan) -> dict[str, str]:
    """Settings on which the results of tries depend, beside their candidates. Values of variables that may be secrets
    are replaced by hashes that are slow to guess.
    """
    launch = plan.server.launch
    variables = {name: value for name, value in os.environ.items() if name.startswith(_INHERITED)}
    variables |= launch.env if launch is not None else {}
    secret = launch_secrets(variables)
    found = {
        "failure": plan.expected.describe(),
        "choice of servers": SHARED if plan.share else FRESH,
        "environment": " ".join(
            f"{name}={_hash(name, value) if name in secret else value}" for name, value in sorted(variables.items())
        ),
    }
    if plan.options.model:
        found["model (--model)"] = plan.options.model
    return found


def _hash(name: str, value: str) -> str:
    """Hash a value so that a guess takes 16 MB and some 40 ms of CPU."""
    return f"#{hashlib.scrypt(value.encode(), salt=f'loadchaos {name}'.encode(), n=2**14, r=8, p=1, dklen=16).hex()}"


def require_same(file: Path, saved: object, present: Mapping[str, str]) -> None:
    """Raise OptionError if a saved state was made with other settings."""
    if not isinstance(saved, dict):
        raise OptionError(f"{file} is the state of an older version of loadchaos: start without --resume")
    for name in (*present, *(name for name in saved if name not in present)):
        before, now = str(saved.get(name, "")), present.get(name, "")
        if before != now:
            shown = [_difference(before, now), _difference(now, before)] if name == "environment" else [before, now]
            raise OptionError(
                f"{file}: its tries had another {name}: {shown[0] or 'none'} (now {shown[1] or 'none'}). Use the same "
                "again, or start without --resume"
            )


def _difference(one: str, other: str) -> str:
    return " ".join(part for part in one.split(" ") if part not in other.split(" "))
