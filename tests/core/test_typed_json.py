from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadchaos.core.typed_json import IF_KNOWN, IF_SET, Keywords, from_json, if_missing, key, only_with, schema, to_json


@dataclass(frozen=True, kw_only=True)
class Part:
    n: Annotated[int, Keywords(minimum=0)]
    text: str | None = None


@dataclass(frozen=True, kw_only=True)
class Named:
    name: str

    @classmethod
    def of_text(cls, text: str) -> Named:
        return cls(name=text)


@dataclass(frozen=True, kw_only=True)
class Whole:
    kind: Literal["unknown", "good"]
    code: Annotated[int, "how it ended"] = field(metadata=if_missing(3))
    share: float | None
    before: str | None = field(default=None, metadata=key("from"))
    parts: tuple[Part, ...]
    by_name: Mapping[str, Part] = field(default_factory=dict)
    first: Part
    known: tuple[Named, ...] = ()
    on: bool = field(default=False, metadata=IF_SET)
    notes: tuple[str, ...] = field(default=(), metadata=IF_SET)
    frame: str | None = field(default=None, metadata=IF_KNOWN)
    deaths: tuple[str, ...] | None = field(default=None, metadata=IF_KNOWN)
    back_s: float | None = field(default=None, metadata=only_with("deaths"))
    costs: tuple[tuple[str, int], ...] = field(default=(), metadata=IF_SET)


EMPTY = from_json(Whole, {})
FULL: dict[str, Any] = {
    "kind": "good", "code": 0, "share": 0.5, "from": "a", "parts": [{"n": 1, "text": None}, {"n": 2, "text": "b"}],
    "by_name": {"x": {"n": 3, "text": None}}, "first": {"n": 4, "text": "c"}, "known": [{"name": "k"}], "on": True,
    "notes": ["n"], "frame": "", "deaths": ["001"], "back_s": None,
    "costs": [["a", 1], ["b", 2]],
}  # fmt: skip


def test_what_was_written_is_read_back_in_the_same_order() -> None:
    assert list(to_json(from_json(Whole, FULL)).items()) == list(FULL.items())


def test_absent_keys_stay_absent() -> None:
    assert to_json(EMPTY) == {
        "kind": "unknown", "code": 3, "share": None, "from": None, "parts": [], "by_name": {},
        "first": {"n": 0, "text": None}, "known": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given_keys", "name", "expected"),
    [
        ({"kind": 7}, "kind", "unknown"), ({"kind": "of a later version"}, "kind", "of a later version"),
        ({"code": "0"}, "code", 3), ({"code": True}, "code", 3), ({"code": 1.0}, "code", 1), ({"code": 1.5}, "code", 3),
        ({"share": math.nan}, "share", None), ({"share": math.inf}, "share", None), ({"share": 1}, "share", 1),
        ({"share": {}}, "share", None), ({"from": 3}, "before", None), ({"parts": {"n": 1}}, "parts", ()),
        ({"parts": "text"}, "parts", ()), ({"parts": [1, None, {"n": 2}, [3]]}, "parts", (Part(n=2),)),
        ({"parts": [{"n": "x"}]}, "parts", (Part(n=0),)), ({"by_name": [1]}, "by_name", {}),
        ({"by_name": {"a": 1, "b": {"n": 1}, 3: {"n": 1}}}, "by_name", {"b": Part(n=1)}),
        ({"first": [1]}, "first", Part(n=0)), ({"first": {"n": 1, "text": ["nested"]}}, "first", Part(n=1)),
        ({"known": ["k", {"name": "l"}, 4]}, "known", (Named(name="k"), Named(name="l"))), ({"on": "yes"}, "on", False),
        ({"notes": ["a", 1, None]}, "notes", ("a",)), ({"deaths": None}, "deaths", None), ({"other": 1}, "on", False),
        ({"costs": [["a", 1], ["b"], ["c", "1"], ["d", 2, 3], "ef"]}, "costs", (("a", 1),)),
    ],
)  # fmt: skip
def test_wrong_types_count_as_missing(given_keys: dict[Any, Any], name: str, expected: object) -> None:
    assert getattr(from_json(Whole, given_keys), name) == expected


@pytest.mark.parametrize("data", [None, [], "text", 7, [{"kind": "good"}]])
def test_what_is_no_object_is_an_empty_one(data: object) -> None:
    assert from_json(Whole, data) == EMPTY


NONSENSE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*FULL, "n"]), inner, max_size=4),
    max_leaves=20,
)


@given(NONSENSE)
def test_nonsense_is_read_and_what_is_written_fits_the_schema(data: object) -> None:
    found = from_json(Whole, data)
    if found.code >= 0 and found.kind in ("unknown", "good"):
        written = to_json(found)
        if found.deaths is not None:  # else `back_s` is not written
            assert from_json(Whole, written) == found
        assert to_json(from_json(Whole, written)) == written
        if all(part["n"] >= 0 for part in [*written["parts"], *written["by_name"].values(), written["first"]]):
            jsonschema.validate(written, schema(Whole))


@pytest.mark.parametrize(
    "change",
    [{"kind": "bad"}, {"code": "0"}, {"share": "0.5"}, {"parts": [{"n": -1}]}, {"parts": [{}]}, {"by_name": {"x": 1}},
     {"first": None}, {"known": [3]}, {"notes": "n"}, {"costs": [[1, "a"]]},
     {"costs": [["a"]]}],
)  # fmt: skip
def test_schema_refuses_wrong_types(change: dict[str, Any]) -> None:
    jsonschema.validate(FULL, schema(Whole))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**FULL, **change}, schema(Whole))


def test_schema_has_descriptions_and_required_keys() -> None:
    found = schema(Whole)
    assert found["properties"]["code"] == {"type": "integer", "description": "how it ended"}
    assert found["properties"]["share"] == {"type": ["number", "null"]}
    assert found["required"] == ["kind", "code", "share", "parts", "first"]
    assert found["$defs"]["Part"]["required"] == ["n"]
