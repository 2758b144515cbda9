import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT, Copy, Result, run, summary
from tests.mutants.mutant import Mutant, load

CODE = "def twice(n: int) -> int:\n    return n + n\n\n\ndef half(n: int) -> int:\n    return n // 2\n"
TEST = "import code_under_test as c\n\n\ndef test_twice() -> None:\n    assert c.twice(3) == 6\n"
BAD = "def test_that_always_fails() -> None:\n    assert False\n"


def test_mutants_fit_their_files_and_name_tests() -> None:
    """After a change of the code: correct `within`, `before`, `after` and `tests`, or remove the mutant with its code."""
    problems = [f"{m.area}.toml, {m.id}: {why}" for m in load() if (why := m.misfit(ROOT))]
    problems += [f"{m.area}.toml, {m.id}: not one test {test}" for m in load() for test in m.missing_tests(ROOT)]
    assert problems == []


def test_mutants_are_at_least_60_with_harm_and_tests() -> None:
    mutants = load()
    assert len(mutants) >= 60
    assert [m.id for m in mutants if not (m.harm.strip() and m.tests and m.before != m.after)] == []
    assert [m.id for m in mutants for test in m.tests if not test.rpartition("::")[2].startswith("test_")] == []


def test_mutants_with_one_id_or_an_unknown_key_are_refused(tmp_path: Path) -> None:
    entry = '[[mutant]]\nid = "a"\nfile = "f"\nbefore = "b"\nafter = "c"\ntests = ["t"]\nharm = "h"\n'
    (tmp_path / "area.toml").write_text(entry + entry)
    with pytest.raises(ValueError, match="mutant 2: the id a is in use"):
        load(tmp_path)
    (tmp_path / "area.toml").write_text(entry.replace("harm", "damage"))
    with pytest.raises(ValueError, match=r"mutant 1: the keys after, before, .*, and within or file were expected"):
        load(tmp_path)


@pytest.fixture
def few_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pytest start in a fifth of its time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p _hypothesis_pytestplugin")


def mutant(
    id_: str, before: str, after: str, test: str = "test_twice", *, within: str = "", file: str = "code_under_test.py"
) -> Mutant:
    return Mutant(id_, "area", before, after, (test,), f"harm of {id_}", within, file)


@pytest.mark.parametrize(
    ("within", "before", "after", "changed"),
    [
        ("", "n // 2", "n", "    return n\n"),
        ("half", "return n // 2", "return n // 3", "    return n // 3\n"),
        ("half", "return n//  2", "if n:\n    return 1\nreturn 2", "    if n:\n        return 1\n    return 2\n"),
    ],
)
def test_mutant_changes_its_definition(tmp_path: Path, within: str, before: str, after: str, changed: str) -> None:
    (tmp_path / "code_under_test.py").write_text(CODE)
    expected = CODE.replace("    return n // 2\n", changed)
    assert mutant("m", before, after, within=within).apply(tmp_path) == (tmp_path / "code_under_test.py", expected)


def test_mutant_finds_methods_and_constants_in_any_file(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class A:\n    LIMIT: int = 3\n\n    def f(self) -> int:\n        return 3\n")
    (tmp_path / "two.py").write_text("def f() -> int:\n    return 3\n\n\nLIMIT = 3\n")
    places = {name: mutant("m", "3", "4", within=name, file="").apply(tmp_path) for name in ("A.LIMIT", "A.f", "LIMIT")}
    assert {name: path.name for name, (path, _) in places.items()} == {
        "A.LIMIT": "one.py",
        "A.f": "one.py",
        "LIMIT": "two.py",
    }
    assert "LIMIT: int = 4\n\n    def f(self) -> int:\n        return 3" in places["A.LIMIT"][1]


@pytest.mark.parametrize(
    ("changes", "misfit"),
    [
        ({"within": "f"}, "`before` stands 2 times in f, once was expected: correct `before`"),
        ({"within": "g"}, "g does not exist: correct `within` or `file`, or remove the mutant with its code"),
        ({"within": "f", "file": "three.py"}, "f of three.py does not exist: correct"),
        ({"within": "f", "file": "one.py"}, ""),
        ({"file": "one.py"}, "`before` stands 2 times in one.py"),
    ],
)
def test_mutant_misfits_unless_its_text_stands_once(tmp_path: Path, changes: dict[str, str], misfit: str) -> None:
    (tmp_path / "one.py").write_text("def f() -> int:\n    return 3\n\n\nLIMIT = 3\n")
    (tmp_path / "two.py").write_text("def f() -> int:\n    return 3\n")
    found = mutant("m", "3", "4", **{"file": "", **changes}).misfit(tmp_path)
    assert found.startswith(misfit) and bool(found) == bool(misfit)


def test_mutant_names_tests_that_one_file_has(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_a() -> None: ...\n\n\ndef test_b() -> None: ...\n")
    (tmp_path / "test_two.py").write_text("def test_b() -> None: ...\n")
    tests = ("test_a", "test_b", "test_two.py::test_b", "test_c")
    named = replace(mutant("m", "3", "4"), tests=tests)
    assert named.pytest_ids(tmp_path) == ["test_one.py::test_a", "test_two.py::test_b"]
    assert named.missing_tests(tmp_path) == ["test_b", "test_c"]


@pytest.mark.usefixtures("few_plugins")
def test_mutants_are_killed_survive_or_are_broken(tmp_path: Path) -> None:
    tree = {"code_under_test.py": CODE, "test_it.py": TEST, "test_bad.py": BAD}
    for name, text in tree.items():
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    told: list[Result] = []
    mutants = [
        mutant("noticed", "n + n", "n * n"),
        mutant("not_noticed", "n // 2", "n // 3"),
        mutant("gone", "n - n", "n"),
        mutant("no_python", "n + n", "n +"),
        mutant("no_change", "n + n", "(n + n)"),
        mutant("no_test", "n + n", "n", "test_half"),
        mutant("bad_test", "n + n", "n", "test_that_always_fails"),
    ]
    results = run(tmp_path, mutants, workers=2, limit_s=60, told=told.append)
    fates = {r.mutant.id: r.fate for r in results}
    assert fates == {
        "noticed": "killed", "not_noticed": "survived", "gone": "broken", "no_python": "broken", "no_change": "broken",
        "no_test": "broken", "bad_test": "broken",
    }  # fmt: skip
    assert results[0].detail == "test_it.py::test_twice"
    assert len(told) == len(mutants)
    assert {name: (tmp_path / name).read_text() for name in tree} == tree  # the tree itself is left alone
    assert "survived: not_noticed (code_under_test.py)\n  harm of not_noticed" in summary(results)


@pytest.mark.usefixtures("few_plugins")
def test_mutants_out_of_time_are_told(tmp_path: Path) -> None:
    endless = CODE + "\n\ndef wait(n: int) -> int:\n    while n:\n        n -= 1\n    return n\n"
    (tmp_path / "code_under_test.py").write_text(endless)
    (tmp_path / "test_it.py").write_text("import code_under_test as c\n\n\ndef test_wait() -> None:\n    c.wait(3)\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "copy").mkdir()
    result = Copy(tmp_path, tmp_path / "copy").run(mutant("endless", "n -= 1", "n += 1", "test_wait"), 2)
    assert (result.fate, result.detail) == ("out of time", "its tests took more than 2 s")
