"""Tool definitions in the request, and the tool choice.

The chat template writes them into the prompt, so its length is not known before it is sent.
"""

from __future__ import annotations

import functools
from typing import Annotated, ClassVar, Literal

import orjson
from pydantic import model_validator

from loadchaos.core.model import Facts
from loadchaos.core.rng import Rng
from loadchaos.core.unit_fields import IntRange, at_least
from loadchaos.core.units import Range
from loadchaos.load.payloads.base import Payload
from loadchaos.load.wire.contract import ANY_ARGUMENTS, AnswerContract, Schema, SchemaRule
from loadchaos.load.wire.request import Request
from loadchaos.server.dialects import DIALECTS, UNKNOWN

_MARKS = ("</tool_call>", "<tool_call>", "</parameter>", "[TOOL_CALLS]")
"""Marks by which tool parsers find a call in the text of an answer: hermes and qwen, XML formats, Mistral.

A parser that searches the whole text ends a call at such a mark inside an argument (vllm-project/vllm#44060).
"""


class Options(Payload):
    """`count` tools.

    `choice` as in OpenAI's API, `named` requires the first one. All but `none` need a server with a tool parser
    (vLLM: --enable-auto-tool-choice, --tool-call-parser); one without it is right to refuse. With `marks` an argument of
    each call has to be a text with a mark of tool parsers, such as `</tool_call>`.
    """

    ORDER: ClassVar[int] = 32
    count: Annotated[IntRange, at_least(1, "at least one tool was expected")] = Range(1, 3)
    choice: Literal["auto", "required", "none", "named"] = "auto"
    marks: bool = False

    @model_validator(mode="after")
    def _marks_in_demanded_calls(self) -> Options:
        if self.marks and self.choice not in ("required", "named"):
            raise ValueError("marks needs calls that are demanded: choice: required or named was expected")
        return self

    def describe(self) -> str:
        marks = ", with marks of tool parsers in their arguments" if self.marks else ""
        return f"{self.count} tools to choose from ({self.choice}){marks}"

    def add(self, request: Request, facts: Facts, rng: Rng) -> None:
        """Add the tools; the prompt's length becomes unknown."""
        choice = "none" if request.calls_over else self.choice
        # With `auto` the model decides; arguments are guided only where a call is required, and vLLM 0.32 does so only if
        # the tool is strict.
        demanded = choice in ("required", "named")
        guided = demanded and DIALECTS.get(facts.dialect, UNKNOWN).guides_tools
        tools = [_tool(i, strict=guided, marks=self.marks) for i in range(rng.between(self.count.low, self.count.high))]
        named: Schema = {"type": "function", "function": {"name": tools[0]["function"]["name"]}}
        request.extra |= {"tools": tools, "tool_choice": named if choice == "named" else choice}
        request.length_known = False
        if demanded:
            request.contract = _contract(1 if choice == "named" else len(tools), marks=self.marks, guided=guided)
        elif request.contract is None and self.choice == "none":
            request.contract = AnswerContract(may_call=False)
        elif request.contract is None and "live" not in request.step.payload:  # its sessions count such calls
            request.contract = _contract(len(tools), marks=False, guided=False, must_call=False)


@functools.lru_cache(maxsize=128)
def definition_bytes(count: int) -> int:
    """Size of the definitions of `count` tools as JSON."""
    return len(orjson.dumps([_tool(i, strict=True, marks=True) for i in range(count)]))


@functools.lru_cache(maxsize=128)
def _contract(count: int, *, marks: bool, guided: bool, must_call: bool = True) -> AnswerContract:
    """Make the contract of the first `count` tools: calls are of these. Where the server guides the arguments, they follow
    the schema.
    """
    functions = [_tool(i, strict=True, marks=marks)["function"] for i in range(count)]
    rules = {f["name"]: SchemaRule(f["parameters"] if guided else ANY_ARGUMENTS) for f in functions}
    return AnswerContract(tools=rules, must_call=must_call)


def _tool(number: int, *, strict: bool, marks: bool) -> Schema:
    properties: Schema = {
        "place": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["c", "f"]},
    }
    required = ["place"]
    if marks:  # the only text that the schema allows, so that any model has to write it
        mark = _MARKS[number % len(_MARKS)]
        properties, required = {"quote": {"type": "string", "enum": [f"before {mark} after"]}}, ["quote"]
    parameters = {"type": "object", "required": required, "properties": properties}
    name = f"get_weather_{number}"
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Weather of a place, source {number}",
            "parameters": parameters,
            **({"strict": True} if strict else {}),
        },
    }
