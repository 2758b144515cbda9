import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadchaos.core.errors import ProfileError
from loadchaos.profile import trace
from loadchaos.profile.profile import Profile
from loadchaos.profile.steps import steps
from loadchaos.profile.trace_formats import FORMATS
from tests.invoking import output_of


def span(name: str, start_ms: int, **usage: int) -> dict[str, Any]:
    attributes = [{"key": f"gen_ai.usage.{k}", "value": {"intValue": str(v)}} for k, v in usage.items()]
    return {"name": name, "startTimeUnixNano": str(start_ms * 10**6), "attributes": attributes}


def spans(*found: dict[str, Any]) -> str:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(found)}]}]})


def aiperf(start_ms: int, sent: int, came: float, **other: Any) -> str:
    metadata = {"request_start_ns": start_ms * 10**6, "benchmark_phase": "profiling", **other}
    values = {"input_sequence_length": sent, "output_sequence_length": came}
    return json.dumps({"metadata": metadata, "metrics": {k: {"value": v, "unit": "tokens"} for k, v in values.items()}})


SAMPLES = {
    "mooncake": (
        "x.jsonl",
        """{"timestamp": 5000, "input_length": 30, "output_length": 4, "hash_ids": [1]}
{"timestamp": 6500, "input_length": 40, "output_length": 5}
""",
    ),
    "burstgpt": (
        "x.csv",
        """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,30,4,34,Conversation log
6,GPT-4,70,0,70,API log
6.5,ChatGPT,40,5,45,Conversation log
""",
    ),
    "azure": (
        "x.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,30,4\n2023-11-16 18:15:48.1805900,40,5\n",
    ),
    "aiperf": (
        "x.jsonl",
        "\n".join([aiperf(9000, 1, 1, benchmark_phase="warmup"), aiperf(10_000, 30, 4.0), aiperf(11_500, 40, 5)]),
    ),
    "otel": (
        "x.json",
        "\n".join(
            [
                spans(span("chat m", 7000, input_tokens=30, output_tokens=4), span("execute_tool f", 7100)),
                spans(span("chat m", 8500, prompt_tokens=40, completion_tokens=5)),
            ]
        ),
    ),
}


def test_every_format_has_a_sample() -> None:
    assert set(SAMPLES) == set(FORMATS)


@pytest.mark.parametrize("name", SAMPLES)
def test_trace_format_gives_times_and_lengths(name: str, tmp_path: Path, write: Callable[..., Profile]) -> None:
    file, text = SAMPLES[name]
    path = tmp_path / file
    path.write_text(text)
    assert trace.format_of(str(path)) is FORMATS[name]
    load = f"traffic: [{{name: t, payload: {{text: {{}}}}}}]\nload: [{{trace: {path}, speed: 3}}]\n"
    planned = list(steps(write(f"name: x\n{load}"), seed=0))
    assert [step.due_s for step in planned] == [0.0, pytest.approx(0.5)]
    assert [(s.payload["text"].tokens.low, s.output.exact) for s in planned] == [(30, 4), (40, 5)]
    if FORMATS[name].own_unit:
        with pytest.raises(ProfileError, match="unit has no effect with"):
            write(f"name: x\n{load.replace('speed: 3', 'unit: 1s')}")
    output_of("run", "--dataset-name", name, "--dataset-path", path, "--print-profile")


