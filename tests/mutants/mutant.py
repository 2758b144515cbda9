"""Kept mutants: small wrong changes of the code that named tests must notice."""

from __future__ import annotations

import ast
import functools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
_FIELDS = {"id", "file", "before", "after", "tests", "harm"}


@dataclass(frozen=True)
class Mutant:
    """One wrong change.

    Args:
        id: its name, unique.
        area: name of the TOML file that it stands in.
        file: the file it changes, from the root of the repository.
        before: text that stands exactly once in the file.
        after: the text in its place.
        tests: pytest ids of the tests that notice it, without parameters.
        harm: consequence for a user if nobody noticed.
    """

    id: str
    area: str
    file: str
    before: str
    after: str
    tests: Sequence[str]
    harm: str

    def misfit(self, root: Path) -> str:
        """Say why the change does not fit its file; empty if it fits."""
        if not (root / self.file).is_file():
            return f"{self.file} does not exist: correct `file`, or remove the mutant with its code"
        n = _text(root / self.file).count(self.before)
        return "" if n == 1 else f"`before` stands {n} times in {self.file}, once was expected: correct `before`"

    def apply(self, root: Path) -> str:
        """Return the text of its file with the change.

        Raises ValueError where it does not fit, or means nothing.
        """
        if misfit := self.misfit(root):
            raise ValueError(misfit)
        text = _text(root / self.file)
        changed = text.replace(self.before, self.after)
        try:
            same = ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text))
        except SyntaxError as e:
            raise ValueError(f"{self.file} is no Python after the change: {e.msg}; correct `after`") from e
        if same:
            raise ValueError(f"the change of {self.file} means nothing: correct `after`")
        return changed

    def missing_tests(self, root: Path) -> list[str]:
        """List named tests that are not in the tree."""
        return [test for test in self.tests if not _exists(root, test)]


def load(folder: Path = FOLDER) -> list[Mutant]:
    """Load the mutants of all TOML files of a folder.

    Raises:
        ValueError: an entry lacks a key, has an unknown one, or has the id of another.
    """
    found: dict[str, Mutant] = {}
    for path in sorted(folder.glob("*.toml")):
        for n, entry in enumerate(tomllib.loads(path.read_text("utf-8"))["mutant"], 1):
            if set(entry) != _FIELDS:
                raise ValueError(f"{path.name}, mutant {n}: the keys {', '.join(sorted(_FIELDS))} were expected")
            mutant = Mutant(**{**entry, "tests": tuple(entry["tests"])}, area=path.stem)
            if mutant.id in found:
                raise ValueError(f"{path.name}, mutant {n}: the id {mutant.id} is in use: choose another one")
            found[mutant.id] = mutant
    return list(found.values())


@functools.cache
def _text(path: Path) -> str:
    return path.read_text("utf-8")


def _exists(root: Path, test: str) -> bool:
    path, _, name = test.partition("::")
    if not name or not (root / path).is_file():
        return not name and (root / path).exists()
    return f"def {name}(" in _text(root / path)
