import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.run.conftest import Start
from tests.run.foreign_server import PAGES, ForeignServer, serving

TEXT: dict[str, Any] = {"name": "text", "weight": 3, "payload": {"text": {"tokens": "16..32"}}, "output": {"max": 8}}
IMAGES: dict[str, Any] = {
    "name": "images", "weight": 1, "output": {"max": 8},
    "payload": {"images": {"count": 1, "size": "448x448"}, "text": {"tokens": "16..32"}},
}  # fmt: skip
EXPECT = ["engine_deaths == 0", "hangs == 0", "failures == 0", "ok_share >= 95%"]


@pytest.mark.parametrize("images", ["fails", pytest.param("cut", marks=pytest.mark.slow)])
def test_server_that_fails_on_images_gets_text_and_one_finding(images: str, start: Start, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("traffic", "verdict"), [([IMAGES], "unknown"), ([TEXT, IMAGES], "pass")])
def test_profile_of_images_on_a_model_that_ignores_them_is_unknown(
    traffic: list[dict[str, Any]], verdict: str, start: Start
) -> None:
    with serving(ForeignServer(PAGES, images="ignored")) as server:
        run = start("--target", server.url, traffic=traffic, expect=EXPECT)
        assert run.ends() == {"unknown": 3, "pass": 0}[verdict], run.output
    assert run.verdict()["verdict"] == verdict
    if verdict == "unknown":
        assert run.check("substance")["actual"] == "20 of 20 requests were replaced by text (images)"
        assert "with the payload of the profile" in " ".join(run.output.split())


def test_streamed_usage_without_image_tokens_is_a_finding_of_its_own(start: Start) -> None:
    with serving(ForeignServer(PAGES, images="uncounted_in_streams")) as server:
        run = start("--target", server.url, traffic=[TEXT, IMAGES], expect=EXPECT)
        assert run.ends() == 0, run.output
    assert run.check("exact_lengths")["verdict"] == "pass"
    assert "left out in all 5 answers of images" in run.check("image_usage")["actual"]
    assert run.rows("requests-*.jsonl", row="begin", images=1)


def test_no_huge_prompt_follows_where_a_server_has_no_limit(start: Start) -> None:
    near = {"name": "near", "payload": {"near_limit": {"band": "-8..-1", "step": 4, "plus": [0]}}}
    with serving(ForeignServer(PAGES)) as server:
        run = start("--target", server.url, "--authorize", server.url, traffic=[near])
        assert run.ends() == 3, run.output
    assert max(row["len"] for row in run.rows("requests-*.jsonl", row="begin")) < 10_000
    assert run.check("substance")["verdict"] == "unknown"


def test_slow_server_that_reaches_max_in_flight_is_no_limit_of_ours(start: Start) -> None:
    load = [{"rate": "10/s", "law": "constant", "for": "3s", "max_in_flight": 4}]
    with serving(ForeignServer(PAGES, first_s=1.0)) as server:
        run = start("--target", server.url, load=load)
        assert run.ends() == 3, run.output
    generator = run.verdict()["generator"]
    assert generator["limited"] is False
    assert "the profile's max_in_flight of 4 was reached, as answers took 1" in generator["slots"][0]
    assert "requests were not sent" in generator["slots"][0]
    assert "itself was the limit" not in run.output


def test_failure_and_incident_name_the_hostile_image(start: Start) -> None:
    images = ["rgb.png", "la.png"]
    data = (Path(__file__).parents[2] / "images" / "la.png").read_bytes()
    hostile = {"name": "hostile", "payload": {"hostile_images": {"only": images}}, "output": {"max": 4}}
    with serving(ForeignServer(PAGES, fails_on=base64.b64encode(data).decode())) as server:
        run = start("--target", server.url, "--authorize", server.url, traffic=[hostile])
        assert run.ends() == 1, run.output
    (failure,) = run.verdict()["failures"]
    assert failure["images"] == ["la.png"]
    assert failure["title"].endswith("(image la.png)")
    assert "(image la.png)" in " ".join(run.output.split())
    folder = run.folder / "incidents" / failure["incident"]
    assert "la.png" in (folder / "incident.md").read_text()
    incident = json.loads((folder / "incident.json").read_text())
    assert incident["title"].endswith("(image la.png)")
    assert {r["image_file"] for r in incident["in_flight"]} >= {"la.png"}
