"""Read advisory files of the user, and check them: each mistake has file, line, key and the expected value."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadchaos.analysis.advisories.advisory import COMPARISON, ENGINES, OR, OTHER_FACTS, Advisory, engine
from loadchaos.core.errors import LoadchaosError, did_you_mean
from loadchaos.core.typed_json import from_json, schema
from loadchaos.core.version_ranges import clauses


class AdvisoryError(LoadchaosError):
    """A mistake in an advisory file, with file, line, key and the expected value."""


def read_folder(folder: Path) -> list[Advisory]:
    """The advisories of a folder of the user's and its subfolders, checked. Raises AdvisoryError."""
    files = sorted(folder.rglob("*.toml"))
    if not files:
        raise AdvisoryError(f"{folder}: no *.toml file is there; one for each advisory was expected")
    found = [read(file) for file in files]
    ids = [a.id for a in found]
    if twice := next((i for i in ids if ids.count(i) > 1), None):
        raise AdvisoryError(f"{folder}: the id {twice} is in two files; each was expected to have its own")
    return found


def read(file: Path) -> Advisory:
    """Read and check one file. Raises AdvisoryError for the first mistake."""
    try:
        text = file.read_text("utf-8")
        data = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as e:
        raise AdvisoryError(f"{file}: it cannot be read: {e}") from e
    except tomllib.TOMLDecodeError as e:
        line = re.search(r"at line (\d+)", str(e))
        raise AdvisoryError(f"{file}{f':{line[1]}' if line else ''}: {e}") from e
    if mistake := next(_mistakes(data, file), None):
        path, expected = mistake
        name = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".")
        raise AdvisoryError(f"{file}{_line(text, path)}: {name or 'the file'}: {expected}")
    return from_json(Advisory, data)


Mistake = tuple[Sequence[str | int], str]


def _mistakes(data: Mapping[str, Any], file: Path) -> Iterator[Mistake]:
    """Mistakes, those of the form first: the others need the form."""
    formal = list(_formal(Advisory, data))
    if formal:
        yield from formal
        return
    one = from_json(Advisory, data)
    if one.id != file.stem:
        yield ["id"], f"the name of the file, {file.stem!r}, was expected (got {one.id!r})"
    if one.engine not in ENGINES:
        yield (
            ["id"],
            f"an engine and a name was expected, such as vllm-123; engines: {', '.join(ENGINES)} (got {one.id!r})",
        )
        return
    if not one.title and not one.failure:
        yield ["title"], "a title, or a failure that has one, was expected"
    for key in ("affected", "unaffected"):
        for n, evidence in enumerate(getattr(one, key)):
            try:
                clauses(evidence.versions)
            except ValueError as e:
                yield [key, n, "versions"], str(e)
            if bool(evidence.reported) == bool(evidence.proved):
                yield [key, n], "one of `reported` (a link) and `proved` (a table) was expected"
    for n, cure in enumerate(one.cures):
        if bool(cure.flag) == bool(cure.text):
            yield ["cures", n], "one of `flag` and `text` was expected"
    known = {*OTHER_FACTS, *(name for name, _ in engine(one.engine).options.values())}
    for table in ("when", "needs"):
        for name, test in getattr(one, table).items():
            if wrong := [n for n in name.split(OR) if n.partition(".")[0] not in known and not n.startswith("env.")]:
                expected = f"an option of {one.engine} or one of {', '.join(OTHER_FACTS)} was expected"
                yield [table, name], expected + did_you_mean(wrong[0], known)
            if isinstance(test, str) and test[:1] in "<>=" and not COMPARISON.fullmatch(test):
                yield [table, name], f"a comparison such as '>=2' was expected (got {test!r})"


def _formal(kind: type[Any], data: object) -> Iterator[Mistake]:
    """Mistakes by the schema of the dataclass, without further keys."""
    import jsonschema

    strict = schema(kind)
    for part in (strict, *strict["$defs"].values()):
        part["additionalProperties"] = False
    for e in jsonschema.Draft202012Validator(strict).iter_errors(data):
        inner = [c for c in e.context or () if c.validator != "type"]  # of an optional table: a mistake inside it
        yield from map(_mistake, sorted(inner, key=lambda c: c.validator != "additionalProperties") or [e])


def _mistake(e: Any) -> Mistake:
    path, value, wanted = list(e.absolute_path), e.instance, e.validator_value
    got = f"was expected (got {value!r})"
    match e.validator:
        case "additionalProperties":
            known = list(e.schema["properties"])
            unknown = next(k for k in value if k not in known)
            return [*path, unknown], f"unknown key{did_you_mean(unknown, known)}; known: {', '.join(known)}"
        case "required":
            return [*path, next(k for k in wanted if k not in value)], "this key is missing"
        case "enum":
            return path, f"one of {', '.join(map(str, wanted))} {got}"
        case "pattern":
            return path, f"a date such as 2026-11-22 {got}"
        case "minLength":
            return path, "a text that is not empty was expected"
        case "type":
            return path, f"{' or '.join(wanted) if isinstance(wanted, list) else wanted} {got}"
    return path, f"true, false, a number, a text or a list of them {got}"


def _line(text: str, path: Sequence[str | int]) -> str:
    """Line of a key as `:12`, that of its nearest parent if it has none; empty if none is found."""
    lines, at = text.splitlines(), 0
    found = 0
    for n, part in enumerate(path):
        index = path[n + 1] if n + 1 < len(path) and isinstance(path[n + 1], int) else 0
        if isinstance(part, int):
            continue
        pattern = re.compile(
            rf'\s*(?:\[\[?\s*"?{re.escape(part)}"?\s*\]\]?|"?{re.escape(part)}"?\s*=)|.*[{{,]\s*"?{re.escape(part)}"?\s*='
        )
        hits = [i for i in range(at, len(lines)) if pattern.match(lines[i])]
        if not hits:
            break
        at = hits[min(int(index), len(hits) - 1)]
        found = at + 1
    return f":{found}" if found else ""
