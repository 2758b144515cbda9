"""Read the launch flags of a server out of a command line, or out of the line that it logs at its start."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final

from loadchaos.analysis.advisories.advisory import EngineOptions, engine, fact_name
from loadchaos.core.errors import did_you_mean

_PROGRAMS: Final = {
    "vllm": "vllm", "sglang": "sglang", "lmdeploy": "lmdeploy", "llama-server": "llamacpp", "transformers": "transformers",
}  # fmt: skip
_IMAGE = re.compile(
    r"(?:^|/)(?P<name>vllm|sglang|lmdeploy|llama\.cpp)[\w.-]*:(?:[a-z-]*v?(?P<version>\d+\.\d+[\w.+]*)(?:-[\w.-]*)?|\S+)$"
)
_WORD = re.compile(r"(?!(?:true|false|null|\d+(?:\.\d+)?)\b)[\w./-]+")
_SUBCOMMANDS = ("serve", "api_server", "server")
_ATTACHED = re.compile(r"(-[A-Za-z])(\d.*|=.*)")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_ENTRY = re.compile(r"'(\w+)': ('[^']*'|[\w.+-]+)")
_MEMBER = re.compile(r"<[\w.]+: ([^<>]*)>")  # of an enumeration, as Python prints it
_KEYWORD = re.compile(r"(\w+)=('[^']*'|\"[^\"]*\"|[^,()\[\]{}]+)")


@dataclass
class ParsedCommand:
    """Flags of a command by their names as facts. `unknown`: those that this engine does not have, with the nearest.
    `unreadable`: those whose value is broken JSON.
    """

    engine: str
    model: str | None = None
    version: str | None = None
    program: int = 0
    flags: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)


def engine_of(argv: Sequence[str]) -> ParsedCommand | None:
    """Find the program, module or container image of an engine in a command."""
    for n, word in enumerate(argv):
        module = word.partition(".")[0] if n and argv[n - 1] == "-m" else None
        name = _PROGRAMS.get(module or PurePath(word).name)
        if name is not None:
            return ParsedCommand(name, program=n)
        if (image := _IMAGE.search(word)) is not None:
            found = {"llama.cpp": "llamacpp"}.get(image["name"], image["name"])
            return ParsedCommand(found, version=image["version"], program=n)
    return None


def programs() -> tuple[str, ...]:
    return tuple(_PROGRAMS)


def parse(argv: Sequence[str]) -> ParsedCommand | None:
    """Read engine, model and flags of a command. None if it names no engine."""
    found = engine_of(argv)
    if found is None:
        return None
    words = list(argv[found.program + 1 :])
    inner = engine_of(words[:3]) if found.version or _IMAGE.search(argv[found.program]) else None
    if inner is not None:  # docker run IMAGE vllm serve MODEL
        words = words[inner.program + 1 :]
    while words and words[0] in _SUBCOMMANDS:
        words.pop(0)
    parse_flags(words, found)
    named = next((found.flags[n] for n in ("model", "model_path", "hf_repo") if n in found.flags), None)
    found.model = found.model or (str(named) if named is not None else None)
    return found


def parse_flags(words: Sequence[str], into: ParsedCommand) -> None:
    """Read flags; the first word that is none is the model."""
    of, rest = engine(into.engine), list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or _NUMBER.fullmatch(word) or word in ("-", "--"):
            into.model = into.model or word
            continue
        name, given, text = word.partition("=")
        if name not in of.options and (attached := _ATTACHED.fullmatch(word)) and attached[1] in of.options:
            name, given, text = attached[1], "=", attached[2]
        option = _option(of, name)
        takes_value = option[1] if option is not None else bool(rest) and not rest[0].startswith("-")
        if not given and takes_value and rest:
            given, text = "=", rest.pop(0)
            if (
                option is not None and option[2] and rest
            ):  # `--served-model-name a b` takes all words up to the next option
                while rest and not rest[0].startswith("-"):
                    rest.pop(0)
        if option is None:
            into.unknown[name] = did_you_mean(name, of.options)
            continue
        value: Any = _value(text) if given else True
        if name.startswith("--no-") and option[0] != fact_name(name):
            value = False
        if isinstance(value, str) and value.startswith("{") and ":" in value:
            into.unreadable.append(name)
        into.flags.update(flattened(option[0], value))


def _option(of: EngineOptions, name: str) -> tuple[str, bool, bool] | None:
    """(name as a fact, takes a value, takes several) of an option: whole, with underscores, negated or its unique begin."""
    head, dot, rest = name.partition(".")
    head = head.replace("_", "-") if head.startswith("--") else head
    several = head in ("--served-model-name", "--lora-modules", "--lora-paths", "--allowed-origins")
    if head not in of.options:
        if head.startswith("--no-") and f"--{head[5:]}" in of.options:
            return of.options[f"--{head[5:]}"][0], False, False
        near = {of.options[o] for o in of.options if head.startswith("--") and len(head) > 3 and o.startswith(head)}
        if len(near) != 1:
            return None
        fact, takes_value = near.pop()
    else:
        fact, takes_value = of.options[head]
    return (f"{fact}.{rest}", True, False) if dot else (fact, takes_value, several)


def _value(text: str) -> Any:
    text = {"True": "true", "False": "false", "None": "null"}.get(text, text)
    for form in (text, _WORD.sub(r'"\g<0>"', text) if text.startswith("{") else text):  # a shell took the quotes away
        try:
            return json.loads(form)
        except ValueError:
            continue
    return text


def flattened(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A flag and, of a JSON object, its keys: `speculative_config.method`."""
    head, dot, _ = name.partition(".")
    if dot:
        yield head, True
    yield name, value
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flattened(f"{name}.{key}", inner)


def _literal(node: ast.expr) -> Any:
    """Value of a literal. A call such as `KVTransferConfig(kv_connector='NixlConnector')` is a mapping of its arguments."""
    match node:
        case ast.Call():
            return {one.arg: _literal(one.value) for one in node.keywords if one.arg}
        case ast.Dict():
            return {ast.literal_eval(k): _literal(v) for k, v in zip(node.keys, node.values, strict=True) if k}
        case ast.List() | ast.Tuple():
            return [_literal(one) for one in node.elts]
        case ast.Attribute() | ast.Name():  # torch.bfloat16
            return ast.unparse(node)
    return ast.literal_eval(node)


def parse_logged(text: str) -> dict[str, Any]:
    """Flags of a start-up line: a dict of Python, or the arguments of a class (`ServerArgs(tp_size=1, ...)`)."""
    found: dict[str, Any] = {}
    try:
        data = _literal(ast.parse(_MEMBER.sub(r"\1", text.strip()), mode="eval").body)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        data = {name: _value(value.strip().strip("'\"")) for name, value in _KEYWORD.findall(text)}
        data |= {name: _value(value.strip().strip("'\"")) for name, value in _ENTRY.findall(text)}
    if isinstance(data, Mapping):
        for name, value in data.items():
            found.update(flattened(str(name), value))
    return found
