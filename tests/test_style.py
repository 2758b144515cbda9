"""Rules for names, docstrings and sizes that ruff does not know. A violation fails with file and line."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "loadchaos"
FILES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
MOST_PARAMETERS, MOST_LINES = 6, 60
RELATIVE = re.compile(r"(?:What|Whether|Who|Whose|How|Where|Which|When|Why|That|See) ")
"""A first line that begins so has a clause as its subject, or only points elsewhere."""
VAGUE = {"see", "hear", "take", "tell", "told", "go", "turn", "over", "said", "heard"}
"""Verbs that say nothing about what a function does."""
UNIQUE_EXCEPT = {"Options"}


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.name}", node


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [a.arg for a in every if a.arg not in ("self", "cls")]


def is_table(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the body is one returned table, or yields entries of one."""
    body = [n for n in node.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    longest = max(body, key=lambda n: (n.end_lineno or 0) - n.lineno)
    table = isinstance(longest, ast.Return | ast.Assign) and isinstance(
        longest.value, ast.List | ast.Dict | ast.Tuple | ast.Set
    )
    rest = (node.end_lineno or 0) - node.lineno - ((longest.end_lineno or 0) - longest.lineno)
    return table and rest < MOST_LINES


def docstrings() -> Iterator[tuple[str, str]]:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                # Of the node itself, and of its constants and attributes: a text on a line of its own.
                for part in node.body:
                    if (
                        isinstance(part, ast.Expr)
                        and isinstance(part.value, ast.Constant)
                        and isinstance(part.value.value, str)
                    ):
                        yield f"{path.relative_to(PACKAGE)}:{part.lineno}", part.value.value.strip().splitlines()[0]


def test_functions_have_at_most_six_parameters() -> None:
    # A click command has one parameter for each option.
    found = [w for w, n in functions() if len(parameters(n)) > MOST_PARAMETERS and not n.decorator_list]
    assert found == []


def test_functions_have_at_most_sixty_lines() -> None:
    found = [w for w, n in functions() if (n.end_lineno or 0) - n.lineno >= MOST_LINES and not is_table(n)]
    assert found == []


def test_functions_have_names_that_say_something() -> None:
    assert [w for w, n in functions() if n.name.strip("_") in VAGUE] == []


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1 and name not in UNIQUE_EXCEPT} == {}


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    assert [f"{where}: {line}" for where, line in docstrings() if RELATIVE.match(line)] == []


def test_imports_have_no_circles() -> None:
    modules = {module(path): path for path in FILES}
    graph = {name: imported(name, TREES[path], modules) for name, path in modules.items()}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name in done:
            return
        for other in graph[name]:
            visit(other, (*way, name))
        done.add(name)

    for name in graph:
        visit(name, ())


def module(path: Path) -> str:
    return ".".join(("loadchaos", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def imported(name: str, tree: ast.Module, modules: dict[str, Path]) -> set[str]:
    """Our own modules that a module imports at run time; imports for type checking only are left out."""
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in typing_only:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in modules else str(node.module))
    return {other for other in found if other in modules and other != name}


def test_methods_that_receive_rows_are_named_after_the_kind() -> None:
    """So that a search for `def on_end(` finds them; `fold` may look at the kind of every row."""
    found = [
        f"{path.relative_to(PACKAGE)}:{method.lineno}: {method.name}"
        for path, tree in TREES.items()
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for method in owner.body
        if isinstance(method, ast.FunctionDef) and method.name not in {"fold", "changes_after"}
        if any(a.annotation and ast.unparse(a.annotation) in {"Row", "AnyRow"} for a in method.args.args)
        if any(
            isinstance(n, ast.Compare) and isinstance(n.ops[0], ast.Eq) and _reads_kind(n.left)
            for n in ast.walk(method)
        )
    ]
    assert found == []


def _reads_kind(node: ast.expr) -> bool:
    """Whether it is `row["row"]` or `row.get("row")`."""
    key = (
        node.slice
        if isinstance(node, ast.Subscript)
        else node.args[0]
        if isinstance(node, ast.Call) and node.args
        else None
    )
    return isinstance(key, ast.Constant) and key.value == "row"
