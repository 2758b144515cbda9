"""Contender: our own users, as the Locust child and as `loadchaos run`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.cost.meter import Load, Metered
from bench.cost.truth import Ns, Seen
from loadchaos.core.histogram import bucket_middle
from loadchaos.core.model import Facts, TextFacts
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.load.worker.worker_plan import WorkerPlan
from loadchaos.profile.run_plan import RunPlan

LOCUSTFILE = Path(__file__).parents[2] / "loadchaos" / "load" / "locustfile.py"
_PROMPT_TOKENS = 32
_ENDINGS = ("er", "ne", "se", "al", "in", "or", "is", "et", "um", "ad")
_IMAGE = "1024x1024"
_SPARE_SLOTS = 1.25
"""An open phase never waits: a stream that is a little late must find a slot."""


def profile(load: Load) -> dict[str, Any]:
    """Write the load as a profile.

    It has users in a closed loop, or streams begun at the rate that keeps that many open.
    """
    payload: dict[str, Any] = {"text": {"tokens": _PROMPT_TOKENS}}
    if load.images:
        payload["images"] = {"count": load.images, "size": _IMAGE, "unique": "100%"}
    phase: dict[str, Any] = {"users": load.users, "requests": load.requests}
    if load.stream and not load.closed:
        rate = 1 / load.stagger_s
        phase = {
            "rate": f"{rate:.6f}/s", "law": "constant", "for": f"{load.requests / rate:.6f}s",
            "max_in_flight": int(load.users * _SPARE_SLOTS),
        }  # fmt: skip
    traffic = {"name": "chat", "payload": payload, "output": {"max": load.pace.events}, "stream": load.stream}
    return {"name": "bench", "traffic": [traffic], "load": [phase]}


def facts(url: str) -> Facts:
    """Facts as calibration would find them: a word is a token, an image 1000."""
    words = tuple((f" {first}{last}", 1) for first in ("riv", "sto", "pap", "hou") for last in _ENDINGS)
    text = TextFacts(overhead=8, words=words, unit=" a", source="bench")
    return Facts(
        base_url=url,
        admin_url=url,
        dialect="vllm",
        model="bench",
        max_model_len=131072,
        images=True,
        image_tokens={_IMAGE: 1024},
        text=text,
    )


def plan(load: Load, url: str, folder: Path) -> dict[str, Any]:
    """Build plan.json."""
    return {
        "profile": profile(load),
        "seed": 1,
        "base_url": url,
        "api_key_env": None,
        "headers": {},
        "folder": str(folder / "run"),
        "workers": 1,
    }


def body(load: Load, url: str) -> bytes:
    """Build one of our requests, for every other contender to send."""
    worker = WorkerPlan(from_json(RunPlan, plan(load, url, Path())), facts(url), 0, {})
    _, steps = next(iter(worker.phases()))
    return worker.build_request(next(steps)).body


def start(load: Load, url: str, folder: Path) -> Sequence[str]:
    """Prepare the run folder; return the command line of the child."""
    run = folder / "run"
    run.mkdir()
    (run / "plan.json").write_text(json.dumps(plan(load, url, folder)))
    (run / "facts.json").write_text(json.dumps(to_json(facts(url))))
    locust = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary"]
    return [*locust, "--loglevel", "WARNING"]


def environment(folder: Path) -> dict[str, str]:
    """Environment with the path of the plan."""
    return {"LOADCHAOS_PLAN": str(folder / "run" / "plan.json")}


def read(folder: Path, stamps: NDArray[np.void], first_ns: int, last_ns: int) -> Seen:
    """Read the ledger; the server's id of each answer names its stream."""
    ends = [row for row in _rows(folder) if row["row"] == "end"]
    beats = [row for row in _rows(folder) if row["row"] == "heartbeat" and first_ns <= row["at_ns"] <= last_ns]
    sent = {int(s["stream"]): int(s["sent_ns"]) for s in stamps[stamps["event"] == 0]}
    first: list[tuple[int, int]] = []
    gaps: dict[int, int] = {}
    for row in ends:
        stream = int(str(row["request_id"] or "-1").rpartition("-")[2])
        if row["first_token_ns"] is None or not first_ns <= sent.get(stream, 0) <= last_ns:
            continue
        first.append((sent[stream], row["first_token_ns"]))
        for index, count in row["itl_hist"].items():
            gaps[int(index)] = gaps.get(int(index), 0) + count
    ok = sum(row["outcome"] == "ok" for row in ends)
    lags = [row["lag_ns"] / 1e6 for row in beats] or [0.0]
    missed = sum(row["count"] for row in _rows(folder) if row["row"] == "missed")
    reported = {"lag_p50_ms": float(np.median(lags)), "lag_max_ms": max(lags), "missed": float(missed)}
    reported["tokens"] = float(sum(row["chunks"] for row in ends))
    return Seen(ok, len(ends) - ok, np.array(first, np.int64).reshape(-1, 2), gaps=_expanded(gaps), reported=reported)


def whole_run(load: Load, url: str, folder: Path) -> Sequence[str]:
    """Run `loadchaos run` with monitor, follower, verdict and report."""
    path = folder / "bench.yaml"
    path.write_text(json.dumps({**profile(load), "target": {"dialect": "openai"}, "expect": ["failures == 0"]}))
    argv = [sys.executable, "-m", "loadchaos", "run", str(path), "--target", url, "--out", str(folder / "runs")]
    return [*argv, "--no-live", "--exporter-port", "0"]


def read_run(trial: Any, metered: Metered, _: NDArray[np.void]) -> Seen:
    """Read counts only: the timing is that of the child."""
    rows = [row for path in trial.folder.glob("runs/*/requests-*.jsonl") for row in _of(path)]
    outcomes = [row["outcome"] for row in rows if row["row"] == "end"]
    return Seen(outcomes.count("ok"), len(outcomes) - outcomes.count("ok"), reported={"exit": float(metered.code)})


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    return _of(folder / "run" / "requests-0.jsonl")


def _of(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            yield json.loads(line)


def _expanded(counts: dict[int, int]) -> Ns:
    indices = sorted(counts)
    middles = np.array([bucket_middle(i) for i in indices])
    return np.repeat(middles, [counts[i] for i in indices]).astype(np.int64)
