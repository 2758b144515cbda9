"""Measure what loadchaos finds on real servers, for docs/compatibility.md.

    .venv/bin/python scripts/real/compatibility.py [NAME ...]      the servers of SERVERS that are installed
    .venv/bin/python -m docs.compatibility                          writes the page from docs/compatibility.json

Each server is started, described by `loadchaos probe` and tested by `loadchaos suite --only smoke`. The result replaces the
entry of this server in docs/compatibility.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

PROJECT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(PROJECT))

from tests.real import servers
from tests.real.servers import Command, NotInstalledError

RESULTS = PROJECT / "docs" / "compatibility.json"
READY_S = 900.0


@dataclass(frozen=True)
class Setup:
    """A real server: its command, what stands in for a part of it, options of loadchaos.

    `behind` starts other servers first and gets their URLs.
    """

    title: str
    make: Callable[..., Command]
    stand_in: str = ""
    options: tuple[str, ...] = ()
    behind: tuple[Callable[..., Command], ...] = field(default=())


SERVERS: Mapping[str, Setup] = {
    "vllm-0.33.0": Setup("vLLM 0.33.0", servers.vllm_033, "random weights, the CPU kernels and torch of vLLM 0.32.0"),
    "vllm-0.32.0": Setup("vLLM 0.32.0", servers.vllm_032, "random weights, CPU"),
    "vllm-0.27.1": Setup("vLLM 0.27.1", servers.vllm_0271, "random weights, CPU"),
    "vllm-0.22.1": Setup("vLLM 0.22.1", servers.vllm_0221, "random weights, CPU"),
    "lmdeploy-0.6.5": Setup("LMDeploy 0.6.5", servers.lmdeploy_0_6, "engine"),
    "lmdeploy-0.10.0": Setup("LMDeploy 0.10.0", servers.lmdeploy_0_10, "engine"),
    "lmdeploy-0.18.0": Setup("LMDeploy 0.18.0", servers.lmdeploy_018, "engine"),
    "litellm": Setup(
        "LiteLLM 1.106.2",
        servers.litellm_vllm,
        "random weights of the vLLM 0.32.0 behind it, CPU",
        behind=(servers.vllm_032,),
    ),
    "llama.cpp": Setup("llama.cpp 0c1e570", servers.llama_cpp, "random weights, CPU"),
    "transformers-5.24.0": Setup(
        "transformers serve 5.24.0", servers.transformers_524, "random weights, CPU", ("--model", "tiny-text")
    ),
    "transformers-5.19.0": Setup(
        "transformers serve 5.19.0", servers.transformers_519, "random weights, CPU", ("--model", "tiny-text")
    ),
    "sglang-0.5.23": Setup("SGLang 0.5.23", servers.sglang_0523, "random weights, CPU"),
    "vllm-router": Setup(
        "vllm-router 0.1.17",
        servers.router,
        "two embedded servers behind it",
        behind=(servers.embedded, servers.embedded),
    ),
}


@contextlib.contextmanager
def running(command: Command, log: Path) -> Iterator[None]:
    """Start a server in a process group of its own; wait until it lists its models."""
    environment = {**os.environ, **command.env}
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["nice", "-n", "10", *command.argv], stdout=output, stderr=output, env=environment, start_new_session=True
        )
        try:
            _wait(command.url, process)
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + READY_S
    while time.monotonic() < end_s:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/v1/models", timeout=5, trust_env=False).status_code == 200:
                return
        if process.poll() is not None:
            raise RuntimeError(f"{url}: the server exited with {process.returncode}")
        time.sleep(0.5)
    raise RuntimeError(f"{url}: the server did not become ready")


def measure(name: str, setup: Setup, folder: Path) -> dict[str, Any]:
    """Describe and test one server."""
    with contextlib.ExitStack() as stack:
        behind, logs = [], []
        for number, make in enumerate(setup.behind):
            command = make()
            logs.append(folder / f"{name}-{number}.log")
            stack.enter_context(running(command, logs[-1]))
            behind.append(command.url)
        command = setup.make(*behind)
        stack.enter_context(running(command, folder / f"{name}.log"))
        _ask_first(command.url)
        address = command.url.removeprefix("http://")
        probed = json.loads(_loadchaos("probe", command.url, "--json", *setup.options).stdout)
        done = _loadchaos(
            "suite", command.url, "--only", "smoke", "--out", str(folder / name), "--authorize", address,
            *(part for log in logs or [folder / f"{name}.log"] for part in ("--server-log", str(log))), "--json",
            *setup.options,
        )  # fmt: skip
        suite = json.loads(done.stdout) if done.stdout.startswith("{") else {"profiles": []}
    return {
        "title": setup.title,
        "stand_in": setup.stand_in,
        "measured": f"{datetime.now(UTC):%Y-%m-%d}",
        "facts": {k: v for k, v in probed["facts"].items() if k not in ("base_url", "admin_url", "text", "sources")},
        "token_counts": (probed["facts"].get("text") or {}).get("source"),
        "profiles": probed["profiles"],
        "unknown": probed["unknown"],
        "verdicts": [
            {key: row.get(key) for key in ("name", "state", "verdict", "requests", "failures", "unknown", "error")}
            for row in suite["profiles"]
        ],
    }


def _ask_first(url: str) -> None:
    """Send a request before the probe.

    The first request through LiteLLM can take longer than a probe waits.
    """
    with contextlib.suppress(httpx.HTTPError, LookupError, TypeError, ValueError):
        model = httpx.get(f"{url}/v1/models", timeout=30, trust_env=False).json()["data"][0]["id"]
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
        httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False)


def _loadchaos(*args: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "CI"}
    argv = [sys.executable, "-m", "loadchaos", *args]
    return subprocess.run(argv, capture_output=True, text=True, timeout=1200, env=environment, check=False)


def main(names: list[str]) -> int:
    """Measure the named servers, or all that are installed."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    folder, failed = Path(tempfile.mkdtemp(prefix="compatibility-")), 0
    for name in names or SERVERS:
        try:
            results[name] = measure(name, SERVERS[name], folder)
        except NotInstalledError as e:
            print(f"{name}: skipped: {e}")
            continue
        except (RuntimeError, ValueError, subprocess.TimeoutExpired) as e:
            failed += 1
            print(f"{name}: {e}; its log is in {folder}")
            continue
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        print(f"{name}: {[row['verdict'] for row in results[name]['verdicts']]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
