"""The corpus of logs is balanced: whoever teaches the classifier a crash also shows it what is no crash."""

from __future__ import annotations

from pathlib import Path

CRASHES = Path(__file__).parents[2] / "crashes"


def test_there_are_at_least_as_many_benign_logs_as_crashes() -> None:
    benign = list((CRASHES / "benign").glob("*.log"))
    assert len(benign) >= len([p for p in CRASHES.rglob("*.log") if p.parent.name != "benign"])


def test_every_speaker_has_a_log() -> None:
    speakers = {"cuda", "gateway", "host", "lmdeploy", "memory", "nccl", "sglang", "vllm"}
    assert {p.parent.name for p in CRASHES.rglob("*.log")} == speakers | {"benign"}
