from typing import Any

from loadchaos.analysis.judge import Judge
from loadchaos.core.typed_json import to_json
from tests.analysis.conftest import History
from tests.rows import folded


def incidents(history: History) -> list[dict[str, Any]]:
    judge = folded(Judge(), history.rows)
    judge.verdict()
    return [to_json(i.record()) for i in judge.incidents]


def test_incident_has_the_readings_of_the_minute_before(history: History) -> None:
    history.begin().work(90)
    device = {"source": "dcgm", "host": "h:9400", "device": "gpu0"}
    history.add("device", **device, values={"gpu_memory_used_bytes": 1e9, "gpu_sm_clock_hz": 1e9})
    history.die(history.work(1).send(3)).run(5)
    [death] = incidents(history.end())
    engine = [f for f in death["figures"] if f["whose"] == "engine 0"]
    assert 11 <= len(engine) <= 14
    assert -62 <= engine[0]["at_s"] - death["opened_at_s"] <= -50
    assert -1.1 <= engine[-1]["at_s"] - death["opened_at_s"] <= 0
    assert engine[-1]["requests_running"] == 8
    assert next(f for f in death["figures"] if f["whose"] == "gpu0 of h:9400")["gpu_memory_used_bytes"] == 1e9


def test_incident_has_readings_of_a_hung_server(history: History) -> None:
    history.processes(engine="R").begin().work(5).send(3)
    history.pids[11] = ("engine_core", "T")
    history.in_flight = 3
    history.stall(30)
    [hang] = incidents(history.end())
    after = [f for f in hang["figures"] if f["at_s"] > hang["opened_at_s"] + 1]
    assert 4 <= len(after) <= 8
    assert len({f["generation_tokens_total"] for f in after}) == 1


def test_incident_leaves_out_readings_of_other_replicas(history: History) -> None:
    history.begin().work(5)
    values = {"requests_running": 77.0}
    history.add("metrics", replica="b", engine="0", took_ns=1, values=values)
    history.die(history.send(1)).run(5)
    [death] = incidents(history.end())
    assert 77.0 not in [f.get("requests_running") for f in death["figures"]]
