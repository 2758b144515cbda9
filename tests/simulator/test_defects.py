from pathlib import Path

import pytest

from loadchaos.simulator import defects
from loadchaos.simulator.defects import DEFECTS, Defect
from loadchaos.simulator.engine.engine import Engine
from loadchaos.simulator.engine.request import Batch
from loadchaos.simulator.engine.rules import EngineRules
from loadchaos.simulator.engine.types import EngineConfig, EngineFault, EngineRequest
from tests.simulator.conftest import run_requests


def test_defects_have_one_file_each() -> None:
    files = {path.stem for path in Path(defects.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == set(DEFECTS)


def test_defect_added_to_the_registry_is_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(batch: Batch, config: EngineConfig) -> None:
        raise EngineFault("RuntimeError: planted by a test", [])

    def plant(rules: EngineRules) -> None:
        rules.before_step.append(check)

    monkeypatch.setitem(DEFECTS, "first_step", Defect("first_step", "vllm", "dies at once", "", {}, plant))
    fault = run_requests(EngineConfig(defects=frozenset(["first_step"])), EngineRequest("a", 10, 1)).fault
    assert fault is not None
    assert fault.title == "RuntimeError: planted by a test"


def test_plant_refuses_an_unknown_defect_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="did you mean encoder_free_on_speculated"):
        Engine(EngineConfig(defects=frozenset(["encoder_free_on_speculation"])))


def test_defects_have_a_description_and_a_dialect() -> None:
    for name, defect in DEFECTS.items():
        assert defect.name == name
        assert defect.dialect in {"vllm", "lmdeploy"}
        assert defect.about
        assert "\n" not in defect.about
        assert set(defect.remedies) <= set(EngineConfig.__dataclass_fields__)
