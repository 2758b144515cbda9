"""Contenders: LLM benchmark tools, their commands and output files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.cost.meter import Load
from bench.cost.truth import Ns, Seen

TOKENIZER = Path(os.environ.get("BENCH_TOKENIZER", Path.home() / ".cache/loadchaos/models/tiny-qwen3-vl"))
"""A folder with a Hugging Face tokenizer: none of them runs without one, and none may ask the hub."""

_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "NO_COLOR": "1"}
_PROMPT_TOKENS = 32


@dataclass(frozen=True)
class Tool:
    """One tool: builds its command line and reads its output."""

    argv: Callable[[Path, Load, str, Path], Sequence[str]]
    read: Callable[[Path], Seen]
    environment: Mapping[str, str]


def _vllm(bin_: Path, load: Load, url: str, folder: Path) -> Sequence[str]:
    argv = [str(bin_ / "vllm"), "bench", "serve", "--backend", "openai-chat", "--base-url", url, "--model", "bench"]
    argv += ["--endpoint", "/v1/chat/completions", "--tokenizer", str(TOKENIZER), "--dataset-name", "random"]
    argv += ["--random-input-len", str(_PROMPT_TOKENS), "--random-output-len", str(load.pace.events)]
    argv += ["--num-prompts", str(load.requests), "--max-concurrency", str(load.users), "--ignore-eos"]
    argv += ["--disable-tqdm", "--save-result", "--save-detailed", "--result-dir", str(folder)]
    return [*argv, "--result-filename", "vllm.json"]


def _read_vllm(folder: Path) -> Seen:
    output = json.loads((folder / "vllm.json").read_text())
    gaps = [gap for stream in output["itls"] for gap in stream]
    return Seen(output["completed"], output.get("failed", 0), ttft=_ns(output["ttfts"]), gaps=_ns(gaps))


def _guidellm(bin_: Path, load: Load, url: str, folder: Path) -> Sequence[str]:
    data = f"kind=synthetic_text,prompt_tokens={_PROMPT_TOKENS},output_tokens={load.pace.events}"
    return [
        str(bin_ / "guidellm"),
        "run",
        "--backend",
        f"kind=openai_http,target={url},model=bench",
        "--profile",
        f"kind=concurrent,streams={load.users}",
        "--constraint",
        f"kind=max_requests,count={load.requests}",
        "--data",
        data,
        "--tokenizer",
        f"kind=huggingface_auto,model={TOKENIZER}",
        "--disable-console",
        "--output",
        f"kind=json,path={folder / 'guidellm.json'}",
    ]


def _read_guidellm(folder: Path) -> Seen:
    output = json.loads((folder / "guidellm.json").read_text())["benchmarks"][0]["requests"]
    done: list[dict[str, Any]] = output["successful"] or []
    ttft = [r["time_to_first_token_ms"] / 1e3 for r in done if r.get("time_to_first_token_ms") is not None]
    itl = [r["inter_token_latency_ms"] / 1e3 for r in done if r.get("inter_token_latency_ms") is not None]
    return Seen(
        len(done), len(output["errored"] or []) + len(output["incomplete"] or []), ttft=_ns(ttft), gaps=_ns(itl)
    )


def _aiperf(bin_: Path, load: Load, url: str, folder: Path) -> Sequence[str]:
    argv = [str(bin_ / "aiperf"), "profile", "--model", "bench", "--url", url, "--endpoint-type", "chat", "--streaming"]
    argv += ["--tokenizer", str(TOKENIZER), "--concurrency", str(load.users), "--request-count", str(load.requests)]
    argv += ["--isl", str(_PROMPT_TOKENS), "--osl", str(load.pace.events), "--ui-type", "none"]
    return [*argv, "--artifact-dir", str(folder / "aiperf"), "--export-level", "records"]


def _read_aiperf(folder: Path) -> Seen:
    path = next((folder / "aiperf").rglob("profile_export.jsonl"))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    done = [row["metrics"] for row in rows if not row.get("error")]
    ttft = [m["time_to_first_token"]["value"] / 1e3 for m in done if "time_to_first_token" in m]
    itl = [m["inter_token_latency"]["value"] / 1e3 for m in done if "inter_token_latency" in m]
    return Seen(len(done), len(rows) - len(done), ttft=_ns(ttft), gaps=_ns(itl))


def _ns(seconds: list[float]) -> Ns:
    return (np.array(seconds) * 1e9).astype(np.int64)


TOOLS = {
    "vllm": Tool(_vllm, _read_vllm, _OFFLINE),
    "guidellm": Tool(_guidellm, _read_guidellm, _OFFLINE),
    # AIPerf takes a folder for a name of the hub when it is told to be offline.
    "aiperf": Tool(_aiperf, _read_aiperf, {"NO_COLOR": "1"}),
}
