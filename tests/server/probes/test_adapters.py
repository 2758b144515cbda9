import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

from loadchaos.server.discovery.calibrate import _adapters
from loadchaos.server.discovery.client import DiscoveryResponse
from loadchaos.server.probes.parts.adapters import AdaptersPart
from loadchaos.server.probes.prober import Prober
from tests.server.probes.conftest import FunctionAsker


def learned(asker: type[FunctionAsker], adapters: Sequence[str], answer: Any) -> tuple[AdaptersPart, Any]:
    server = asker(answer)
    part = AdaptersPart(server, random.Random(3), every_s=1, adapters=adapters)
    asyncio.run(part.learn())
    if not part.off:
        asyncio.run(part.act())
    return part, server


def test_adapters_and_base_model_are_asked_all_prompts_at_once(asker: type[FunctionAsker]) -> None:
    part, server = learned(asker, ["alpha", "beta"], lambda q, p, m: f"{m} says {q.prompt}")
    load = [(row["model"], row["kind"]) for row in server.rows if row["when"] == "load"]
    prompts = {kind for _, kind in load}
    assert len(prompts) == 3
    assert sorted(load) == sorted((model, kind) for model in ("base", "alpha", "beta") for kind in prompts)
    assert part.notes == []


def test_adapters_that_cannot_be_compared_are_named_before_the_load(asker: type[FunctionAsker]) -> None:
    cases: dict[str, tuple[Sequence[str], Any]] = {
        "LoRA adapters are not compared: the server lists no LoRA adapters": ((), lambda q, p, m: "x"),
        "LoRA adapters are not compared: beta: the idle server gave an error: no such": (
            ("alpha", "beta"), lambda q, p, m: 'error:no such' if m == "beta" else m
        ),
        "on the idle server the adapter beta answers all 3 prompts like the base model: not compared with it": (
            ("alpha", "beta"), lambda q, p, m: m if m == "alpha" else "x"
        ),
    }  # fmt: skip
    for note, (names, answer) in cases.items():
        part, server = learned(asker, names, answer)
        assert part.notes == [note]
        assert [row for row in server.rows if row.get("when") == "load"] or "not compared:" in note


def test_adapters_are_the_models_whose_parent_is_the_base_model() -> None:
    cards = [{"id": "base", "parent": None}, {"id": "alpha", "parent": "base"}, {"id": "other", "parent": "x"}, "text"]
    assert _adapters(DiscoveryResponse(200, {}, json.dumps({"data": cards})), "base") == ("alpha",)
    assert _adapters(DiscoveryResponse(404, {}, "no"), "base") == ()


def test_part_that_is_off_is_not_asked_beside_the_load(asker: type[FunctionAsker]) -> None:
    server = asker(lambda q, p, m: "x")
    part = AdaptersPart(server, random.Random(3), every_s=0.01, adapters=())

    async def story() -> None:
        prober = Prober(server, [part])
        await prober.learn()
        prober.start(lambda: False)
        await asyncio.sleep(0.1)
        await prober.stop()

    asyncio.run(story())
    assert part.off
    assert server.questions == []
    assert [(row["row"], row["kind"]) for row in server.rows] == [("learned", "adapters")]
    assert server.rows[0]["why"].endswith("the server lists no LoRA adapters")
