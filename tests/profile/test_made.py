import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loadchaos.core.dataset_names import DatasetOptions
from loadchaos.core.errors import OptionError
from loadchaos.load.registry import full_registry
from loadchaos.profile.arrivals import planned_requests
from loadchaos.profile.made import LoadOptions, make, parse_buckets, parse_range_ratio
from loadchaos.profile.profile import Profile, from_mapping
from loadchaos.profile.source import Yaml
from loadchaos.profile.steps import steps

LINE = '{"timestamp": 0, "input_length": 32, "output_length": 4, "hash_ids": [1]}\n'


def data(values: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Yaml]:
    return make(LoadOptions(values=DatasetOptions(**(values or {})), **options)).data()


def made(**options: Any) -> Profile:
    return from_mapping(data(**options), full_registry())


def test_made_rate_ends_at_the_number_of_prompts() -> None:
    profile = made(rate=5.0, requests=20, users=8)
    due = [step.due_s or 0.0 for step in steps(profile, seed=1)]
    assert len(due) == planned_requests(profile.load, 1) == 20
    assert due == sorted(due)
    assert profile.load[0].law == "poisson"
    assert profile.load[0].slots == 8


@pytest.mark.parametrize(
    ("options", "phase"),
    [
        ({"users": 4, "requests": 9}, {"users": 4, "requests": 9}),
        ({"users": 4, "duration_s": 90.0}, {"users": 4, "for": "1m30s"}),
        ({"rate": math.inf, "requests": 9}, {"burst": 9}),
        ({"rate": math.inf, "requests": 9, "users": 3}, {"users": 3, "requests": 9}),
        ({"rate": 2.5, "duration_s": 60.0}, {"rate": "2.5/s", "law": "poisson", "for": "1m"}),
        (
            {"rate": 2.0, "requests": 9, "burstiness": 0.5},
            {"rate": "2/s", "law": "gamma", "burstiness": 0.5, "requests": 9},
        ),
        (
            {"ramp": (1.0, 3.0), "requests": 20},
            {"rate": "1/s", "law": "ramp", "to": "3/s", "for": "10s", "requests": 20},
        ),
    ],
    ids=lambda o: "-".join(map(str, o)),
)
def test_made_phase_follows_the_options(options: dict[str, Any], phase: dict[str, Any]) -> None:
    assert data(**options)["load"] == [phase]
    made(**options)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"rate": 10.0, "requests": 9}, "rate-10"),
        ({"rate": 0.25, "requests": 9, "users": 3}, "rate-0.25"),
        ({"rate": math.inf, "requests": 9}, "all-at-once"),
        ({"users": 8, "requests": 9}, "users-8"),
        ({"ramp": (1.0, 30.5), "requests": 20}, "ramp-1-30.5"),
        ({"users": 8, "requests": 9, "name": "mine"}, "mine"),
    ],
)
def test_made_profile_has_the_name_of_its_load(options: dict[str, Any], name: str) -> None:
    assert made(**options).name == name


def test_made_warm_up_is_a_phase_of_its_own() -> None:
    profile = made(rate=5.0, requests=20, warm_ups=4)
    terms = profile.terms(0)
    assert [phase.warm_up for phase in profile.load] == [True, False]
    assert (terms.warm_up, terms.planned_requests, terms.planned_s) == ({"phases": [0]}, 24, None)
    assert made(rate=5.0, requests=20).terms(0).planned_s == 4


def test_made_lengths_follow_the_range_ratio() -> None:
    values = {
        "random_input_len": 100,
        "random_output_len": 50,
        "random_range_ratio": (0.5, 0.1),
        "random_prefix_len": 10,
    }
    (traffic,) = made(users=1, requests=1, values=values).traffic
    assert traffic.payload["text"] == {"tokens": "60..160", "shared_prefix": {"tokens": 10, "groups": 1}}
    assert str(traffic.output.exact) == "45..55"


