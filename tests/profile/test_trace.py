import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadchaos.core.errors import ProfileError
from loadchaos.core.model import Facts, TextFacts
from loadchaos.load.request_builder import build
from loadchaos.profile import trace
from loadchaos.profile.arrivals import planned_requests
from loadchaos.profile.explain import explain
from loadchaos.profile.steps import steps
from tests.profile.conftest import Write

ROWS = [
    {"timestamp": 3000, "input_length": 1500, "output_length": 7, "hash_ids": [1, 2, 3, 4]},
    {"timestamp": 1000, "input_length": 1200, "output_length": 9, "hash_ids": [1, 2, 9]},
    {"timestamp": 5000, "input_length": 40, "output_length": 1},
]
PROFILE = """
name: replayed
traffic:
  - {{name: text, payload: {{text: {{tokens: 10}}}}}}
load:
  - {{trace: {path}, speed: 2, max_in_flight: 9}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mooncake.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in ROWS) + "\n")
    return path


def test_trace_arrivals_are_sorted_and_keep_their_lengths(file: Path, write: Write) -> None:
    profile = write(PROFILE.format(path=file))
    planned = list(steps(profile, seed=1))
    assert planned_requests(profile.load) == 3
    assert [s.due_s for s in planned] == [0.0, 1.0, 2.0]
    assert [s.output.exact for s in planned] == [9, 7, 1]
    assert [s.payload["text"].tokens.low for s in planned] == [1200, 1500, 40]
    assert "at 2 times its pace, at most 9 in flight" in explain(profile)


def test_trace_blocks_with_equal_ids_have_equal_text(file: Path, write: Write) -> None:
    profile = write(PROFILE.format(path=file))
    words = TextFacts(9, tuple((f" {w}", 1) for w in ("the", "of", "and", "to", "in", "is")), " the", "tokenize")
    facts = Facts("http://x", "http://x", "vllm", text=words)
    texts = []
    for step in steps(profile, seed=1):
        request = build(step, facts)
        text = json.loads(request.body)["messages"][0]["content"].split()
        assert len(text) + 9 == request.tokens == step.payload["text"].tokens.low
        texts.append(text)
    assert texts[0][:1024] == texts[1][:1024]
    assert texts[0][1024:1100] != texts[1][1024:1100]


def test_trace_is_shared_between_workers(file: Path, write: Write) -> None:
    profile = write(PROFILE.format(path=file))
    shared = sorted((s for w in range(2) for s in steps(profile, 1, w, 2)), key=lambda s: s.index)
    assert shared == list(steps(profile, 1))


def test_trace_can_be_cut_by_number_and_time(file: Path, write: Write) -> None:
    assert planned_requests(write(PROFILE.format(path=file).replace("speed: 2", "requests: 2")).load) == 2
    assert planned_requests(write(PROFILE.format(path=file).replace("speed: 2", "for: 3s")).load) == 2
    assert planned_requests(write(PROFILE.format(path=file).replace("speed: 2", "unit: 1s, for: 1000s")).load) == 1


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_trace_due_times_never_decrease(tmp_path_factory: pytest.TempPathFactory, stamps: list[int]) -> None:
    path = tmp_path_factory.mktemp("traces") / "t.jsonl"
    path.write_text("".join(json.dumps({"timestamp": t, "input_length": 1, "output_length": 1}) + "\n" for t in stamps))
    arrivals = trace.read(str(path))
    assert len(arrivals) == len(stamps)
    assert arrivals[0].at == 0
    assert all(a.at <= b.at for a, b in pairwise(arrivals))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", r"t\.jsonl:1:2: not JSON: Expecting"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": 3}', "hash_ids: a list of whole numbers"),
        ('{"input_length": 1}', r"t\.jsonl:1: timestamp: a number"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "timestamp: a number"),
        ('{"timestamp": 1, "input_length": 0, "output_length": 1}', "input_length: a number of tokens of at least 1"),
        (
            '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}',
            "hash_ids: a list of whole numbers",
        ),
        ("7", r"t\.jsonl:1: an object was expected"),
        ("", "has no requests"),
    ],
)
def test_trace_mistake_has_its_line(line: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=expected):
        trace.read(str(path))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("{path}", "/nowhere.jsonl"), r"x\.yaml:6:\d+: .*nowhere\.jsonl: No such file"),
        (("text: {{tokens: 10}}", "images: {{}}"), r"x\.yaml:4:\d+: .*every traffic needs a text payload"),
        (("speed: 2", "law: poisson"), "law has no effect"),
        (("speed: 2", "unit: 0"), "the unit of its timestamps"),
        (
            ("speed: 2", "block_tokens: 1024"),
            "block_tokens: 1024 does not fit the trace: a prompt of 1,500 tokens has 4 hash",
        ),
    ],
)
def test_trace_phase_mistake_has_its_place(change: tuple[str, str], expected: str, file: Path, write: Write) -> None:
    text: Any = PROFILE.replace(*change).format(path=file)
    with pytest.raises(ProfileError, match=expected):
        write(text)