@pytest.mark.parametrize(
    ("name", "before", "after", "text"),
    [
        ("burstgpt", "30,4,34", "x,4,34", "x.csv:2: Request tokens: a number of tokens was expected (got 'x')"),
        (
            "burstgpt",
            "6.5,ChatGPT",
            "late,ChatGPT",
            "x.csv:4: Timestamp: at least 0 seconds were expected (got 'late')",
        ),
        ("burstgpt", "6.5,ChatGPT", "nan,ChatGPT", "x.csv:4: Timestamp: at least 0 seconds were expected (got 'nan')"),
        ("burstgpt", "6.5,ChatGPT", "inf,ChatGPT", "x.csv:4: Timestamp: at least 0 seconds were expected (got 'inf')"),
        ("burstgpt", "6.5,ChatGPT", "-1,ChatGPT", "x.csv:4: Timestamp: at least 0 seconds were expected (got '-1')"),
        ("azure", "2023-11-16 18:15:48.1805900", "yesterday", "x.csv:3: TIMESTAMP: a time such as"),
        ("azure", "18:15:48.1", "18:75:48.1", "x.csv:3: TIMESTAMP: a time such as"),
        ("mooncake", "[1]", '["a"]', "x.jsonl:1: hash_ids: a list of whole numbers was expected (got ['a'])"),
        ("azure", ",5", ",-5", "x.csv:3: GeneratedTokens: a number of tokens was expected (got '-5')"),
        ("azure", "TIMESTAMP", "TIME", "x.csv:2: no known trace: TIME, ContextTokens, GeneratedTokens; expected were"),
        (
            "aiperf",
            '"request_start_ns": 11500000000',
            '"request_start_ns": null',
            "x.jsonl:3: metadata.request_start_ns",
        ),
        ("otel", '"8500000000"', '"soon"', "x.json:2: startTimeUnixNano: nanoseconds were expected (got 'soon')"),
        (
            "otel",
            '{"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "40"}}',
            '{"key": "gen_ai.usage.prompt_tokens", "value": {"stringValue": "many"}}',
            "x.json:2: gen_ai.usage.prompt_tokens: a number of tokens was expected (got 'many')",
        ),
        ("mooncake", '"output_length": 5', '"output_length": 0', "x.jsonl:2: output_length: a number of tokens"),
    ],
)
def test_trace_mistakes_have_file_and_line(name: str, before: str, after: str, text: str, tmp_path: Path) -> None:
    file, sample = SAMPLES[name]
    assert before in sample
    path = tmp_path / file
    path.write_text(sample.replace(before, after))
    with pytest.raises(ValueError, match="expected") as raised:
        trace.read(str(path))
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ('6,4,5,"open', "x.csv:3: a row of CSV was expected: unexpected end of data"),
        (f"6,4,5,{'x' * 200_000}", "x.csv:3: a row of CSV was expected: field larger"),
    ],
)
def test_row_that_csv_cannot_read_is_a_mistake_with_its_line(row: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"Timestamp,Request tokens,Response tokens,Log Type\n5,3,4,x\n{row}\n7,3,4,x\n8,3,4,x\n")
    with pytest.raises(ValueError, match="expected") as raised:
        trace.read(str(path))
    assert text in str(raised.value)


def test_data_set_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(SAMPLES["azure"][1])
    assert "BurstGPT (CSV) was expected; --dataset-name says how to read the file" in output_of(
        "run", "--dataset-name", "burstgpt", "--dataset-path", path, "--print-profile", code=2
    )


def test_trace_in_one_list_is_a_short_mistake(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps([{"timestamp": n, "input_length": 3, "output_length": 4} for n in range(500)]))
    with pytest.raises(
        ValueError, match=r"x.jsonl:1: an object was expected for each request \(got a list: write"
    ) as raised:
        trace.read(str(path))
    assert len(str(raised.value)) < 300, "the file itself is not printed"


def test_tokens_of_spans_may_be_doubles(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    text = spans(span("chat m", 7000, input_tokens=30, output_tokens=4))
    path.write_text(
        text.replace('"intValue": "30"', '"doubleValue": 30.0').replace('"intValue": "4"', '"doubleValue": 4')
    )
    assert [(a.input_tokens, a.output_tokens) for a in trace.read(str(path))] == [(30, 4)]


@pytest.mark.parametrize("operation", ["invoke_agent", "invoke_workflow", "embeddings"])
def test_spans_with_the_usage_of_their_children_are_no_requests(operation: str, tmp_path: Path) -> None:
    parent, child = (
        span("parent", 7000, input_tokens=70, output_tokens=9),
        span("chat m", 7100, input_tokens=30, output_tokens=4),
    )
    for one, name in ((parent, operation), (child, "chat")):
        one["attributes"].append({"key": "gen_ai.operation.name", "value": {"stringValue": name}})
    path = tmp_path / "x.json"
    path.write_text(spans(parent, child))
    assert [request.input_tokens for request in trace.read(str(path))] == [30]
