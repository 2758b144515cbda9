"""Corpus of logs: benign logs and crashes are balanced."""

from __future__ import annotations

from pathlib import Path

CRASHES = Path(__file__).parents[2] / "crashes"


def test_corpus_has_as_many_benign_logs_as_crashes() -> None:
    benign = list((CRASHES / "benign").glob("*.log"))
    crashes = [p for p in CRASHES.rglob("*.log") if p.parent.name != "benign" and not p.name.startswith("start-")]
    assert len(benign) >= len(crashes)


def test_corpus_has_a_log_of_every_speaker() -> None:
    speakers = {"cuda", "gateway", "host", "lmdeploy", "memory", "nccl", "sglang", "vllm"}
    assert {p.parent.name for p in CRASHES.rglob("*.log")} == speakers | {"benign"}
