"""Imports between the packages: the table of what each may import; a forbidden import fails with file and line."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "loadchaos"
RUN = {"core", "simulator", "profile", "server", "analysis", "report", "chaos", "load"}
ALL = RUN | {"run", "campaigns"}
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "simulator": {"core"},
    "profile": {"core"},
    "server": {"core"},
    "analysis": {"core", "server.dialects"},
    "report": {"core", "analysis"},
    "chaos": {"core", "server.dialects"},
    "load": {"core", "profile", "server.dialects", "simulator.defects"},
    "run": RUN,
    "campaigns": ALL,
    "campaigns.recorder": {"core", "profile", "server", "load.endpoints", "load.wire"},
    "cli": ALL | {"api"},
    "__main__": {"cli"},
    "api": RUN,
}
"""A name with a dot allows one subpackage only; on the left, it is a subpackage with a rule of its own."""


def package_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return inner if (inner := ".".join(parts[:2])) in MAY_IMPORT else parts[0]


def imports(path: Path) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def forbidden(package: str, name: str) -> bool:
    """Whether `package` may not import the dotted `name`."""
    ours, _, inside = name.partition(".")
    if ours != "loadchaos" or inside in {"__version__", ""}:
        return False
    allowed = MAY_IMPORT[package] | {package}
    return not any(inside == a or inside.startswith(f"{a}.") for a in allowed)


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def test_packages_are_those_of_the_table() -> None:
    assert len(FILES) > 300
    assert {package_of(p) for p in FILES} == set(MAY_IMPORT)
    assert len([p for p in PACKAGE.iterdir() if p.name != "__pycache__"]) <= 15


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_package_imports_only_what_the_table_allows(path: Path) -> None:
    for line, name in imports(path):
        assert not forbidden(package_of(path), name), f"{path}:{line}: {package_of(path)} may not import {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_load_imports_locust_or_gevent(path: Path) -> None:
    for line, name in imports(path):
        if name.split(".")[0] in {"locust", "gevent"}:
            assert package_of(path) == "load", f"{path}:{line}: imports {name}"


def test_forbidden_import_is_found(tmp_path: Path) -> None:
    wrong = tmp_path / "x.py"
    wrong.write_text("def f():\n    from loadchaos.analysis import judge\n")
    assert imports(wrong) == [(2, "loadchaos.analysis.judge")]
    assert forbidden("server", "loadchaos.analysis.judge")
    assert forbidden("load", "loadchaos.server.monitor.gaps")
    assert not forbidden("load", "loadchaos.server.dialects.base.Dialect")
