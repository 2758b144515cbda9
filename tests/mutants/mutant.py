"""Kept mutants: small wrong changes of the code that named tests must notice."""

import ast
import functools
import itertools
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
_REQUIRED = {"id", "before", "after", "tests", "harm"}
_PLACE = {"within", "file"}
_CODE, _TESTS = ("loadchaos", "plugins"), ("tests", "plugins")
"""Folders of the repository that are searched for definitions and for tests."""


@dataclass(frozen=True)
class Mutant:
    """One wrong change.

    Args:
        id: its name, unique.
        area: name of the TOML file that it stands in.
        before: text that stands exactly once within its definition, or in its file; white space does not matter.
        after: the text in its place; indented as the first line of what it replaces.
        tests: names of the tests that notice it, `test_x` or, where several files have that name, `file.py::test_x`.
        harm: consequence for a user if nobody noticed.
        within: the changed definition: `function`, `Class.method`, `Class`, `Class.ATTRIBUTE` or `CONSTANT`.
        file: end of the path of the changed file, needed where several files have that definition and text.
    """

    id: str
    area: str
    before: str
    after: str
    tests: Sequence[str]
    harm: str
    within: str = ""
    file: str = ""

    @property
    def place(self) -> str:
        return " of ".join(filter(None, (self.within, self.file)))

    def misfit(self, root: Path) -> str:
        try:
            self._match(root)
        except ValueError as e:
            return str(e)
        return ""

    def apply(self, root: Path) -> tuple[Path, str]:
        """Return the changed file and its text with the change.

        Raises ValueError where it does not fit, or means nothing.
        """
        path, start, end = self._match(root)
        text = _text(path)
        changed = text[:start] + _indented(self.after, text[:start]) + text[end:]
        try:
            same = ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text))
        except SyntaxError as e:
            raise ValueError(f"{path.name} is no Python after the change: {e.msg}; correct `after`") from e
        if same:
            raise ValueError(f"the change of {path.name} means nothing: correct `after`")
        return path, changed

    def pytest_ids(self, root: Path) -> list[str]:
        return [found[0] for test in self.tests if len(found := _tests_named(root, test)) == 1]

    def missing_tests(self, root: Path) -> list[str]:
        return [test for test in self.tests if len(_tests_named(root, test)) != 1]

    def _match(self, root: Path) -> tuple[Path, int, int]:
        places = [place for place in self._places(root) if str(place[0]).endswith(self.file)]
        if not places:
            raise ValueError(
                f"{self.place} does not exist: correct `within` or `file`, or remove the mutant with its code"
            )
        pattern = _pattern(self.before)
        found = [(path, *m.span()) for path, *span in places for m in pattern.finditer(_text(path), *span)]
        if len(found) != 1:
            raise ValueError(f"`before` stands {len(found)} times in {self.place}, once was expected: correct `before`")
        return found[0]

    def _places(self, root: Path) -> list[tuple[Path, int, int]]:
        if self.within:
            return _definitions(root).get(self.within, [])
        return [(path, 0, len(_text(path))) for path in [root / self.file] if path.is_file()]


def load(folder: Path = FOLDER) -> list[Mutant]:
    """Load the mutants of all TOML files of a folder.

    Raises:
        ValueError: an entry lacks a key, has an unknown one, or has the id of another.
    """
    found: dict[str, Mutant] = {}
    for path in sorted(folder.glob("*.toml")):
        for n, entry in enumerate(tomllib.loads(path.read_text("utf-8"))["mutant"], 1):
            if not (set(entry) >= _REQUIRED and set(entry) - _REQUIRED <= _PLACE and set(entry) & _PLACE):
                keys = ", ".join(sorted(_REQUIRED))
                raise ValueError(f"{path.name}, mutant {n}: the keys {keys}, and within or file were expected")
            mutant = Mutant(**{**entry, "tests": tuple(entry["tests"])}, area=path.stem)
            if mutant.id in found:
                raise ValueError(f"{path.name}, mutant {n}: the id {mutant.id} is in use: choose another one")
            found[mutant.id] = mutant
    return list(found.values())


def _pattern(before: str) -> re.Pattern[str]:
    parts = re.findall(r"\w+|[^\w\s]", before)
    pattern = re.escape(parts[0])
    for one, other in itertools.pairwise(parts):
        two_words = re.match(r"\w", one) and re.match(r"\w", other)
        pattern += (r"\s+" if two_words else r"\s*") + re.escape(other)
    return re.compile(pattern)


def _indented(after: str, ahead: str) -> str:
    lines = after.strip("\n").rstrip().split("\n")
    line = ahead[ahead.rfind("\n") + 1 :]
    more = _indent(line or " ") - _indent(lines[0]) if len(lines) > 1 else 0
    return "\n".join([lines[0].lstrip(), *(" " * (_indent(one) + more) + one.lstrip() for one in lines[1:])])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


@functools.cache
def _text(path: Path) -> str:
    return path.read_text("utf-8")


@functools.cache
def _definitions(root: Path) -> Mapping[str, list[tuple[Path, int, int]]]:
    found: dict[str, list[tuple[Path, int, int]]] = defaultdict(list)
    for path in _python_files(root, _CODE):
        text = _text(path)
        begins = [0, *(m.end() for m in re.finditer("\n", text))]
        for name, node in _named(ast.parse(text).body):
            decorators = getattr(node, "decorator_list", [])
            first = min(part.lineno for part in (node, *decorators))
            found[name].append((path, begins[first - 1], begins[(node.end_lineno or first)] - 1))
    return found


def _named(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name, node
            case ast.ClassDef(name=name):
                yield prefix + name, node
                yield from _named(node.body, f"{prefix}{name}.")
            case ast.Assign(targets=targets):
                names = [inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)]
                yield from ((prefix + name, node) for name in names)
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name, node


def _python_files(root: Path, folders: Sequence[str]) -> list[Path]:
    there = [root / folder for folder in folders if (root / folder).is_dir()]
    return sorted({path for folder in there or [root] for path in folder.rglob("*.py")})


@functools.cache
def _test_files(root: Path) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in _python_files(root, _TESTS):
        for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", _text(path), re.MULTILINE):
            found[name].append(path.relative_to(root).as_posix())
    return found


def _tests_named(root: Path, test: str) -> list[str]:
    if "::" not in test and (root / test).exists():
        return [test]
    file, _, name = test.rpartition("::")
    files = _test_files(root).get(name, [])
    return [f"{path}::{name}" for path in files if not file or f"/{path}".endswith(f"/{file}")]
