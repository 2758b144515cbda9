"""A run folder that loadchaos 0.1 wrote (samples/run-0.1.tar.gz) is replayed."""

import tarfile
from pathlib import Path

import orjson
import pytest

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.campaigns.replay import bodies
from loadchaos.campaigns.replay.expected import choose
from loadchaos.campaigns.replay.from_run import trace_of_run
from loadchaos.campaigns.replay.servers import of_source, recorded_parts
from loadchaos.campaigns.replay.sources import read_source
from loadchaos.core.ledger.folder import RunFolder

SAMPLE = Path(__file__).parent / "samples/run-0.1.tar.gz"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    with tarfile.open(SAMPLE) as archive:
        archive.extractall(tmp_path, filter="data")
    return RunFolder(tmp_path / "run-0.1")


def test_trace_of_a_run_of_loadchaos_0_1_has_its_requests_and_bodies(run: RunFolder, tmp_path: Path) -> None:
    trace = trace_of_run(run)
    assert len(trace.sends) == 14
    stored = bodies.stored(trace, tmp_path / "trace")
    sent = [orjson.loads(stored.body_file(s).read_bytes()) for s in stored.sends]
    assert {body["model"] for body in sent} == {"sim"}
    assert [s.max_tokens for s in stored.sends[:3]] == [1, 1100, 1164]
    assert [body["max_tokens"] for body in sent[:3]] == [1, 1100, 1164]


def test_source_of_a_run_of_loadchaos_0_1_names_its_failure_and_server(run: RunFolder, tmp_path: Path) -> None:
    verdict = Verdict.from_json(orjson.loads(run.verdict.read_bytes()))
    assert choose(verdict.failures, None, "run-0.1").id == "index_oob_indexkernel"
    trace = read_source(run.path, tmp_path / "scratch")
    launch = of_source(trace).launch
    assert launch is not None
    assert "loadchaos.simulator.server" in launch.argv  # where today's embedded server is
    assert "near_max_oob" in launch.argv
    limits = recorded_parts(trace)["limits"]
    assert isinstance(limits, dict)
    assert limits["total"]
