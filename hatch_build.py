"""Build the native reader into wheels and editable installs, where a C compiler and Python's headers are.

Without them, or with LOADCHAOS_PURE=1, the wheel is pure Python. It has all features and needs more CPU for streams.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "loadchaos/load/wire/_native.c"
BUILT = "loadchaos/load/wire/_native.abi3.so"
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Wno-cast-function-type", "-Wno-missing-field-initializers")
LINKED = ("-shared", "-fPIC", "-fvisibility=hidden")


class NativeReaderHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hook of hatchling; it finds the only one in this file."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "editable":  # Python imports it from the checkout
            compile_into(root / BUILT, root / SOURCE)
            return
        self._folder = tempfile.TemporaryDirectory()
        built = Path(self._folder.name) / Path(BUILT).name
        if compile_into(built, root / SOURCE):
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            build_data["force_include"][str(built)] = BUILT

    def finalize(self, _version: str, _build_data: dict[str, Any], _artifact: str) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def compile_into(target: Path, source: Path, *more: str) -> bool:
    """Compile the native reader; False, with the reason on stderr, where it cannot be built here."""
    target.unlink(missing_ok=True)
    if os.environ.get("LOADCHAOS_PURE", "0") not in ("", "0") or not sys.platform.startswith("linux"):
        return False
    compiler = next(filter(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang")), None)
    headers = sysconfig.get_path("include")
    if compiler is None or not Path(headers, "Python.h").is_file():
        return _left_out("there is no C compiler" if compiler is None else f"there is no Python.h in {headers}")
    # Stripped, and without a path, so that each build of a source gives the same bytes.
    command = [compiler, *FLAGS, *LINKED, "-s", *more, "-I", headers, source.name, "-o", str(target)]
    done = subprocess.run(command, cwd=source.parent, capture_output=True, text=True, check=False)
    return done.returncode == 0 or _left_out(done.stderr)


def _left_out(why: str) -> bool:
    print(f"loadchaos: the native reader is left out: {why}", file=sys.stderr)
    return False
