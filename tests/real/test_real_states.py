"""Faults of bench.states on real servers: states and verdict."""

import json
from pathlib import Path

import pytest

from bench.states.faults import FAULTS, NotHereError
from bench.states.places import Place
from bench.states.run import measure
from tests.real.conftest import Server, on
from tests.real.servers import NotInstalledError

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]
ONES = [
    (name, server)
    for name, fault in FAULTS.items()
    for server in fault.on
    if server != "embedded" and name != "healthy"
]


@pytest.mark.parametrize(("name", "server"), ONES, ids=[f"{server}-{name}" for name, server in ONES])
def test_real_states_follow_from_the_fault(
    name: str, server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    fault, there = FAULTS[name], None
    if server == "vllm" and fault.outlived:
        shared: Server = request.getfixturevalue("shared_vllm")
        there = Place({"on_death": "wait"}, on(shared))
    try:
        measured = measure(fault, server, tmp_path, 0.0, there)
    except (NotInstalledError, NotHereError) as e:
        pytest.skip(str(e))
    (tmp_path / "measured.json").write_text(json.dumps(measured.took))
    assert [state for state, s in measured.took.items() if s is None] == []
    assert measured.kinds == fault.kinds
    assert measured.wrong == ()
