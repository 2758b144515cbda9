"""Traffic is fitted to servers that differ from what a profile expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.runner.foreign_server import PAGES, ForeignServer, serving

TEXT: dict[str, Any] = {"name": "text", "weight": 3, "payload": {"text": {"tokens": "16..32"}}, "output": {"max": 8}}
IMAGES: dict[str, Any] = {
    "name": "images", "weight": 1, "output": {"max": 8},
    "payload": {"images": {"count": 1, "size": "448x448"}, "text": {"tokens": "16..32"}},
}  # fmt: skip
EXPECT = ["engine_deaths == 0", "hangs == 0", "failures == 0", "ok_share >= 95%"]


@pytest.mark.parametrize("images", ["fails", "cut"])
def test_server_that_fails_on_images_gets_text_and_one_finding(images: str, start: Any, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.touch()
    with serving(ForeignServer(PAGES, images=images, log=log)) as server:
        run = start("--target", server.url, "--server-log", str(log), traffic=[TEXT, IMAGES], expect=EXPECT)
        code = run.ends()
    verdict = run.verdict()
    assert (code, verdict["verdict"]) == (0, "pass"), run.output
    assert set(verdict["outcomes"]) == {"ok"}
    assert server.asked["image"] <= 4
    assert "sent as text only" in run.check("fitted images")["actual"]
    (found,) = [f for f in verdict["failures"] if f["id"] == "image_input_error"]
    assert (found["before_load"], found["count"]) == (True, 1)
    assert ("500" in found["title"]) == (images == "fails")
    assert all(f["before_load"] for f in verdict["failures"])
    assert "before the load" in " ".join(run.output.split())
    assert verdict["failure_counts"]["known"] == verdict["failure_counts"]["unexplained"] == 0
