import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.recorder import EventRecorder
from loadchaos.core.model import Facts
from loadchaos.core.redact import Redactor
from loadchaos.load import registry
from loadchaos.profile.profile import from_mapping
from loadchaos.run.asker import HttpAsker
from loadchaos.run.run_probes import RunProbes

PROFILE = {
    "name": "x", "traffic": [{"name": "text", "payload": {"text": {"tokens": 32}}, "output": {"max": 8}}],
    "load": [{"users": 1, "for": "1s"}], "correctness": {"probes": {"kinds": ["copy", "image_colour"]}},
}  # fmt: skip


def prompts(folder: Path, url: str, *, images: bool | None = None, asked: Mapping[str, Any] = PROFILE) -> set[str]:
    """Prompts and images of the questions before the load; nothing listens there."""
    folder.mkdir()
    rows: list[Any] = []
    record = EventRecorder(RunFolder(folder), rows.append)
    asker = HttpAsker.with_own_client({})
    server: Any = SimpleNamespace(target=SimpleNamespace(held=None), url=url, asker=asker)
    profile = from_mapping(asked, registry.traffic_registry())
    facts = Facts(base_url=url, admin_url=url, dialect="vllm", model="m", images=images)
    probes = RunProbes(profile, server, record, Redactor())
    most = probes.prepare(facts, seed=0)
    asyncio.run(probes.learn(facts))
    record.close()
    assert most >= sum(row["row"] == "question" for row in rows)
    return {f"{row['prompt']} {row.get('image_names')}" for row in rows if row["row"] == "question"}


def test_questions_of_another_run_with_this_seed_are_new(tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        first, second = prompts(tmp_path / "x-1", url), prompts(tmp_path / "x-2", url)
    assert len(first) == len(second) > 2
    assert not first & second


def test_questions_about_images_are_not_asked_of_a_model_without_images(tmp_path: Path) -> None:
    payload = {"images": {"count": 1, "size": "64x64"}}
    traffic = [{"name": "images", "payload": payload, "output": {"max": 8}}]
    asked = {**PROFILE, "traffic": traffic, "correctness": {"probes": {"every": "1s"}, "images": {"every": "1s"}}}
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        may, none = (prompts(tmp_path / str(images), url, images=images, asked=asked) for images in (None, False))
    assert any("picture" in prompt for prompt in may)
    assert none
    assert not any("picture" in prompt for prompt in none)
