#!/usr/bin/env python
"""Compare two vLLM releases in what loadchaos knows of them.

    .venv/bin/python scripts/real/compare_vllm.py OLD NEW

OLD and NEW are folders that hold `vllm`: unpacked wheels, or site-packages. Prints what was lost (-) and what is new
(+): signatures, metrics, routes, environment variables, and errors of the engine that no signature knows. A signature
is lost where a pattern of it matches a text of OLD's source and none of NEW's. A text is a string constant of the
source; a value that is formatted into it stands as `1` and as `abc`. Patterns for what other software says match in
neither.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(PROJECT))

from loadchaos.analysis.classify.signature_file import load

_ENGINE = (
    "v1/engine/",
    "v1/core/",
    "v1/executor/",
    "v1/worker/",
    "v1/structured_output/",
    "v1/spec_decode/",
    "v1/sample/",
)
_LISTS = {
    "metric": re.compile(r"\"(vllm:[a-z0-9_]+)\""),
    "route": re.compile(r"@router\.(?:get|post|put|delete|api_route)\(\s*\"([^\"]+)\""),
    "variable": re.compile(r"^    \"?(VLLM_[A-Z0-9_]+)\"?:", re.MULTILINE),
}
_LOGS = {"error", "exception", "critical", "error_once", "warning", "warning_once"}
_FORMATTED = re.compile(r"\0|%(?:\.\d+)?[sdrfi]")


class Release(NamedTuple):
    """Texts of a release with their places: string constants, errors of the engine, and lists by kind."""

    texts: Mapping[str, str]
    errors: Mapping[str, str]
    lists: Mapping[str, Mapping[str, str]]


def text_of(node: ast.expr) -> str | None:
    """Text of a string constant; \\0 in the place of a formatted value."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join("\0" if isinstance(part, ast.FormattedValue) else text_of(part) or "" for part in node.values)
    return None


def errors_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each `raise`, `assert` with a text, and logged error or warning."""
    for node in ast.walk(tree):
        found: ast.expr | None = None
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            found = node.exc.args[0]
        elif isinstance(node, ast.Assert):
            found = node.msg
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _LOGS
            and node.args
        ):
            found = node.args[0]
        if found is not None and (text := text_of(found)):
            yield found.lineno, text


def read(folder: Path) -> Release:
    """Read a release."""
    texts: dict[str, str] = {}
    errors: dict[str, str] = {}
    lists: dict[str, dict[str, str]] = {kind: {} for kind in _LISTS}
    for file in sorted((folder / "vllm").rglob("*.py")):
        name, source = str(file.relative_to(folder / "vllm")), file.read_text("utf-8")
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant | ast.JoinedStr) and (text := text_of(node)):
                texts.setdefault(text, f"{name}:{node.lineno}")
        if name.startswith(_ENGINE):
            for line, text in errors_of(tree):
                errors.setdefault(text, f"{name}:{line}")
        for kind, pattern in _LISTS.items():
            for found in pattern.finditer(source):
                lists[kind].setdefault(found[1], f"{name}:{source.count(chr(10), 0, found.start(1)) + 1}")
    return Release(texts, errors, lists)


def forms(text: str) -> set[str]:
    """A text as it may be logged."""
    return {_FORMATTED.sub(value, text) for value in ("1", "abc")}


def lost_patterns(old: Release, new: Release) -> Iterator[tuple[str, str, str]]:
    """Signature, pattern and old place of each pattern whose texts are all gone."""
    olds, news = ([(form, place) for t, place in r.texts.items() for form in forms(t)] for r in (old, new))
    for signature in load().all:
        for pattern in signature.patterns:
            before = [place for form, place in olds if pattern.search(form)]
            if before and not any(pattern.search(form) for form, _ in news):
                yield signature.id, pattern.pattern, before[0]


def unnamed_errors(old: Release, new: Release) -> Iterator[tuple[str, str]]:
    """Place and text of each error that only NEW has and that no signature matches."""
    patterns = [pattern for signature in load().all for pattern in signature.patterns]
    for text, place in new.errors.items():
        if text not in old.errors and not any(p.search(form) for form in forms(text) for p in patterns):
            yield place, text


def main() -> int:
    """Print the differences; 1 where a signature was lost."""
    old, new = (read(Path(argument)) for argument in sys.argv[1:3])
    lost = list(lost_patterns(old, new))
    for name, pattern, place in lost:
        print(f"- signature {name}: {pattern!r}, was in {place}")
    for kind in _LISTS:
        for name in sorted(old.lists[kind].keys() - new.lists[kind].keys()):
            print(f"- {kind} {name}, was in {old.lists[kind][name]}")
        for name in sorted(new.lists[kind].keys() - old.lists[kind].keys()):
            print(f"+ {kind} {name} in {new.lists[kind][name]}")
    for place, text in unnamed_errors(old, new):
        print(f"+ error {text!r} in {place}")
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())
