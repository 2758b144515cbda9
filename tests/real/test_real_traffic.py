"""Traffic on real vLLM and LMDeploy: lengths, images, payloads."""

import json
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.real.conftest import RANDOM_WEIGHTS, Run, Server, on
from tests.real.servers import PROJECT

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]


def traffic(name: str, payload: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "payload": payload, "output": {"max": 2}, **more}


TEXTS = [
    traffic("text", {"text": {"tokens": "20..900"}}, output={"exact": 4}),
    traffic("long", {"text": {"tokens": "2000..4000"}}),
    traffic("shared", {"text": {"tokens": "150..400", "shared_prefix": {"tokens": 128, "groups": 2}}}),
    traffic("scripts", {"text": {"tokens": "30..300", "script": "mixed"}}, weight=2),
    traffic("talk", {"conversation": {"turns": 5, "tokens": "300..800", "parallel": 2}}, weight=2),
    traffic("png", {"images": {"size": "64x64", "count": "1..2", "aspect": ["1:1", "3:1"]}, "text": {"tokens": 40}}),
    traffic("photo", {"images": {"size": "300x200", "format": "photo"}, "text": {"tokens": 40}}),
]


@pytest.mark.parametrize("server", ["shared_vllm", "shared_lmdeploy"])
def test_real_usage_equals_the_plan_in_every_answer(
    server: str, loadchaos: Run, request: pytest.FixtureRequest
) -> None:
    it: Server = request.getfixturevalue(server)
    sent = TEXTS if server == "shared_vllm" else [t for t in TEXTS if t["name"] != "long"]
    result = loadchaos({"name": "exact", "traffic": sent, "load": [{"users": 4, "requests": 120}]}, *on(it))
    assert result.verdict["outcomes"] == {"ok": 120}, result.output
    assert result.check("exact_lengths") == "120 of 120 prompts"


def test_real_cache_hits_equal_the_repeats_sent(shared_vllm: Server, loadchaos: Run) -> None:
    images = {"count": "1..2", "size": "256x256", "unique": "50%", "near_duplicates": "20%", "reuse_distance": 20}
    result = loadchaos(
        {
            "name": "dial",
            "requires": ["mm_cache"],
            "load": [{"users": 8, "requests": 200}],
            "traffic": [traffic("images", {"images": images, "text": {"tokens": "16..64"}})],
        },
        *on(shared_vllm),
    )
    (dial,) = [c for c in result.verdict["checks"] if c["name"] == "image_dial"]
    assert dial["verdict"] == "pass"
    assert " hits in " in dial["actual"]
    assert "evicts earlier" not in dial["actual"]


def test_real_newer_request_options_are_answered(shared_vllm: Server, loadchaos: Run) -> None:
    text = {"text": {"tokens": 40}}
    sent = [
        *(traffic(f"tools_{c}", {**text, "tools": {"count": 2, "choice": c}}, output={"max": 24})
          for c in ("auto", "required", "named", "none")),
        *(traffic(f"schema_{s}", {**text, "structured": {"json_schema": s}}, output={"max": 32})
          for s in ("small", "deep", "wide", "choice")),
        traffic("logprobs", {**text, "sampling": {"logprobs": 5}}, output={"exact": 8}),
        traffic("several", {**text, "sampling": {"n": 3}}, output={"exact": 8}),
        traffic("whole", {**text, "sampling": {"n": 2, "logprobs": 2}}, output={"exact": 8}, stream=False),
        traffic("avi", {**text, "video": {"frames": 6, "size": "128x96"}}),
        traffic("frames", {**text, "video": {"frames": 5, "size": "128x128", "format": "frames"}}),
        traffic("pipelined", text, behaviour={"pipeline": {"depth": 3}}),
    ]  # fmt: skip
    result = loadchaos({"name": "features", "traffic": sent, "load": [{"users": 4, "requests": 100}]}, *on(shared_vllm))
    assert set(result.verdict["outcomes"]) == {"ok"}, result.output
    assert set(result.verdict["by_traffic"]) == {t["name"] for t in sent}
    for name in ("exact_lengths", "exact_outputs"):
        right, _, of = result.check(name).partition(" of ")
        assert right == of.split()[0]


def test_real_hostile_images_fail_in_two_ways_that_can_be_accepted(shared_vllm: Server, loadchaos: Run) -> None:
    result = loadchaos("hostile", *on(shared_vllm))
    assert set(result.failures) == {"image_pixel_limit", "data_url_not_base64"}, result.output
    text = (PROJECT / "profiles/hostile.yaml").read_text().replace("# accept:", "accept:").replace("#   -", "  -")
    accepted = [{**entry, "until": str(entry["until"])} for entry in YAML(typ="safe").load(text)["accept"]]
    result = loadchaos("hostile", *on(shared_vllm), "--set", f"accept={json.dumps([*RANDOM_WEIGHTS, *accepted])}")
    assert all(e["verdict"] == "pass" for e in result.verdict["expectations"]), result.output
    assert result.open_checks() <= {"watching"}, "it decodes large images where it answers /metrics"
    assert result.failures == {}


def test_hostile_images_are_refused_or_answered_by_lmdeploy(shared_lmdeploy: Server, loadchaos: Run) -> None:
    result = loadchaos("hostile", *on(shared_lmdeploy))
    assert result.verdict["verdict"] == "pass", result.output
