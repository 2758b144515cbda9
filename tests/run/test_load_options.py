import json

from ruamel.yaml import YAML

from tests.run.conftest import Start

WORDS = ("--embedded", "--rate", "40", "--num-prompts", "40", "--num-warmups", "5", "--random-input-len", "50",
         "--random-output-len", "6")  # fmt: skip
RESULT = ("--save-result", "--result-dir", "results", "--label", "mine", "--metadata", "commit=abc", "gpu=none")


def test_run_without_a_profile_sends_its_requests_and_saves_the_result(start: Start) -> None:
    figures = ("--goodput", "ttft:60000", "e2el:60000", "--percentile-metrics", "ttft,e2el",
               "--metric-percentiles", "50,99")  # fmt: skip
    run = start(*WORDS, *figures, *RESULT, profile=())
    assert run.ends() == 0, run.output
    assert run.verdict()["outcomes"] == {"ok": 45}
    assert run.verdict()["warm_up"] == {"phases": [0], "requests": 5}
    ends = run.rows("requests-0.jsonl", row="end")
    assert {(r["prompt_tokens"], r["completion_tokens"]) for r in ends} == {(50, 6)}
    (path,) = (run.home / "results").glob("mine-40qps-sim-*.json")
    found = json.loads(path.read_text())
    assert (found["completed"], found["failed"], found["total_output_tokens"]) == (40, 0, 240)
    assert (found["request_rate"], found["commit"], found["gpu"], found["loadchaos_verdict"]) == (
        40,
        "abc",
        "none",
        "pass",
    )
    assert found["request_goodput"] == run.verdict()["goodput"]["good_per_s"] > 0
    assert 0 < found["p50_ttft_ms"] <= found["p99_ttft_ms"] < found["p99_e2el_ms"]
    assert "mean_itl_ms" not in found
    assert "P99 E2EL (ms):" in run.output
    kept = YAML(typ="safe").load((run.folder / "profile.yaml").read_text())
    assert kept["load"][1:] == [{"rate": "40/s", "law": "poisson", "requests": 40}]
