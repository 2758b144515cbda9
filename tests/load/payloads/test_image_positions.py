import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from loadchaos.core.model import Facts, TextFacts
from loadchaos.load.payloads.image_positions import Options, template_tokens
from loadchaos.load.request_builder import build
from loadchaos.load.wire.request import Request
from tests.load.payloads.conftest import WORDS, Steps

LEAD, TURN, IMAGE = 4, 10, 66
"""Tokens of the template before a message, around an earlier turn, and of an image with its two marks."""


@pytest.fixture
def facts(facts: Facts) -> Facts:
    return replace(facts, step_tokens=512, text=TextFacts(9, WORDS, " the", "tokenize", turn_overhead=TURN))


def counted(message: dict[str, Any]) -> int:
    content = message["content"]
    text = content if isinstance(content, str) else "".join(p.get("text", "") for p in content)
    return sum(dict(WORDS)[f" {word}"] for word in text.split())


def image_begins(request: Request, lead: int = LEAD) -> int:
    """Token at which the image begins, behind one mark, as the template of the server of `facts` writes it."""
    first, answer, question = json.loads(request.body)["messages"]
    assert [first["role"], answer["role"], question["role"]] == ["user", "assistant", "user"]
    assert [part["type"] for part in question["content"]] == ["image_url", "text"]
    return counted(first) + counted(answer) + TURN + lead + 1


@pytest.mark.parametrize("lead", [0, 1, 4, 9])
def test_one_prompt_of_each_position_has_its_image_there(facts: Facts, step: Steps, lead: int) -> None:
    options = Options(size="64x64")
    each = len(template_tokens(9))
    requests = [build(step({"image_positions": options}, n), facts) for n in range(2 * each)]
    assert 512 in [image_begins(r, lead) for r in requests[:each]]
    assert 1024 in [image_begins(r, lead) for r in requests[each:]]


def test_usual_template_is_met_in_the_first_requests(facts: Facts, step: Steps) -> None:
    requests = [build(step({"image_positions": Options(size="64x64")}, n), facts) for n in range(4)]
    assert 512 in [image_begins(r) for r in requests]


def test_length_of_the_prompt_is_exact(facts: Facts, step: Steps) -> None:
    for n in range(30):
        request = build(step({"image_positions": Options(size="64x64")}, n), facts)
        words = sum(counted(m) for m in json.loads(request.body)["messages"])
        assert request.tokens == words + TURN + 9 + IMAGE
        assert request.images == 1


def test_length_is_unknown_where_turns_were_not_measured(facts: Facts, step: Steps) -> None:
    known = replace(facts, text=TextFacts(9, WORDS, " the", "tokenize"))
    assert build(step({"image_positions": Options(size="64x64")}), known).tokens is None


def test_prompts_differ_from_their_first_word_on(facts: Facts, step: Steps) -> None:
    first = [
        json.loads(build(step({"image_positions": Options(size="64x64")}, n), facts).body)["messages"][0]["content"][
            :60
        ]
        for n in range(20)
    ]
    assert len(set(first)) == 20, "an equal beginning would hit the prefix cache, and steps would end elsewhere"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"step_tokens": 1000}, [1000, 2000]),
        ({"step_tokens": 3000}, [3000]),
        ({"step_tokens": None}, [2048]),
        ({"step_tokens": 3000, "max_model_len": 2048}, []),
        ({"max_model_len": None}, []),
        ({"max_model_len": 16384, "step_tokens": None}, [2048, 8192, 4096]),
    ],
)
def test_positions_are_the_ends_of_steps_that_fit_the_server(
    facts: Facts, changes: dict[str, int | None], expected: list[int]
) -> None:
    assert list(Options(size="64x64").fitting(replace(facts, **changes), 8)) == expected  # type: ignore[arg-type]


def test_given_positions_are_used_in_turn(facts: Facts, step: Steps) -> None:
    options = Options(at=(100, 300), size="64x64")
    each = len(template_tokens(9))
    assert 100 in [image_begins(build(step({"image_positions": options}, n), facts)) for n in range(each)]
    assert 300 in [image_begins(build(step({"image_positions": options}, n), facts)) for n in range(each, 2 * each)]


@pytest.mark.parametrize(
    ("changes", "note"), [({"images": False}, "sent as text only"), ({"text": None}, "sent as a short prompt")]
)
def test_servers_without_images_or_counts_get_a_short_prompt(
    facts: Facts, step: Steps, changes: dict[str, Any], note: str
) -> None:
    request = build(step({"image_positions": Options()}), replace(facts, **changes))
    assert note in request.fitted
    assert request.images == 0


def test_position_below_one_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"a position is 1 or more \(got 0\)"):
        Options(at=(0,))