def test_made_images_of_several_sizes_keep_their_weights() -> None:
    buckets = parse_buckets("{(256, 256, 1): 3, (720, 1280, 1): 1, (9, 9, 16): 0}")
    profile = made(users=1, requests=1, dataset="random-mm", values={"random_mm_bucket_config": buckets})
    found = {t.payload["images"]["size"]: t.weight for t in profile.traffic}
    assert found == {"256x256": 3, "1280x720": 1}


def test_made_trace_replays_in_its_own_time(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(LINE + LINE.replace('"timestamp": 0', '"timestamp": 2'))
    profile = made(dataset="timed_trace", values={"dataset_path": str(file), "timed_trace_chunk_hash_size": 16})
    assert [step.due_s for step in steps(profile, seed=0)] == [0.0, 2.0]
    assert profile.load[0].block_tokens == 16


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "how fast"),
        ({"rate": 5.0}, "how long"),
        ({"users": 5, "requests": 5, "burstiness": 2.0}, "--burstiness shapes arrivals at a rate"),
        ({"rate": math.inf, "duration_s": 5.0}, "--rate inf sends all requests at once"),
        ({"ramp": (1.0, 2.0), "rate": 1.0, "requests": 5}, "exclude each other"),
        ({"ramp": (1.0, 2.0), "requests": 5, "duration_s": 5.0}, "either --num-prompts or --duration"),
        ({"rate": 5.0, "requests": 5, "dataset": "sharegpt"}, "needs --dataset-path FILE"),
        (
            {"rate": 5.0, "requests": 5, "dataset": "sharegpt", "values": {"dataset_path": "/nowhere.json"}},
            "--dataset-path /nowhere.json: no such file",
        ),
        (
            {"rate": 5.0, "requests": 5, "values": {"dataset_path": "x"}},
            "--dataset-path has no effect with --dataset-name random: it goes with sharegpt",
        ),
        (
            {"rate": 5.0, "requests": 5, "values": {"input_len": 5, "random_input_len": 5}},
            "--input-len and --random-input-len have the same meaning",
        ),
        (
            {"rate": 5.0, "requests": 5, "endpoint": "embeddings", "generates": False, "values": {"output_len": 5}},
            "--output-len has no effect: the endpoint embeddings generates no text",
        ),
        ({"dataset": "timed_trace", "rate": 5.0}, "a trace has its own times"),
    ],
    ids=lambda o: o if isinstance(o, str) else "",
)
def test_made_profile_refuses_contradictions(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        data(**options)


def test_range_ratios_of_input_and_output() -> None:
    assert parse_range_ratio("0.3") == (0.3, 0.3)
    assert parse_range_ratio('{"input": 0.3, "output": 0.5}') == (0.3, 0.5)
    for wrong in ("1", "-0.1", '{"input": 0.3}', "x", '{"input": 0.5.5, "output": 0.5}'):
        with pytest.raises(OptionError):
            parse_range_ratio(wrong)


@pytest.mark.parametrize("wrong", ["{}", "{(1, 2): 1}", "{(720, 1280, 16): 1.0}", "text", "{(9, 9, 1): 0.5.5}"])
def test_image_buckets_that_cannot_be_made_are_refused(wrong: str) -> None:
    with pytest.raises(OptionError, match="--random-mm-bucket-config"):
        parse_buckets(wrong)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 0.0])
def test_unit_of_a_timed_trace_is_above_zero(wrong: float, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(LINE)
    values = {"dataset_path": str(path), "timed_trace_sec_multiplier": wrong}
    with pytest.raises(OptionError, match="--timed-trace-sec-multiplier"):
        data(dataset="timed_trace", values=values)


@pytest.mark.parametrize("rate", [1_000_000.0, 0.00001, 2.5])
def test_large_and_small_rates_are_read_as_they_are_written(rate: float) -> None:
    profile = made(rate=rate, requests=5)
    assert profile.load[0].rate == pytest.approx(rate)
    assert "e+06/s" not in profile.to_yaml()
