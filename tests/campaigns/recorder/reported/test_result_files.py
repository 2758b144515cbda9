import json
import random
from pathlib import Path
from typing import Any

import pytest

from loadchaos.campaigns.recorder.reported import READERS, ReportedFigures, content_of, read_result_file
from tests.fuzz import EACH, SEEDS, spoiled

DATA = Path(__file__).parent / "data"
FILES = sorted(path for path in DATA.iterdir() if path.suffix in {".json", ".csv"})
OTHERS: tuple[object, ...] = (None, "x", [], {}, True, -5, 10**400)
OWN_TOKENS = "counts {} output tokens with its own tokenizer"


def read(name: str) -> ReportedFigures:
    found = read_result_file(DATA / name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "tool", "counts", "tokens", "times_ms"),
    [
        ("vllm-bench-0.32.0.json", "vllm bench serve", (20, 20, 0), 320, (59.8, 7.49, 152.4)),
        ("vllm-rs-0.33.0.json", "vllm-rs bench serve", (20, 20, 0), 320, (49.8, 7.35, 149.3)),
        ("guidellm-0.8.1.json", "GuideLLM", (20, 20, 0), 320, (45.3, 7.83, 153.2)),
        ("aiperf-0.13.0.json", "AIPerf", (20, 20, 0), 1338, (72.3, 1.70, 163.6)),
        ("aiperf-0.13.0-errors.json", "AIPerf", (20, 14, 6), 910, (81.2, 1.66, 175.2)),
        ("inference-perf-0.7.0.json", "inference-perf", (20, 20, 0), 320, (34.8, 1.95, 139.0)),
        ("locust-2.47.0_stats.csv", "Locust", (7, 5, 2), None, (None, None, 450.0)),
        ("locust-2.47.0.json", "Locust", (13, 9, 4), None, (None, None, 580.0)),
        ("k6-1.1.0-export.json", "k6", (20, 16, 4), None, (None, None, 140.3)),
        ("k6-1.1.0-handle.json", "k6", (20, 20, 0), None, (None, None, 132.2)),
        ("k6-2.2-machine-readable.json", "k6", (20, 16, 4), None, (None, None, None)),
    ],
)
def test_result_file_gives_the_figures_of_its_tool(
    name: str,
    tool: str,
    counts: tuple[int, int, int],
    tokens: int | None,
    times_ms: tuple[float | None, float | None, float | None],
) -> None:
    found = read(name)
    assert found.tool == tool
    assert (found.requests_sent, found.requests_ok, found.requests_failed) == counts
    assert found.output_tokens == tokens
    for latency, expected in zip((found.ttft_s, found.tpot_s, found.e2e_s), times_ms, strict=True):
        assert latency.get("p99") == (None if expected is None else pytest.approx(expected / 1e3, rel=0.01))


def test_k6_summary_has_the_median_and_no_time_to_first_token() -> None:
    found = read("k6-2.2-machine-readable.json")
    assert found.e2e_s["p50"] == pytest.approx(0.1216)
    assert not found.ttft_s


def test_remark_says_that_a_tool_counts_tokens_by_itself() -> None:
    assert OWN_TOKENS.format(1338) in read("aiperf-0.13.0.json").remark
    assert OWN_TOKENS.format(1335) in read("inference-perf-0.7.0.json").remark
    assert not read("guidellm-0.8.1.json").remark


def test_guidellm_sweep_adds_counts_and_joins_no_percentiles(tmp_path: Path) -> None:
    data = json.loads((DATA / "guidellm-0.8.1.json").read_text())
    data["benchmarks"].append(data["benchmarks"][0])
    (tmp_path / "sweep.json").write_text(json.dumps(data))
    found = read_result_file(tmp_path / "sweep.json")
    assert found is not None
    assert (found.requests_sent, found.output_tokens, found.ttft_s) == (40, 640, {})
    assert "2 benchmarks" in found.remark


def test_appended_results_give_the_last_one(tmp_path: Path) -> None:
    result = json.loads((DATA / "vllm-bench-0.32.0.json").read_text())
    lines = [json.dumps(result | {"completed": n}) for n in (1, 2)]
    (tmp_path / "all.jsonl").write_text("\n".join(lines) + "\n")
    found = read_result_file(tmp_path / "all.jsonl")
    assert found is not None
    assert found.requests_ok == 2


def test_result_of_loadchaos_is_no_foreign_one(tmp_path: Path) -> None:
    result = json.loads((DATA / "vllm-bench-0.32.0.json").read_text())
    (tmp_path / "ours.json").write_text(json.dumps(result | {"loadchaos_run": "runs/1"}))
    assert read_result_file(tmp_path / "ours.json") is None


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"[1, null]", b"{}", b"null", b"\xff\xfe", b"[" * 100_000, b'{"benchmarks": [[]]}', b"Name,x\n",
        b'{"num_prompts": 1e999, "completed": true, "endpoint_type": 1}', b'{"metrics": {"http_reqs": {"count": "a"}}}',
        b'{"num_prompts": NaN, "completed": -1, "endpoint_type": 1}', b"9" * 5000, b'[{"num_requests": 3}, 4]',
        b"Name,x\n" + b"y" * 200_000,
    ],
)  # fmt: skip
def test_file_of_no_tool_gives_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content)
    assert read_result_file(tmp_path / "x.json") is None


def test_file_that_is_gone_or_a_folder_gives_nothing(tmp_path: Path) -> None:
    assert read_result_file(tmp_path / "gone.json") is None
    assert read_result_file(tmp_path) is None


@pytest.mark.parametrize("seed", SEEDS)
def test_spoiled_file_gives_figures_or_nothing(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    words = [b"null", b"-1", b"1e999", b"NaN", b"{}", b"[]", b'"x"', b",", b"\n", b"true"]
    for number in range(EACH):
        path = tmp_path / f"{number}.json"
        path.write_bytes(spoiled(rng.choice(FILES).read_bytes(), words, rng))
        found = read_result_file(path)
        if found is not None:
            times = (*found.ttft_s.values(), *found.tpot_s.values(), *found.e2e_s.values())
            assert all(isinstance(value, float) and value >= 0 for value in times)
            assert min(found.requests_sent or 0, found.requests_ok or 0, found.requests_failed or 0) >= 0


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_each_value_may_be_missing_or_of_another_kind(file: Path) -> None:
    """As in a later version of a tool. Every value is replaced in turn."""
    data = content_of(file)
    for holder, key in list(_values(data)):
        kept = holder[key]
        for other in OTHERS:
            holder[key] = other
            for readers in READERS.values():
                for reader in readers:
                    found = reader(data)
                    assert found is None or isinstance(found, ReportedFigures)
        holder[key] = kept


def _values(data: Any) -> list[tuple[Any, Any]]:
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [found for key, value in pairs for found in ((data, key), *_values(value))]


def test_every_reader_has_a_file() -> None:
    tools = {read(path.name).tool for path in FILES}
    assert len(tools) == 7
    assert sum(len(readers) for readers in READERS.values()) == 7
