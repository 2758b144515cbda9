"""Find the programs of Prometheus, or unpack Debian's packages.

Nothing is installed: `apt-get download` and `dpkg -x`, no root, no services.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

ENV = "LOADCHAOS_PROMETHEUS"
PACKAGES = ("prometheus", "prometheus-alertmanager")
_DOWNLOAD_LIMIT_S = 120


def cache() -> Path:
    """Folder of the unpacked packages: `$XDG_CACHE_HOME/loadchaos/prometheus`."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "loadchaos" / "prometheus"


def find(program: str) -> Path | None:
    """Find a program in `$LOADCHAOS_PROMETHEUS`, on PATH or in the cache."""
    on_path = shutil.which(program)
    given = os.environ.get(ENV)
    places = [*([Path(given) / program] if given else []), *([Path(on_path)] if on_path else [])]
    places.append(cache() / "usr" / "bin" / program)
    return next((p for p in places if os.access(p, os.X_OK)), None)


def fetch(packages: Sequence[str] = PACKAGES) -> str:
    """Unpack Debian packages into the cache.

    Returns the reason of a failure, else an empty text.
    """
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed on this machine"
    target = cache()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            for name in packages:
                _run(["apt-get", "-o", "Acquire::http::Timeout=10", "-o", "Acquire::Retries=1", "download", name], work)
            unpacked = Path(work) / "root"
            for package in Path(work).glob("*.deb"):
                _run(["dpkg", "-x", str(package), str(unpacked)], work)
            shutil.copytree(unpacked, target, symlinks=True, dirs_exist_ok=True)
    except subprocess.SubprocessError as e:
        output = (getattr(e, "stderr", None) or str(e)).strip().splitlines()
        return f"Debian's {', '.join(packages)} could not be fetched: {output[-1] if output else e}"
    except OSError as e:
        return f"Debian's {', '.join(packages)} could not be unpacked to {target}: {e}"
    return ""


def _run(argv: list[str], folder: str) -> None:
    subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True, timeout=_DOWNLOAD_LIMIT_S)
