"""Fields that are added to the body as they are."""

import pytest
from pydantic import ValidationError

from loadchaos.core.model import Facts
from loadchaos.load.endpoints import ENDPOINTS
from loadchaos.load.payloads import extra_body, text
from loadchaos.load.request_builder import build
from tests.load.payloads.conftest import Steps, body_of

FIELDS = {"chat_template_kwargs": {"enable_thinking": False}, "vendor": [1, {"a": "}"}]}
WITH_TEXT = sorted(name for name, e in ENDPOINTS.items() if e.payloads is None or {"text", "extra_body"} <= e.payloads)


@pytest.mark.parametrize("endpoint", WITH_TEXT)
def test_fields_are_in_the_body_of_each_endpoint_beside_those_of_loadchaos(
    endpoint: str, step: Steps, facts: Facts
) -> None:
    words = text.Options.model_validate({"tokens": 60})
    plain = body_of(build(step({"text": words}, endpoint=endpoint), facts))
    made = build(
        step({"text": words, "extra_body": extra_body.Options.model_validate(FIELDS)}, endpoint=endpoint), facts
    )
    assert body_of(made) == {**plain, **FIELDS}
    assert made.tokens is None  # a template may write another prompt


def test_fields_that_change_no_prompt_leave_its_length_known(step: Steps, facts: Facts) -> None:
    given = {"text": text.Options.model_validate({"tokens": 60}), "extra_body": extra_body.Options(vendor=1)}
    assert build(step(given), facts).tokens == 60


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ("model", "--model"),
        ("max_tokens", "output"),
        ("tools", "tools"),
        ("top_k", "sampling: {top_k"),
        ("n", "sampling: {n"),
    ],
)
def test_field_that_another_key_sets_is_refused_with_its_name(field: str, key: str) -> None:
    with pytest.raises(ValidationError, match=f"{field} is set by {key}"):
        extra_body.Options.model_validate({field: 1})


def test_no_field_is_a_mistake() -> None:
    with pytest.raises(ValidationError, match="at least one field"):
        extra_body.Options()


def test_endpoints_with_a_json_body_take_the_fields() -> None:
    assert {*ENDPOINTS} - {*WITH_TEXT} == {"transcriptions"}
